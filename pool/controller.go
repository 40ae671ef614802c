package pool

import (
	"cmp"
	"runtime"
	"sync/atomic"
	"time"
)

// controller is the state of the goroutine that adapts the pool to the load.
type controller struct {
	p        *Pool
	wake     chan struct{} // capacity 1
	runnable func() int    // counts the goroutines that wait for a processor
	budget   *memoryBudget
	ticks    atomic.Int64

	lastTotals  totals // at the last call of updateTargetQueueLimitAndOverload
	lastRefused uint64 // totals.refused at the last tick
	lastWaitAt  int64
	adjustAt    int64 // see updateTargetQueueLimitAndOverload
	memoryAt    int64 // when the memory budget is due
	trimAt      int64 // when stopQuarterOfIdleWorkers is due
	minIdle     int   // minimum number of idle workers since the last stopQuarterOfIdleWorkers

	ceiling       int    // maximum number of workers that the configuration and the memory budget allow
	crowdedAt     int64  // since when more than crowdedPerProc goroutines per processor wait to run; 0 if fewer do
	lastCrowdedAt int64  // when more than crowdedPerProc goroutines per processor last waited to run
	lastBlockedAt int64  // when jobs last waited for something other than a processor, or the limit decreased because none did
	progressAt    int64  // when a job last finished, no job waited, or a worker was added
	lastFinished  uint64 // totals.finished at progressAt

	meanService int64   // moving average of the duration of jobs; 0 if unknown
	queueLimit  int     // jobs; the capacity, or less in an overload
	slack       float64 // share of recent periods, from 0 to 1, without waiting or rejected jobs
}

// Periods of the controller, in nanoseconds. The controller ticks every fastPeriod while jobs wait, and for the time
// stayFast afterwards. While jobs run but none wait, it ticks every slowPeriod. While no jobs run, it ticks every
// trimPeriod, until only Config.Min workers remain.
const (
	fastPeriod   = int64(time.Millisecond)
	slowPeriod   = int64(50 * time.Millisecond)
	stayFast     = int64(20 * time.Millisecond)
	adjustPeriod = int64(10 * time.Millisecond)
	memoryPeriod = int64(100 * time.Millisecond)
	trimPeriod   = int64(time.Second)
)

type totals struct {
	queued   int
	refused  uint64 // rejected, shed, or made to wait
	finished uint64
	service  time.Duration // of the finished jobs
	busy     int
}

func (c *controller) tickUntilPoolExits() {
	timer := time.NewTimer(time.Duration(fastPeriod))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-c.wake:
		case <-c.p.exited:
			return
		}
		c.p.slow.Store(false)
		period := c.tick()
		if period != fastPeriod {
			c.p.slow.Store(true)
			if c.p.anyQueued() || c.p.waiting.Load() > 0 { // a job that arrived before slow was set
				period = fastPeriod
			}
		}
		if timer.Stop(); period > 0 {
			timer.Reset(time.Duration(period))
		}
	}
}

// wakeController makes the controller tick soon. Call it when a job waits or is rejected, or when a worker starts.
func (p *Pool) wakeController() {
	if p.slow.Load() && p.slow.CompareAndSwap(true, false) {
		select {
		case p.control.wake <- struct{}{}:
		default:
		}
	}
}

// tick adapts the pool to the current load. nextPeriod is the time in nanoseconds after which tick must be called
// again. If nextPeriod is 0, the controller sleeps until wakeController is called.
func (c *controller) tick() (nextPeriod int64) {
	p, now := c.p, c.p.now()
	c.ticks.Add(1)
	idle := !p.anyQueued() && p.parked.count.Load() >= p.workerCount()
	if idle {
		c.endOverload(now)
	}
	var shed []Task
	s := c.updateShardsAndSumTotals(now, &shed)
	waiting := s.queued + int(s.refused-c.lastRefused) + int(p.waiting.Load())
	c.lastRefused = s.refused
	if waiting > 0 {
		c.lastWaitAt = now
	}
	runnable := c.runnable()
	if waiting > 0 && runnable > int(p.procs) {
		runtime.Gosched() // lets goroutines run that have waited only for a moment
		runnable = c.runnable()
	}
	p.blocking.Store(int64(s.busy) > 2*(p.procs+int64(runnable)))
	if !p.cfg.FixedLimit {
		c.updateWorkerLimit(now, waiting, runnable, s)
	}
	if now >= c.adjustAt {
		c.adjustAt = now + adjustPeriod
		c.updateTargetQueueLimitAndOverload(now, s)
	}
	for more := s.queued - int(p.searching.Load()); more > 0 && p.canWakeOrStartWorker(); more-- {
		p.wakeOrStartWorker()
	}
	if !p.isClosed() {
		p.ensureMinWorkers()
	}
	if c.minIdle = min(c.minIdle, int(p.parked.count.Load())); now >= c.trimAt {
		c.trimAt = now + trimPeriod
		c.stopQuarterOfIdleWorkers()
	}
	if len(shed) > 0 {
		p.wakeWaitingSubmit()
		p.notifyShedAndClear(&shed)
	}
	workers := p.workerCount()
	switch {
	case now-c.lastWaitAt < stayFast || workers < int64(p.cfg.Min):
		return fastPeriod
	case !idle:
		return slowPeriod
	case workers > int64(p.cfg.Min):
		return trimPeriod
	}
	return 0
}

