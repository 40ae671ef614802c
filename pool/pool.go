package pool

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// This file is the pool, and who owns what in it.
//
// The queue is split into shards, each with a lock (shard.go). Workers are
// goroutines (worker.go); those without a job lie in a stack without a lock
// (idle.go). Who submits gives the task to a parked worker if nobody searches for
// tasks, or starts a worker if there may be more; otherwise it goes to the queue,
// so that a pool with a worker to spare never refuses, whatever Queue is. Submits
// that wait for room stand in a list (waiters.go). One goroutine, the tender, looks
// after the pool every 10 ms while there is something to do, and sleeps otherwise
// (tender.go); it alone decides how many workers there may be, and Resize has it do
// so. Close has everything end, and waits for it (close.go).

// Pool is a bounded pool of workers. Its methods are safe for concurrent use.
type Pool struct {
	cfg  Config
	rule rules
	base time.Time
	ctx  context.Context // of jobs without one of their own; Close cancels it
	stop context.CancelCauseFunc

	shards []shard
	shift  int // a hash's bits above it are a shard
	idle   idleStack
	waiters

	_         [64]byte
	size      atomic.Int64 // workers
	limit     atomic.Int64 // how many there may be
	stuck     atomic.Int64 // how many have not come back for long, while jobs are quick
	most      atomic.Int64 // and may ever be
	searching atomic.Int32 // how many of them search
	closed    atomic.Bool
	mixed     atomic.Bool   // there have been other priorities than Normal
	dozing    atomic.Bool   // the tender sleeps
	blocking  atomic.Bool   // jobs block, for a good part of their time
	places    atomic.Uint64 // of keys that there have been, a bit for each; see rules.place
	_         [64]byte
	round     atomic.Uint32 // goes over the shards
	_         [64]byte
	trust     trust
	_         [64]byte
	clock     atomic.Int64 // what the time was lately, at most some hundred µs ago while jobs are quick
	_         [64]byte
	handed    atomic.Uint64 // tasks that were given to a worker at once
	late      atomic.Uint64
	refused   atomic.Uint64 // for being closed
	procs     int64         // more workers than that don't help with quick jobs
	searchers int32         // most that search at a time

	mu    sync.Mutex // guards what follows, and the making of workers
	table atomic.Pointer[[]*worker]
	spare []*worker // have ended

	tender  tender
	ended   chan struct{} // closed when the last worker has ended
	over    chan struct{} // closed when Close is done
	running sync.WaitGroup
}

// errNoRoom is ErrFull that was not counted.
var errNoRoom = errors.New("pool: no room now")

// closedBit is set in size by Close.
const closedBit = 1 << 40

// New makes a pool. Its first Min workers and one more goroutine run until Close.
func New(cfg Config) (*Pool, error) {
	cfg, err := cfg.filled()
	if err != nil {
		return nil, err
	}
	p := &Pool{
		cfg: cfg, base: time.Now(), procs: int64(runtime.GOMAXPROCS(0)), searchers: int32(max(1, runtime.GOMAXPROCS(0)/2)),
		ended: make(chan struct{}), over: make(chan struct{}),
	}
	r := &p.rule
	r.seed = rand.Uint64()
	r.target, r.interval = int64(cfg.Target), int64(cfg.Interval)
	r.shed, r.newest, r.fair = cfg.Off&Shedding == 0, cfg.Off&NewestFirst == 0, cfg.Off&Fairness == 0
	p.trust.needs.Store(trustFrom)
	p.ctx, p.stop = context.WithCancelCause(context.Background())
	p.table.Store(new([]*worker))
	p.split(cfg.Queue, cfg.shards())
	if err := p.tender.begin(p); err != nil {
		return nil, err
	}
	p.fill(cfg.Min)
	p.tender.done.Go(p.tender.run)
	return p, nil
}

// split makes n shards, with room for size tasks together.
func (p *Pool) split(size, n int) {
	p.shards = make([]shard, n)
	p.shift = 64
	for i := 1; i < n; i *= 2 {
		p.shift--
	}
	for i := range p.shards {
		s := &p.shards[i]
		s.rule, s.cap = &p.rule, size/n
		if i < size%n {
			s.cap++
		}
		s.full.Store(s.cap == 0)
	}
}

