package offer

import (
	"context"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// behind is how much later than due a submission counts as late.
	behind = int64(10 * time.Millisecond)
	// batch is how many jobs are submitted between two looks at all else.
	batch = 32
	// slice is how long a lane works before it sleeps for nap, also when it is
	// behind. Go's scheduler preempts who works for longer than 10 ms and
	// puts it behind all goroutines that can run; with thousands of them it
	// would not run again for seconds. One that has slept runs next, unless
	// another one's timer fires right behind; and since it has a thread of its
	// own it does not run on what is left of the time of who ran before.
	slice = int64(4 * time.Millisecond)
	nap   = 20 * time.Microsecond
	// reserves is how many lanes are in reserve. The first of them looks each
	// relief whether what is due is late by more than that, each other one
	// half as often for twice as much.
	reserves = 5
	relief   = 5 * time.Millisecond
	// mostKept is how many jobs are kept for use again; those that are made
	// while more are under way are left to the garbage collector.
	mostKept = 1 << 18
	// retry is when a closed loop offers again after a rejection.
	retry = 100 * time.Microsecond
)

// generator submits jobs: each of an open loop when it is due.
//
// It is one lane, a goroutine that sleeps until a job is due. That is enough as long
// as it runs when it is to. When the pool floods Go's scheduler with goroutines,
// or holds up the lane in a submission, the lanes in reserve take over. A job is
// submitted by who has counted it in next. So the load stays what the plan says as
// long as any lane runs, and comes from one goroutine as long as that one does.
//
// It can't be better than the scheduler that it shares with the pool: when no lane
// runs, jobs are late or missed. Both are counted, and how late they are; a job's
// latency and its deadline run from its submission all the same.
type generator struct {
	run  *run
	side Side

	next    atomic.Uint64 // the next job's number: how many were offered, also in the warm-up
	made    atomic.Uint64
	peaks   peaks
	opening atomic.Pointer[opening] // nil in the warm-up

	sampled atomic.Int64  // when sample was sent to, in ns after the start
	sample  chan struct{} // has the sampler look
	lanes   sync.WaitGroup
	done    chan struct{} // closed when all has been submitted
	finish  func()        // closes it
}

// lane is a goroutine of the generator.
type lane struct {
	*generator
	free  *Job // its own
	timer *time.Timer
}

func newGenerator(r *run, s Side) *generator {
	g := &generator{run: r, side: s, sample: make(chan struct{}, 1), done: make(chan struct{})}
	g.finish = sync.OnceFunc(func() { close(g.done) })
	return g
}

func (g *generator) newLane() *lane {
	l := &lane{generator: g, timer: time.NewTimer(time.Hour)}
	l.timer.Stop()
	return l
}

// start starts the lanes. They submit all jobs of the plan, or those up to when ctx
// ends.
func (g *generator) start(ctx context.Context) {
	if g.run.plan.Rate == 0 {
		g.lanes.Go(func() { g.newLane().closed(ctx) })
		return
	}
	g.lanes.Go(func() { g.newLane().open(ctx, 0) })
	for i := range reserves {
		g.lanes.Go(func() { g.newLane().open(ctx, relief<<i) })
	}
}

// open submits each job when it is due: job i is due i/Rate after the start. A lane
// in reserve leaves alone what is due since less than its patience. What nobody has
// got to when Drain is over is missed.
func (l *lane) open(ctx context.Context, patience time.Duration) {
	defer l.timer.Stop()
	runtime.LockOSThread() // see slice
	defer runtime.UnlockOSThread()
	total := l.run.plan.jobs()
	gap := float64(time.Second) / l.run.plan.Rate
	dueAt := func(i uint64) int64 { return int64(math.Round(float64(i) * gap)) }
	woke := l.run.now()
	for i := l.next.Load(); i < total && ctx.Err() == nil; i = l.next.Load() {
		now := l.run.now()
		l.tick(now)
		if now > l.run.limit {
			return
		}
		switch due := dueAt(i); {
		case now-woke > slice:
			l.sleep(ctx, nap)
		case patience == 0 && due > now:
			l.sleep(ctx, time.Duration(due-now))
		case patience > 0 && due+int64(patience) >= now:
			l.sleep(ctx, patience)
		default:
			for n := 0; n < batch && i < total && due <= now && !l.run.over.Load(); n++ {
				if !l.next.CompareAndSwap(i, i+1) {
					break // another lane has it
				}
				j := l.take()
				now = l.run.now()
				l.run.book(i).lag(now - due)
				l.offer(j, i, now)
				i++
				due = dueAt(i)
			}
			continue
		}
		woke = l.run.now()
	}
	l.finish()
}