// updateShardsAndSumTotals adds up the counters of all shards. It also sets the queue limit of each shard. During an
// overload, it removes jobs that have waited longer than the target from the queue and adds them to *shed.
func (c *controller) updateShardsAndSumTotals(now int64, shed *[]Task) (sum totals) {
	p := c.p
	sum.refused = p.totalWaits.Load()
	room := (c.queueLimit + len(p.shards) - 1) / len(p.shards)
	for _, s := range p.shards {
		s.mu.Lock()
		s.setAdmitLimit(room)
		s.updateOverloadAndShedOverdueLocked(now, shed)
		sum.queued += s.Len()
		sum.finished += s.counts.Finished
		sum.service += s.counts.Service.Sum
		sum.refused += s.counts.Shed
		s.mu.Unlock()
		sum.refused += s.refused.Load()
	}
	sum.busy = p.busyWorkers()
	return sum
}

// updateTargetQueueLimitAndOverload updates the overload target, the queue limit and the overload state. soFar contains
// the current totals. The update depends on how the totals have changed since the previous call.
func (c *controller) updateTargetQueueLimitAndOverload(now int64, soFar totals) {
	p := c.p
	if finished := soFar.finished - c.lastTotals.finished; finished > 0 {
		mean := int64(soFar.service-c.lastTotals.service) / int64(finished)
		if c.meanService == 0 {
			c.meanService = mean
		}
		c.meanService += (mean - c.meanService) / 4
	}
	if !p.cfg.fixedTarget {
		p.overload.target.Store(min(max(c.meanService, int64(p.cfg.Target)), int64(p.cfg.Interval)))
	}
	c.updateQueueLimitAndOverload(now, soFar, soFar.refused > c.lastTotals.refused)
	c.lastTotals = soFar
}

func (c *controller) stopQuarterOfIdleWorkers() {
	p := c.p
	for n := (c.minIdle + 3) / 4; n > 0; n-- {
		w := p.popParked()
		if w == nil {
			break
		}
		if !p.decrementWorkersIfAbove(int64(p.cfg.Min)) {
			p.wakeToSearch(w) // parks again
			break
		}
		close(w.wake)
	}
	c.minIdle = int(p.parked.count.Load())
}

const (
	// initialPerProc is the initial and minimum limit of workers per processor.
	initialPerProc = 2
	// The limit of workers decreases if more than crowdedPerProc goroutines per processor have waited for crowdedFor.
	crowdedPerProc = 8
	crowdedFor     = int64(20 * time.Millisecond)
	// It also decreases when, for noneBlockedFor, running jobs have waited only for processors.
	noneBlockedFor = int64(20 * time.Millisecond)
	// slowGrowthFor is how long the limit of workers grows slowly after lastCrowdedAt.
	slowGrowthFor = int64(100 * time.Millisecond)
	// maxBesideOthersPerProc limits the workers per processor that start while other goroutines wait for a processor.
	maxBesideOthersPerProc = 64
	// starvedFor is the time without a finished job after which a worker is added while jobs wait.
	starvedFor = int64(50 * time.Millisecond)
)

// minWorkerLimit returns the lowest value that the limit of workers can have. The limit starts at this value.
func (p *Pool) minWorkerLimit() int64 {
	if p.cfg.FixedLimit {
		return int64(p.cfg.Max)
	}
	return min(max(int64(p.cfg.Min), initialPerProc*p.procs), int64(p.cfg.Max))
}

// updateWorkerLimit adapts the limit of workers to the load. waiting is the number of jobs that wait, plus the number
// of jobs that were rejected since the previous call. runnable is the number of goroutines that wait for a processor. s
// contains the current totals.
func (c *controller) updateWorkerLimit(now int64, waiting, runnable int, s totals) {
	p := c.p
	procs, limit, workers := int(p.procs), int(p.limit.Load()), int(p.workerCount()-p.blocked.Load())
	if now >= c.memoryAt {
		c.memoryAt = now + memoryPeriod
		c.ceiling = c.budget.updateMaxWorkers(int(p.workerCount()))
	}
	if waiting > 0 && c.budget.isHeapAboveHighWater() {
		c.ceiling = min(c.ceiling, int(p.workerCount()))
		c.memoryAt = min(c.memoryAt, now+int64(5*time.Millisecond)) // restores the ceiling
	}
	// As in Windows' I/O completion ports, workers start when others block. Throughput reacts late and is noisy.
	growth := max(1, workers/4)
	if now-c.lastCrowdedAt < slowGrowthFor {
		growth = max(1, workers/32)
	}
	crowded := runnable > crowdedPerProc*procs
	if crowded {
		c.lastCrowdedAt, c.crowdedAt = now, cmp.Or(c.crowdedAt, now)
	} else {
		c.crowdedAt = 0
	}
	if s.busy > runnable+2*procs {
		c.lastBlockedAt = now
	}
	if waiting == 0 || s.finished != c.lastFinished {
		c.progressAt, c.lastFinished = now, s.finished
	}
	larger, besideOthers := workers+growth, min(runnable/2, maxBesideOthersPerProc*procs)
	switch {
	case waiting > 0 && runnable <= procs:
		limit = max(limit, larger)
	case waiting > 0 && workers < besideOthers:
		limit = max(limit, min(larger, besideOthers))
	// Running jobs may depend on waiting ones.
	case now-c.progressAt >= starvedFor:
		c.progressAt = now
		limit = max(limit, workers+1)
	// More workers would only delay the program's other goroutines, such as event loops.
	case now-c.lastBlockedAt >= noneBlockedFor && workers > max(besideOthers, initialPerProc*procs):
		c.lastBlockedAt = now
		limit = min(limit, workers-max(1, workers/8))
	case crowded && now-c.crowdedAt >= crowdedFor && workers > besideOthers:
		c.crowdedAt = now
		limit = min(limit, workers-max(1, workers/32))
	}
	newLimit := max(int64(min(limit, c.ceiling)), p.minWorkerLimit())
	if newLimit > p.limit.Swap(newLimit) {
		p.wakeWaitingSubmit()
	}
}
