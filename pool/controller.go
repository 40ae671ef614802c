package pool

import (
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

// controller is the goroutine that adjusts the pool. It sets the limit of workers, sheds overdue jobs if no worker
// takes any, limits the queue in an overload and stops idle workers. The goroutine runs every millisecond while jobs
// wait, every 50 ms while jobs run, and once a second while all workers are idle. A pool without workers has no timer.
type controller struct {
	p    *Pool
	wake chan struct{} // capacity 1
	quit chan struct{}
	done sync.WaitGroup

	sizer     workerSizer
	admission queueAdmission
	budget    *memoryBudget
	runnable  func() int // newRunnableGoroutineCounter, except in tests

	ticks       atomic.Int64
	lastWaitAt  int64  // when jobs waited last
	lastRefused uint64 // totals.refused at the last tick
	lastTotals  totals // at the last call of updateOverloadTargetAndAdmission
	meanService int64  // moving average of the duration of jobs; 0 if unknown
	adjustAt    int64  // when updateOverloadTargetAndAdmission is due
	memoryAt    int64  // when the memory budget is due
	trimAt      int64  // when stopQuarterOfIdleWorkers is due
	minIdle     int    // minimum number of idle workers since stopQuarterOfIdleWorkers
}

// Periods of the controller in nanoseconds. After jobs have waited, fastPeriod applies for another stayFast.
const (
	fastPeriod   = int64(time.Millisecond)
	slowPeriod   = int64(50 * time.Millisecond)
	stayFast     = int64(20 * time.Millisecond)
	adjustPeriod = int64(10 * time.Millisecond)
	memoryPeriod = int64(100 * time.Millisecond)
	trimPeriod   = int64(time.Second)
)

type totals struct {
	queued     int
	refused    uint64 // rejected, shed, or made to wait
	finished   uint64 // jobs, at the last call
	service    time.Duration
	timed      uint64 // number of jobs in service
	busy, idle int64
}

func (c *controller) init(p *Pool, countRunnable func() int) {
	c.p, c.runnable = p, countRunnable
	c.wake, c.quit = make(chan struct{}, 1), make(chan struct{})
	c.sizer = newWorkerSizer(p.cfg.Min, p.cfg.Max, int(p.procs))
	if p.cfg.FixedLimit {
		c.sizer.limit = p.cfg.Max
	}
	c.admission.limit = p.cfg.Queue
	c.budget = newMemoryBudgetOrCgroupLimit(p.cfg.MemoryLimit)
	p.limit.Store(int64(c.sizer.limit))
}

func (c *controller) tickUntilQuit() {
	timer := time.NewTimer(time.Duration(fastPeriod))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-c.wake:
		case <-c.quit:
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

func (c *controller) stopAndWait() {
	close(c.quit)
	c.done.Wait()
}

// wakeController wakes the controller. It is called when a job waits or is rejected, or when a worker is started.
func (p *Pool) wakeController() {
	if p.slow.Load() && p.slow.CompareAndSwap(true, false) {
		select {
		case p.control.wake <- struct{}{}:
		default:
		}
	}
}

// tick runs one cycle. nextPeriod is the time until the next cycle. 0 means that only wakeController starts the next
// cycle.
func (c *controller) tick() (nextPeriod int64) {
	p := c.p
	c.ticks.Add(1)
	now := p.now()
	var shed []Task
	s := c.collectTotalsAndShedOverdue(now, &shed)
	waiting := s.queued + int(s.refused-c.lastRefused) + int(p.waiting.Load())
	c.lastRefused = s.refused
	if waiting > 0 {
		c.lastWaitAt = now
	}
	runnable := c.runnable()
	p.blocking.Store(s.busy > 2*(p.procs+int64(runnable)))
	if !p.cfg.FixedLimit {
		if now >= c.memoryAt {
			c.memoryAt = now + memoryPeriod
			c.sizer.ceiling = c.budget.updateMaxWorkers(int(p.workerCount()), p.cfg.Max)
		}
		if waiting > 0 && c.budget.isHeapFull() {
			c.sizer.ceiling = min(c.sizer.ceiling, int(p.workerCount()))
			c.memoryAt = min(c.memoryAt, now+int64(5*time.Millisecond)) // restores the ceiling
		}
		c.setLimitWakeSubmitIfRaised(c.sizer.updateWorkerLimit(now, loadSample{waiting, runnable, int(p.workerCount() - p.blocked.Load()), s.finished}))
	}
	if now >= c.adjustAt {
		c.adjustAt = now + adjustPeriod
		c.updateOverloadTargetAndAdmission(now, s)
	}
	c.wakeWorkersForQueuedAndMin(s.queued)
	if c.minIdle = min(c.minIdle, int(s.idle)); now >= c.trimAt {
		c.trimAt = now + trimPeriod
		c.stopQuarterOfIdleWorkers()
	}
	if len(shed) > 0 {
		p.notifyShedAndClear(shed)
		p.wakeWaitingSubmit()
	}
	workers := p.workerCount()
	if s.queued == 0 && p.parked.count.Load() >= workers {
		p.endOverloadAndRestoreCapacity(now)
	}
	switch {
	case now-c.lastWaitAt < stayFast || workers < int64(p.cfg.Min):
		return fastPeriod
	case p.parked.count.Load() < workers:
		return slowPeriod
	case workers > int64(p.cfg.Min):
		return trimPeriod
	}
	return 0
}

// collectTotalsAndShedOverdue adds up the shards' counters, and moves overdue jobs to the list shed.
func (c *controller) collectTotalsAndShedOverdue(now int64, shed *[]Task) (sum totals) {
	p := c.p
	sum.refused = p.totalWaits.Load()
	room := (c.admission.limit + len(p.shards) - 1) / len(p.shards)
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		s.setAdmitLimit(room)
		s.updateOverloadAndShedOverdue(now, shed)
		sum.queued += s.n
		sum.finished += s.tally.finished
		sum.service += s.tally.service.Sum
		sum.timed += s.tally.service.Count
		sum.refused += s.tally.shed
		s.mu.Unlock()
		sum.refused += s.refused.Load()
	}
	sum.busy, sum.idle = int64(p.busyWorkers()), p.parked.count.Load()
	return sum
}

func (c *controller) updateOverloadTargetAndAdmission(now int64, s totals) {
	p := c.p
	if timed := s.timed - c.lastTotals.timed; timed > 0 {
		mean := int64(s.service-c.lastTotals.service) / int64(timed)
		if c.meanService == 0 {
			c.meanService = mean
		}
		c.meanService += (mean - c.meanService) / 4
	}
	if !p.cfg.fixedTarget {
		p.overload.target.Store(min(max(c.meanService, int64(p.cfg.Target)), int64(p.cfg.Interval)))
	}
	c.admission.updateQueueLimitAndOverload(&p.overload, now, s, s.refused > c.lastTotals.refused, p.cfg.Queue, c.meanService)
	c.lastTotals = s
}

func (p *Pool) endOverloadAndRestoreCapacity(now int64) {
	if !p.control.admission.endOverloadAndRestoreLimit(&p.overload, p.cfg.Queue, now) {
		return
	}
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		s.setAdmitLimit(s.cap)
		s.mu.Unlock()
	}
}