// closed submits a job each time that one has ended. The window begins with the first
// one that is submitted when the warm-up is over.
func (l *lane) closed(ctx context.Context) {
	defer l.finish()
	defer l.timer.Stop()
	ctx, cancel := context.WithTimeout(ctx, l.run.plan.Warmup+l.run.plan.Duration)
	defer cancel()
	for ctx.Err() == nil {
		j := l.take()
		for j == nil {
			l.run.waiting.Store(true)
			if j = l.take(); j != nil {
				break
			}
			select {
			case <-l.run.wake:
				j = l.take()
			case <-ctx.Done():
				return
			}
		}
		now := l.run.now()
		l.tick(now)
		if now >= l.run.opens && l.run.first.Load() == unknown {
			l.run.first.Store(l.next.Load())
		}
		if !l.offer(j, l.next.Add(1)-1, l.run.now()) {
			l.sleep(ctx, retry)
		}
	}
}

// offer submits a job that next has counted, now, and says whether it was accepted.
func (l *lane) offer(j *Job, number uint64, now int64) bool {
	book := l.run.book(number)
	j.number, j.submitted, j.tally = number, now, &book.tallies[j.shard]
	j.open.Store(true)
	if j.ctx.waited.Load() {
		j.ctx = &jobContext{run: l.run}
	}
	j.ctx.at.Store(now + int64(l.run.plan.Deadline))
	answer := l.side.Try(j)
	if answer == Accepted {
		return true
	}
	book.rejected[answer].Add(1)
	if j.kept {
		j.next, l.free = l.free, j
	}
	return false
}

// take gives a job to submit: one that has ended, or a new one. It is nil when a
// closed loop has all its jobs in flight.
func (l *lane) take() *Job {
	if l.free == nil {
		l.collect()
	}
	if j := l.free; j != nil {
		l.free = j.next
		j.next = nil
		return j
	}
	made := l.made.Load()
	if l.run.plan.Rate == 0 && made == uint64(l.run.plan.inflight()) {
		return nil
	}
	l.made.Add(1)
	j := &Job{
		run:   l.run,
		shard: int(made % uint64(len(l.run.free))),
		ctx:   &jobContext{run: l.run},
		kept:  made < l.run.mostKept,
	}
	j.do = j.Do
	return j
}

// collect takes all the jobs that have ended.
func (l *lane) collect() {
	for i := range l.run.free {
		first := l.run.free[i].first.Swap(nil)
		if first == nil {
			continue
		}
		last := first
		for last.next != nil {
			last = last.next
		}
		last.next, l.free = l.free, first
	}
}

// tick looks how many goroutines there are, and has the sampler do so, now and then.
// That has no timer of its own for it as long as the lanes have one, see slice.
func (g *generator) tick(now int64) {
	if now >= g.run.opens && g.opening.Load() == nil {
		g.begin()
		g.prod()
	}
	before := g.sampled.Load()
	if now-before < int64(sampling) || !g.sampled.CompareAndSwap(before, now) {
		return
	}
	g.peaks.look(g.side)
	g.prod()
}

// prod has the sampler look.
func (g *generator) prod() {
	select {
	case g.sample <- struct{}{}:
	default: // it has not come to it yet
	}
}

// sleep waits for some time, or until ctx ends.
func (l *lane) sleep(ctx context.Context, d time.Duration) {
	l.timer.Reset(d)
	select {
	case <-l.timer.C:
	case <-ctx.Done():
		l.timer.Stop()
	}
}