// now is the time since the pool was made, never 0.
func (p *Pool) now() int64 { return int64(time.Since(p.base)) + 1 }

// fill starts workers until there are n.
func (p *Pool) fill(n int) {
	for int(p.workers()) < n && p.spawn(order{}, 0) {
	}
}

// spawn starts a worker, if there may be one more, or extra above the limit, which
// searches for tasks if the order has none.
func (p *Pool) spawn(o order, extra int64) bool {
	for {
		size := p.size.Load()
		n := size &^ closedBit
		if n >= p.limit.Load()+extra || size == closedBit {
			return false
		}
		if p.size.CompareAndSwap(size, size+1) {
			break
		}
	}
	p.stir()
	w := p.make()
	if w.searching = o.at == 0; w.searching {
		p.searching.Add(1)
	}
	p.running.Go(func() { w.live(o) })
	return true
}

// make makes a worker, or takes one that has ended.
func (p *Pool) make() *worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.spare); n > 0 {
		w := p.spare[n-1]
		p.spare = p.spare[:n-1]
		return w
	}
	all := *p.table.Load()
	w := &worker{p: p, number: uint32(len(all) + 1), wake: make(chan order, 1)}
	w.home = len(all) & (len(p.shards) - 1)
	all = append(all, w)
	p.table.Store(&all)
	return w
}

// worker is the one with a number.
func (p *Pool) worker(number uint32) *worker { return (*p.table.Load())[number-1] }

// workers is how many there are.
func (p *Pool) workers() int64 { return p.size.Load() &^ closedBit }

// lower takes one from the number of workers, if that is above floor. The worker
// then ends.
func (p *Pool) lower(floor int64) bool {
	for {
		size := p.size.Load()
		if size&^closedBit <= floor {
			return false
		}
		if p.size.CompareAndSwap(size, size-1) {
			if size-1 == closedBit {
				close(p.ended)
			}
			p.wake()
			return true
		}
	}
}

// waiting says whether there are tasks in the queue.
func (p *Pool) waiting() bool {
	for i := range p.shards {
		if p.shards[i].top.Load() != 0 {
			return true
		}
	}
	return false
}

// roomy says whether there is room for a task: in the queue, or with a worker.
func (p *Pool) roomy() bool {
	if p.idle.n.Load() > 0 || p.workers() < p.limit.Load() {
		return true
	}
	for i := range p.shards {
		if !p.shards[i].full.Load() {
			return true
		}
	}
	return false
}

// rouse has one more worker search for tasks.
func (p *Pool) rouse() {
	if w := p.popIdle(); w != nil {
		p.send(w)
	} else if p.workers() < p.limit.Load() {
		p.spawn(order{}, 0)
	}
}

// stir wakes the tender, when a worker is given something to do.
func (p *Pool) stir() {
	if p.dozing.Load() {
		p.tender.rouse()
	}
}

// send has a parked worker search for tasks.
func (p *Pool) send(w *worker) {
	p.stir()
	w.searching = true
	p.searching.Add(1)
	w.wake <- order{}
}

// take takes the task that is next for a worker, and with a trusted one some more
// for its batch.
func (p *Pool) take(w *worker, now int64) (ok bool) {
	p.clock.Store(now)
	quick := p.trust.quick()
	mask := len(p.shards) - 1
	for round := 0; ; round++ {
		missed := false
		first, top := p.foremost(w.home)
		for i := range p.shards {
			s := &p.shards[(first+i)&mask]
			if s.top.Load() < top {
				continue
			}
			if !s.mu.TryLock() {
				if missed = true; round < tries {
					continue
				}
				s.mu.Lock()
			}
			s.flush(w)
			ok := s.take(now, top, &w.first, &w.dead)
			if ok && quick {
				s.fill(&w.batch, w.first.Priority, now)
			}
			more := quick && s.n >= maxBatch
			if ok && w.searching { // with the lock: who searches stands for room
				w.searching = false
				more = p.searching.Add(-1) == 0 && (!quick || more)
			}
			s.mu.Unlock()
			if ok {
				w.home = (first + i + 1) & mask
				w.visited.Store(now)
				w.since, w.wait = now, max(0, now-w.first.at)
				woke := p.taken(w)
				if p.pass(more, quick) || woke {
					w.since = p.now() // that took its time, which is not the job's
				}
				return true
			}
			if len(w.dead) > 0 { // there was more to shed than may be at a time
				p.taken(w)
				now, missed = p.now(), true
			}
		}
		if !missed && top == 1 {
			return false
		}
	}
}