func (c *controller) setLimitWakeSubmitIfRaised(limit int) {
	if int64(limit) > c.p.limit.Swap(int64(limit)) {
		c.p.wakeWaitingSubmit()
	}
}

// wakeWorkersForQueuedAndMin wakes or starts a worker per queued job, within the limit, and keeps Min workers.
func (c *controller) wakeWorkersForQueuedAndMin(queued int) {
	p := c.p
	for more := queued - int(p.searching.Load()); more > 0 && p.canWakeOrStartWorker(); more-- {
		p.wakeOrStartWorker()
	}
	if !p.closed.Load() {
		p.ensureMinWorkers(p.cfg.Min)
	}
}

func (c *controller) stopQuarterOfIdleWorkers() {
	p := c.p
	for n := (c.minIdle + 3) / 4; n > 0 && p.stopParkedWorker(int64(p.cfg.Min)); n-- {
	}
	c.minIdle = int(p.parked.count.Load())
}

// workerSizer sets the limit of workers. Its input is the number of waiting jobs, and the number of goroutines that
// wait for a processor. While jobs wait and processors have nothing to run, it raises the limit by a quarter per cycle.
// It also does so while more than twice as many goroutines wait for a processor as there are workers, up to 64 workers
// per processor. Most of the goroutines then belong to other code, with which the pool competes. While many goroutines wait, most of them workers, workerSizer
// slowly lowers the limit, because more workers would only wait and use memory. If jobs wait and none finishes, it adds a worker from time to time in any case.
//
// workerSizer approximates the rule of Windows' I/O completion ports: when a running thread blocks, start another. It
// is an approximation because Go's scheduler shows little about blocked goroutines. workerSizer ignores throughput,
// which reacts late and is noisy with mixed jobs (see dotnet/runtime issues 52701, 53471 and 81406).
type workerSizer struct {
	minWorkers, maxWorkers int
	ceiling                int // limit of the memory budget
	procs                  int
	limit                  int
	crowdedAt              int64 // since when goroutines wait for processors; 0 if they do not

	finished   uint64 // jobs since the start
	progressAt int64  // when a job last finished, no job waited, or a worker was added
}

