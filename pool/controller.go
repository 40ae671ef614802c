package pool

import (
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

// controller runs once a tick while there is work: it sets the limit of workers, sheds
// what is too old in the queue when nobody takes jobs, counts long-running jobs,
// ends idle ones, and keeps the coarse clock. It is one goroutine, which sleeps while no
// worker is active, but for once a second as long as there are idle workers to end.
type controller struct {
	p    *Pool
	wake chan struct{} // has room for one
	quit chan struct{}
	done sync.WaitGroup

	climber   climber
	admission admission
	budget    *budget
	backlog   func() float64 // runnableBacklog, except in tests
	ticks     atomic.Int64
	slowReads int // in a row
	watch     int // ticks for which long-running jobs are still counted
	leastIdle int // the least number of idle workers in this second
}

const (
	tick           = 10 * time.Millisecond
	ticksPerSecond = int64(time.Second / tick)
	// maxRead is how long reading the pool's state may take. A reading in which the
	// controller had no processor has counted jobs of another time than it says: the
	// climber does not see it, but for one after maxSlowReads in a row.
	maxRead      = time.Millisecond
	maxSlowReads = 10
	// memoryTicks is after how many ticks the memory budget is checked.
	memoryTicks = 10
	// watchTicks is for how many ticks workers are watched after jobs were predicted to
	// be short.
	watchTicks = 3
	// initialPerProc is the initial limit for each processor: more than jobs that
	// compute need, and not so many that it would hurt them.
	initialPerProc = 4
	// leastPerProc is the least limit for each processor that is tried.
	leastPerProc = 2
)

// init prepares the controller; New starts its goroutine.
func (c *controller) init(p *Pool, backlog func() float64) {
	c.p, c.backlog = p, backlog
	c.wake, c.quit = make(chan struct{}, 1), make(chan struct{})
	limit := min(max(initialPerProc*int(p.procs), p.cfg.Min), p.cfg.Max)
	// One worker more for each processor than can run: while one is on its way to a job
	// the other has one.
	c.climber = newClimber(max(p.cfg.Min, min(leastPerProc*int(p.procs), p.cfg.Max)), p.cfg.Max, limit)
	if p.cfg.Off&Adapting != 0 {
		limit = p.cfg.Max
	}
	c.admission.room = p.cfg.Queue
	c.budget = newBudget(p.cfg.MemoryLimit)
	p.limit.Store(int64(limit))
}

func (c *controller) run() {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-c.quit:
			return
		}
		if c.tick() {
			ticker.Stop()
			if !c.sleep() {
				return
			}
			ticker.Reset(tick)
		}
	}
}

// stop ends the controller and waits for it.
func (c *controller) stop() {
	close(c.quit)
	c.done.Wait()
}

// sleep waits until there is work, or a second is over after which idle workers are
// ended. It is false at the pool's end.
func (c *controller) sleep() bool {
	p := c.p
	p.asleep.Store(true)
	defer p.asleep.Store(false)
	if !c.idle() {
		return true // work came before asleep was set
	}
	var second <-chan time.Time
	if p.workers() > int64(p.cfg.Min) {
		timer := time.NewTimer(time.Second)
		defer timer.Stop()
		second = timer.C
	}
	select {
	case <-c.wake:
		return true
	case <-second:
		c.leastIdle = int(p.parked.n.Load())
		c.removeIdle()
		return true
	case <-c.quit:
		return false
	}
}

// wakeController is called when a worker is given something to do.
func (p *Pool) wakeController() {
	if p.asleep.Load() {
		select {
		case p.control.wake <- struct{}{}:
		default:
		}
	}
}

// idle reports whether no worker is active, nothing waits, and there are as many workers
// as there have to be.
func (c *controller) idle() bool {
	n := c.p.workers()
	return n >= int64(c.p.cfg.Min) && c.p.parked.n.Load() >= n && !c.p.anyQueued()
}

