package offer

import (
	"context"
	"fmt"
	"io"
	"math"
	"runtime/debug"
	"sync/atomic"
	"time"
)

const (
	// look is how often it is looked whether the last jobs have ended.
	look = time.Millisecond
	// hang is how long submissions that are under way at the end are waited for.
	hang = 3 * time.Second
	// unknown is the number of the first job of the window of a closed loop, as
	// long as that has not been submitted.
	unknown = math.MaxUint64
	// closing is how long the pool's Close is waited for.
	closing = 2 * time.Second
)

// run is what all who take part in a run share.
type run struct {
	plan     Plan
	tasks    *tasks
	free     []freeList
	mostKept uint64
	start    time.Time
	opens    int64       // ns after the start: when the window begins
	limit    int64       // ns after the start: what ends later is not counted
	over     atomic.Bool // from now on jobs do nothing and are not counted

	// A job is of the warm-up or of the window, by its number: from first on.
	warming, window book
	first           atomic.Uint64

	// A closed loop that has nothing to submit sets waiting; who ends a job
	// and clears it again, wakes it.
	waiting atomic.Bool
	wake    chan struct{}
}

// freeList has jobs that can be used again.
type freeList struct {
	first atomic.Pointer[Job]
	_     [128]byte
}

func newRun(p Plan) *run {
	r := &run{
		plan:     p,
		tasks:    p.tasks(p.Iterations),
		free:     make([]freeList, shards()),
		mostKept: mostKept,
		opens:    int64(p.Warmup),
		limit:    int64(p.Warmup + p.Duration + p.Drain),
		start:    time.Now(),
		wake:     make(chan struct{}, 1),
	}
	r.warming.init()
	r.window.init()
	r.first.Store(p.due(p.Warmup))
	if p.Rate == 0 {
		r.first.Store(unknown)
	}
	return r
}

// within says whether a time is in the window.
func (r *run) within(now int64) bool {
	return now >= r.opens && now < r.opens+int64(r.plan.Duration)
}

// now is the time since the start in ns.
func (r *run) now() int64 { return int64(time.Since(r.start)) }

// woken wakes the closed loop, if it waits.
func (r *run) woken() {
	if r.waiting.Load() && r.waiting.CompareAndSwap(true, false) {
		select {
		case r.wake <- struct{}{}:
		default: // it has not seen the last one yet
		}
	}
}

// Run offers the jobs of a plan to one of the sides, and writes a Line each
// quarter of a second and at last one with the Result. When ctx ends it does so early. It does not
// wait for a pool that hangs: goroutines of it may be left then.
//
// The error is a PlanError for a plan that makes no sense.
func Run(ctx context.Context, p Plan, sides Sides, out io.Writer) error {
	if err := p.Check(sides); err != nil {
		return err
	}
	if p.Memory > 0 {
		defer debug.SetMemoryLimit(debug.SetMemoryLimit(p.Memory / 10 * 9))
	}
	if p.Iterations == 0 {
		p.Iterations = Iterations()
	}
	side, err := sides[p.Pool](p)
	if err != nil {
		return fmt.Errorf("offer: making the pool %s: %w", p.Pool, err)
	}
	return newRun(p).offer(ctx, side, out)
}

// offer runs the generator and the sampler, writes the result and ends the side.
func (r *run) offer(ctx context.Context, side Side, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g := newGenerator(r, side)
	s := startSampler(r, g, out)
	g.start(ctx)
	overran := r.wait(ctx, g)
	r.over.Store(true)
	end := min(r.now(), r.limit)
	cancel()
	answered := g.settle()
	err := s.stop()
	g.peaks.look(side)
	result := s.result(&r.window)
	result.Elapsed, result.Overran = r.elapsed(end), overran
	result.Missed = g.missed(&r.window, end)
	if !answered {
		result.Overran = fmt.Sprintf("a submission had not returned %v after the end", hang)
	}
	if err == nil {
		err = Line{Result: result}.Write(out)
	}
	if answered { // a pool may not be closed while a submission is under way
		r.close(side)
	}
	return err
}

// wait waits until all jobs have been submitted and have ended, or for as long as
// the plan says. It returns why that was early, if it was.
func (r *run) wait(ctx context.Context, g *generator) (overran string) {
	end := time.NewTimer(time.Duration(r.limit))
	defer end.Stop()
	select {
	case <-g.done:
	case <-end.C:
		return ""
	case <-ctx.Done():
		return fmt.Sprintf("ended from outside: %v", context.Cause(ctx))
	}
	tick := time.NewTicker(look)
	defer tick.Stop()
	for r.window.ended() < g.accepted(&r.window) {
		select {
		case <-tick.C:
		case <-end.C:
			return ""
		case <-ctx.Done():
			return fmt.Sprintf("ended from outside: %v", context.Cause(ctx))
		}
	}
	return ""
}

// settle waits for the lanes, within a bound, and says whether they have ended.
func (g *generator) settle() bool {
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		g.lanes.Wait()
	}()
	select {
	case <-settled:
		return true
	case <-time.After(hang):
		return false
	}
}

// close ends the side and waits for it, within a bound.
func (r *run) close(side Side) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		side.Close()
	}()
	select {
	case <-closed:
	case <-time.After(closing):
	}
}

// elapsed is the time since the beginning of the window, at a time after the start.
func (r *run) elapsed(now int64) time.Duration { return time.Duration(max(0, now-r.opens)) }

// result is what a book has counted so far. What is a part is read before what it is a
// part of, so that the sums are right at any time.
func (r *run) result(g *generator, b *book) *Result {
	p := &r.plan
	now := r.now()
	res := &Result{
		Pool: p.Pool, Work: p.Work, Rate: p.Rate, Warmup: p.Warmup, Duration: p.Duration,
		Elapsed: r.elapsed(now), Iterations: p.Iterations,
	}
	if b == &r.warming {
		res.Elapsed = time.Duration(now)
	} else {
		res.Steady = r.warming.steady() + r.window.steady()
	}
	collect(b.tallies, res)
	for i := range b.rejected {
		if n := b.rejected[i].Load(); n > 0 {
			if res.Causes == nil {
				res.Causes = map[string]uint64{}
			}
			res.Causes[causes[i]] = n
			res.Rejected += n
		}
	}
	res.Late = b.late.Load()
	var late counts
	res.LateP99 = time.Duration(late.quantile(0.99, late.add(&b.lateness)))
	res.Missed = g.missed(b, now)
	res.Offered = g.offered(b)
	res.Accepted = res.Offered - res.Rejected
	res.Unfinished = res.Accepted - res.Finished - res.Expired - res.Shed
	if res.Unfinished > math.MaxUint64/2 {
		panic("offer: more jobs have ended than were accepted")
	}
	return res
}