const (
	// initialPerProc is the initial and minimum limit per processor. With two workers, one can run a job while the
	// other is on its way to a job.
	initialPerProc = 2
	// crowdedPerProc and crowdedFor define when the limit is lowered by a 32nd: when more than crowdedPerProc
	// goroutines have waited for each processor for the time crowdedFor.
	crowdedPerProc = 8
	crowdedFor     = int64(20 * time.Millisecond)
	// maxBesideOthersPerProc limits the workers per processor that are started because other goroutines wait for
	// processors. Jobs may have started these goroutines.
	maxBesideOthersPerProc = 64
	// starvedFor is the time without a finished job after which a worker is added while jobs wait, even if the
	// processors are busy, because running jobs may depend on waiting ones.
	starvedFor = int64(50 * time.Millisecond)
)

func newWorkerSizer(minWorkers, maxWorkers, procs int) workerSizer {
	s := workerSizer{maxWorkers: maxWorkers, ceiling: maxWorkers, procs: procs}
	s.minWorkers = min(max(minWorkers, initialPerProc*procs), maxWorkers)
	s.limit = s.minWorkers
	return s
}

type loadSample struct {
	waiting  int    // jobs that wait, and those rejected since the last call
	runnable int    // goroutines that wait for a processor
	workers  int    // current number
	finished uint64 // jobs since the start
}

func (s *workerSizer) updateWorkerLimit(now int64, l loadSample) (limit int) {
	crowded := l.runnable > crowdedPerProc*s.procs
	besideOthers := min(l.runnable/2, maxBesideOthersPerProc*s.procs)
	switch {
	case !crowded:
		s.crowdedAt = 0
	case s.crowdedAt == 0:
		s.crowdedAt = now
	}
	if l.waiting == 0 || l.finished != s.finished {
		s.progressAt, s.finished = now, l.finished
	}
	switch {
	case l.waiting > 0 && l.runnable <= s.procs:
		s.limit = max(s.limit, l.workers+max(1, l.workers/4))
	case l.waiting > 0 && l.workers < besideOthers:
		s.limit = max(s.limit, min(l.workers+max(1, l.workers/4), besideOthers))
	case now-s.progressAt >= starvedFor:
		s.progressAt = now
		s.limit = max(s.limit, l.workers+1)
	case crowded && now-s.crowdedAt >= crowdedFor && l.workers > besideOthers:
		s.crowdedAt = now
		s.limit = min(s.limit, l.workers-max(1, l.workers/32))
	}
	s.limit = max(min(s.limit, s.ceiling, s.maxWorkers), s.minWorkers)
	return s.limit
}

// newRunnableGoroutineCounter returns a function that counts the goroutines that wait for a processor, according to
// Go's scheduler. The function is not safe for concurrent use.
func newRunnableGoroutineCounter() func() int {
	samples := []metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"}}
	return func() int {
		metrics.Read(samples)
		if v := samples[0].Value; v.Kind() == metrics.KindUint64 {
			return int(v.Uint64())
		}
		return runtime.GOMAXPROCS(0) + 1 // unknown: never grow
	}
}
