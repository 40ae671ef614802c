package pool

import (
	"runtime"
	"sync"
	"time"
)

// tender looks after the pool: it decides how many workers there may be, sheds what
// is too old in the queue although nobody takes anything, ends idle workers, and
// keeps the coarse clock. It is one goroutine, which sleeps while there is nothing
// to do. Its fields are guarded by mu, because Resize changes them, too.
type tender struct {
	p       *Pool
	stirred chan struct{} // has room for one: wakes it
	quit    chan struct{}
	done    sync.WaitGroup

	mu          sync.Mutex
	least, most int
	climb       climber
	budget      *budget
	crowd       func() float64 // how busy the processors are
	blocking    blocking
	ticks       int
	robs        int // how often to look for batches that are left
	spare       int // the least number of idle workers in this second
}

const (
	// tick is how often the tender looks.
	tick = 10 * time.Millisecond
	// second is after how many ticks idle workers are ended.
	second = int(time.Second / tick)
	// robs is how many ticks long batches may be left after jobs were trusted.
	robs = 3
	// startPerProc is how many workers there may be at first for each processor:
	// more than jobs that compute need, and not as many as would hurt them.
	startPerProc = 4
	// weigh is after how many it looks at the memory.
	weigh = 10
)

// begin makes the tender ready. Its goroutine is started by New.
func (t *tender) begin(p *Pool) error {
	t.p = p
	t.stirred, t.quit = make(chan struct{}, 1), make(chan struct{})
	t.least, t.most = p.cfg.Min, p.cfg.Max
	start := min(max(startPerProc*runtime.GOMAXPROCS(0), t.least), t.most)
	t.climb = newClimber(max(t.least, 1), t.most, start)
	if p.cfg.Off&Adapting != 0 {
		start = t.most
	}
	t.crowd = newCrowd()
	t.budget = newBudget(p.cfg.MemoryLimit, p.cfg.JobBytes)
	p.most.Store(int64(min(t.most, t.budget.fits)))
	t.set(start)
	return t.budget.check(t.least)
}

// run is the tender's goroutine.
func (t *tender) run() {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-t.quit:
			return
		}
		if t.look() {
			ticker.Stop()
			if !t.doze() {
				return
			}
			ticker.Reset(tick)
		}
	}
}

// end ends the tender, and waits for it.
func (t *tender) end() {
	close(t.quit)
	t.done.Wait()
}

// doze sleeps until there is work. It says whether that has come, or the end.
func (t *tender) doze() bool {
	p := t.p
	p.dozing.Store(true)
	defer p.dozing.Store(false)
	t.mu.Lock()
	nothing := t.nothing()
	t.mu.Unlock()
	if !nothing {
		return true // somebody came before the flag was up
	}
	select {
	case <-t.stirred:
		return true
	case <-t.quit:
		return false
	}
}

// rouse wakes the tender.
func (t *tender) rouse() {
	select {
	case t.stirred <- struct{}{}:
	default:
	}
}

// nothing says whether there is nothing to do: all workers are idle, and no more of
// them than there are to be.
func (t *tender) nothing() bool {
	p := t.p
	n := p.workers()
	return n <= int64(t.least) && p.idle.n.Load() >= n && !p.waiting()
}

// look looks after all once, and says whether there is nothing more to do.
func (t *tender) look() (nothing bool) {
	now := t.p.now()
	t.p.clock.Store(now)
	var dead []Task
	t.mu.Lock()
	r, queued := t.read(now, &dead)
	t.p.blocking.Store(t.blocking.look(r, t.p.procs))
	t.decide(r)
	t.rob(now)
	t.grow(queued)
	t.shrink()
	nothing = t.nothing()
	t.mu.Unlock()
	if len(dead) > 0 {
		t.p.bury(dead, ErrShed)
		t.p.wake()
	}
	return nothing
}