// pass has another worker help, if it takes one: the last one that searched has found
// something, or quick jobs are many. Of these no more workers are needed than there
// are processors.
func (p *Pool) pass(more, quick bool) (woke bool) {
	woke = more && p.searching.Load() == 0 && (quick && p.active() < p.procs || !quick && p.waiting())
	if woke {
		p.rouse()
	}
	return woke
}

// tries is how often who finds all shards locked, or all with the highest priority,
// looks again before it waits for one.
const tries = 4

// foremost is a shard with a task of the highest priority that waits, the first from
// home on, and that priority, from 1: a task of a lower one is not taken as long as
// that waits, not even when the lock of its shard has to be waited for.
func (p *Pool) foremost(home int) (at int, top int32) {
	at, top = home, 1
	if !p.mixed.Load() {
		return at, top
	}
	for i := range p.shards {
		j := (home + i) & (len(p.shards) - 1)
		if prio := p.shards[j].top.Load(); prio > top {
			at, top = j, prio
		}
	}
	return at, top
}

// taken is when a worker has taken a task: there is room. It says whether somebody was
// woken, or told.
func (p *Pool) taken(w *worker) (woke bool) {
	if woke = len(w.dead) > 0; woke {
		w.dead = p.bury(w.dead, ErrShed)
	}
	return p.wake() || woke
}

// tell tells a job that it won't run. Should that panic, it is contained as if the job
// had.
func (p *Pool) tell(j Job, why error) {
	d, ok := j.(Dropper)
	if !ok {
		return
	}
	defer func() {
		if v := recover(); v != nil {
			p.report(v)
		}
	}()
	d.Dropped(why)
}

// report tells of a panic with its value, from the deferred call that has got it. One
// in what is called is lost.
func (p *Pool) report(v any) {
	if p.cfg.Panicked == nil {
		return
	}
	defer func() { _ = recover() }()
	p.cfg.Panicked(caught(v))
}

// bury tells tasks that they won't run, and forgets them.
func (p *Pool) bury(dead []Task, why error) []Task {
	for i := range dead {
		p.tell(dead[i].Job, why)
	}
	clear(dead)
	return dead[:0]
}

// Resize changes Config.Min and Max. Workers beyond Max end when their jobs have.
// The error wraps ErrBadConfig, or is ErrClosed.
func (p *Pool) Resize(least, most int) error {
	if err := checkSize(least, most); err != nil {
		return err
	}
	return p.tender.resize(least, most)
}

// Stats gives the counters.
func (p *Pool) Stats() Stats {
	n := Stats{
		Workers: int(p.workers()), Limit: int(p.limit.Load()), Idle: int(p.idle.n.Load()), Running: p.busy(),
		Overloaded: p.rule.over(p.now()),
		Accepted:   p.handed.Load(), Late: p.late.Load(), Closed: p.refused.Load(),
	}
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		n.Queued += s.n
		n.Accepted += s.pushed
		n.Finished += s.tally.finished
		n.Panicked += s.tally.panicked
		n.Expired += s.tally.expired
		n.Shed += s.tally.shed
		n.Dropped += s.tally.dropped
		n.Wait.merge(&s.tally.wait)
		n.Service.merge(&s.tally.service)
		s.mu.Unlock()
		n.Full += s.refused.Load()
	}
	for _, w := range *p.table.Load() {
		n.Queued += w.batch.size()
	}
	return n
}

// queuedNow is how many tasks wait.
func (p *Pool) queuedNow() (n int) {
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		n += s.n
		s.mu.Unlock()
	}
	return n
}

// busy is how many workers run a job, or are about to.
func (p *Pool) busy() int { return int(max(0, p.active()-int64(p.searching.Load()))) }