// tick runs one control cycle. It reports whether the pool is idle.
func (c *controller) tick() (idle bool) {
	p := c.p
	now := p.now()
	p.clock.Store(now)
	var shed []Task
	ticks := c.ticks.Add(1)
	r, queued := c.read(now, &shed)
	if p.cfg.Off&Adapting == 0 && ticks%memoryTicks == 0 {
		c.climber.setCeiling(c.budget.cap(r.workers, p.cfg.Max))
	}
	limit := c.climber.limit
	if c.trusts(time.Duration(p.now() - now)) {
		limit = c.climber.observe(r)
	}
	p.blocking.Store(c.climber.blocking())
	if p.cfg.Off&Adapting == 0 {
		c.setLimit(limit)
		p.overload.growing.Store(c.climber.growing())
	}
	service := c.climber.service()
	if !p.cfg.fixedTarget {
		p.overload.target.Store(int64(min(max(service, p.cfg.Target), p.cfg.Interval)))
	}
	c.admission.observe(&p.overload, r, queued, p.cfg.Queue, service)
	c.countLongRunning(now)
	c.addWorkers(queued)
	if c.leastIdle = min(c.leastIdle, int(p.parked.n.Load())); ticks%ticksPerSecond == 0 {
		c.removeIdle()
	}
	if len(shed) > 0 {
		p.notifyShed(shed)
		p.wakeWaiter()
	}
	if idle = c.idle(); idle {
		c.endOverload()
	}
	return idle
}

// trusts reports whether a reading that took so long is for the climber.
func (c *controller) trusts(took time.Duration) bool {
	if took > maxRead && c.slowReads < maxSlowReads {
		c.slowReads++
		return false
	}
	c.slowReads = 0
	return true
}

// endOverload ends an overload: nothing waits.
func (c *controller) endOverload() {
	p := c.p
	if !c.admission.end(&p.overload, p.cfg.Queue, p.now()) {
		return
	}
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		s.setRoom(s.cap)
		s.mu.Unlock()
	}
}

// read is the state of the pool, and how many jobs wait. It sheds what is too old.
func (c *controller) read(now int64, shed *[]Task) (r reading, queued int) {
	p := c.p
	r.at, r.workers = time.Duration(now), int(p.workers()-p.blocked.Load())
	oldest := int64(0)
	if p.waiting.Load() > 0 {
		oldest = now - int64(tick) // at least about that
	}
	r.refused = p.total.Load()
	room := (c.admission.room + len(p.shards) - 1) / len(p.shards)
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		s.setRoom(room)
		if at := s.sweep(now, shed); at != 0 && (oldest == 0 || at < oldest) {
			oldest = at
		}
		queued += s.n
		r.finished += s.tally.finished
		r.service += s.tally.service.Sum
		r.timed += s.tally.service.Count
		r.refused += s.tally.shed
		s.mu.Unlock()
		r.refused += s.refused.Load()
	}
	r.procs, r.busy, r.backlog, r.cpu = int(p.procs), p.busy(), c.backlog(), processorTime()
	if oldest != 0 {
		r.waits = time.Duration(max(now-oldest, 1))
	}
	return r, queued
}

// runnableBacklog makes a function that tells how many goroutines are runnable and do
// not run, for each processor, as Go's scheduler counts them, those that the same timer
// tick has made runnable among them. It is for one caller at a time.
func runnableBacklog() func() float64 {
	samples := []metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"}}
	return func() float64 {
		metrics.Read(samples)
		v := samples[0].Value
		if v.Kind() != metrics.KindUint64 {
			return 0
		}
		return float64(v.Uint64()) / float64(runtime.GOMAXPROCS(0))
	}
}

// setLimit sets the limit of workers.
func (c *controller) setLimit(limit int) {
	if int64(limit) > c.p.limit.Swap(int64(limit)) {
		c.p.wakeWaiter()
	}
}

// countLongRunning counts workers that are in a job that takes longer than a tick
// where jobs were predicted to be short.
func (c *controller) countLongRunning(now int64) {
	p := c.p
	if p.short.predicts() {
		c.watch = watchTicks
	} else if c.watch == 0 {
		p.longRunning.Store(0)
		return
	}
	c.watch--
	n := int64(0)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.all {
		if start := w.lapStart.Load(); start != 0 && now-start >= int64(tick) {
			n++
		}
	}
	p.longRunning.Store(max(0, n-p.blocked.Load()))
}

// addWorkers has more workers see to the jobs that wait, as far as the limit allows.
// Short jobs need no more than there are processors, and one more if none comes back.
func (c *controller) addWorkers(queued int) {
	p := c.p
	more := int64(queued) - int64(p.searching.Load())
	if p.short.predicts() {
		more = min(more, max(p.procs-p.active(), 1))
	}
	for ; more > 0 && p.available(); more-- {
		p.wakeWorker()
	}
	if !p.closed.Load() {
		p.startWorkers(p.cfg.Min)
	}
}

// removeIdle ends a quarter of the workers that were idle for all of a second.
func (c *controller) removeIdle() {
	p := c.p
	for n := (c.leastIdle + 3) / 4; n > 0 && p.retire(int64(p.cfg.Min)); n-- {
	}
	c.leastIdle = int(p.parked.n.Load())
}