// read is what the pool has come to, and how many tasks wait. What is too old is
// shed on the way.
func (t *tender) read(now int64, dead *[]Task) (r reading, queued int) {
	p := t.p
	r.at, r.workers = time.Duration(now), int(p.workers())
	oldest := p.waiters.since()
	r.refused = p.waiters.came.Load()
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		if at := s.sweep(now, dead); at != 0 && (oldest == 0 || at < oldest) {
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
	r.busy, r.crowd = p.busy(), t.crowd()
	if oldest != 0 {
		r.waits = time.Duration(max(now-oldest, 1))
	}
	return r, queued
}

// rob takes the batches of workers that have not come back for a tick, and gives them
// back to the queue. As long as one is away, nobody counts on it to be back soon; and
// jobs are not trusted to be quick when it is found.
func (t *tender) rob(now int64) {
	p := t.p
	if p.trust.quick() {
		t.robs = robs
	} else if t.robs == 0 {
		p.stuck.Store(0)
		return
	} else {
		t.robs--
	}
	stuck := int64(0)
	for _, w := range *p.table.Load() {
		at := w.visited.Load()
		away := at != 0 && now-at >= int64(tick)
		if away {
			stuck++
		}
		if away == w.stuck {
			continue
		}
		if w.stuck = away; away {
			p.trust.judge(false, 1, new(int))
			t.restore(w.batch.steal())
		}
	}
	p.stuck.Store(stuck)
}

// restore gives tasks back to the queue.
func (t *tender) restore(tasks []Task, at int64) {
	if len(tasks) == 0 {
		return
	}
	p := t.p
	s := &p.shards[t.ticks&(len(p.shards)-1)]
	s.mu.Lock()
	s.restore(tasks, at)
	s.mu.Unlock()
	p.rouse()
}

// decide sets how many workers there may be.
func (t *tender) decide(r reading) {
	t.ticks++
	p := t.p
	if p.cfg.Off&Adapting != 0 {
		return
	}
	if t.ticks%weigh == 0 {
		t.climb.cap(t.budget.cap(r.workers, t.most))
	}
	t.set(t.climb.step(r))
	p.rule.patient.Store(t.climb.growing())
}

// set sets the limit.
func (t *tender) set(limit int) {
	limit = max(1, min(limit, t.budget.fits))
	if int64(limit) > t.p.limit.Swap(int64(limit)) {
		t.p.wake()
	}
}

// grow has more workers see to the tasks that wait, if there may be more. Quick
// jobs need no more than there are processors, and one more if the others don't
// come back.
func (t *tender) grow(queued int) {
	p := t.p
	more := int64(queued) - int64(p.searching.Load())
	if p.trust.quick() {
		more = min(more, max(p.procs-p.active(), 1))
	}
	for range more {
		if !p.vacant() {
			break
		}
		p.rouse()
	}
	if !p.closed.Load() {
		p.fill(t.least)
	}
}

// shrink ends a quarter of the workers that have idled for all of a second.
func (t *tender) shrink() {
	p := t.p
	t.spare = min(t.spare, int(p.idle.n.Load()))
	if t.ticks%second != 0 {
		return
	}
	for range (t.spare + 3) / 4 {
		if !p.retire(int64(t.least)) {
			break
		}
	}
	t.spare = int(p.idle.n.Load())
}

// resize implements Resize.
func (t *tender) resize(least, most int) error {
	p := t.p
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.closed.Load() {
		return ErrClosed
	}
	if err := t.budget.check(least); err != nil {
		return err
	}
	t.least, t.most = least, most
	p.most.Store(int64(min(most, t.budget.fits)))
	t.climb.resize(max(least, 1), most)
	if p.cfg.Off&Adapting != 0 {
		t.set(most)
	} else {
		t.set(min(max(int(p.limit.Load()), least), most))
	}
	p.fill(least)
	t.grow(p.queuedNow())
	for p.workers() > p.limit.Load() && p.retire(p.limit.Load()) {
	}
	t.rouse()
	return nil
}

// retire ends an idle worker, unless there are no more than floor.
func (p *Pool) retire(floor int64) bool {
	w := p.popIdle()
	if w == nil {
		return false
	}
	if !p.lower(floor) {
		p.send(w) // it searches, and parks again
		return false
	}
	w.wake <- order{end: true}
	return true
}
