package offer

import (
	"context"
	"errors"
	"reflect"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/pool"
)

// warm is a plan with a warm-up of half a second.
func warm(rate float64, duration, wait time.Duration) Plan {
	p := plan(rate, duration, wait)
	p.Warmup = 500 * time.Millisecond
	return p
}

// TestWarmup has jobs of the warm-up come to every end there is, also when the window
// has begun: none of them is counted, and all of the window are.
func TestWarmup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := warm(100, time.Second, 0)
		p.Deadline = 30 * time.Millisecond
		var ran atomic.Int64
		lines := runs(t, t.Context(), p, func(j *Job) Answer {
			do := func(after time.Duration) {
				time.AfterFunc(after, func() {
					j.Do()
					ran.Add(1)
				})
			}
			if j.number >= 50 {
				do(20 * time.Millisecond)
				return Accepted
			}
			switch j.number % 5 {
			case 0:
				return Full
			case 1:
				j.Dropped(pool.ErrExpired)
			case 2:
				j.Dropped(pool.ErrShed)
			case 3:
				do(20 * time.Millisecond)
			case 4:
				do(40 * time.Millisecond)
			}
			return Accepted
		})
		r := last(lines)
		got := []uint64{r.Offered, r.Accepted, r.Finished, r.Good, r.Rejected, r.Expired, r.Shed, r.Unfinished, r.Missed}
		if want := []uint64{100, 100, 100, 100, 0, 0, 0, 0, 0}; !reflect.DeepEqual(got, want) || r.Causes != nil {
			t.Errorf("got %v and %v, want %v: those of the window", got, r.Causes, want)
		}
		// Two jobs of the warm-up end in the window, one of them late. Two of the
		// window end when it is over.
		if ran.Load() != 120 || r.Steady != 99 || r.Max != 20*time.Millisecond || r.Mean != 20*time.Millisecond {
			t.Errorf("%d ran, %d within the window, in %v, at most %v; want 120, 99, 20ms", ran.Load(), r.Steady, r.Mean, r.Max)
		}
		if r.Warmup != p.Warmup || r.Duration != time.Second || r.Elapsed < 1010*time.Millisecond || r.Elapsed > 1010*time.Millisecond+polling {
			t.Errorf("%v after %v, took %v; want 1s after 500ms, and 1.01s", r.Duration, r.Warmup, r.Elapsed)
		}
		w := lines[0].Warming
		if w == nil || w.Elapsed != reporting || w.Offered < 25 || w.Offered > 26 || w.Rejected < 5 || w.Expired != 5 || w.Shed != 5 || w.Finished < 8 {
			t.Errorf("got %+v, want a line of what the warm-up has counted", w)
		}
		for i, l := range lines[1 : len(lines)-1] { // from 500 ms on
			if l.Progress == nil || l.Progress.Elapsed != time.Duration(i)*reporting || l.Progress.Offered > uint64(i)*25+1 {
				t.Errorf("line %d is %+v, want progress of the window after %v", i+1, l, time.Duration(i)*reporting)
			}
		}
		if len(lines) != 7 {
			t.Errorf("%d lines, want one of the warm-up, five of progress and a result", len(lines))
		}
	})
}

// TestWarmupEnds ends a run in its warm-up: nothing is counted.
func TestWarmupEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(300*time.Millisecond, func() { cancel(errors.New("for a reason")) })
		lines := runs(t, ctx, warm(100, time.Second, 0), func(j *Job) Answer { return Full })
		r := last(lines)
		if r.Offered != 0 || r.Rejected != 0 || r.Elapsed != 0 || r.CPUUser != 0 || r.Overran == "" {
			t.Errorf("got %+v, want nothing counted, and why", r)
		}
		if len(lines) != 2 || lines[0].Warming == nil {
			t.Errorf("got %+v, want a line of the warm-up before", lines)
		}
	})
}

// TestWarmupClosedLoop measures the settled state of four workers that take 10 ms for
// each job.
func TestWarmupClosedLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := warm(0, time.Second, 10*time.Millisecond)
		p.Pool, p.Workers, p.Queue, p.Inflight = "channel", 4, 8, 8
		r := last(runSides(t, t.Context(), p, Own()))
		// What is submitted in the window is what has ended in it.
		if r.Offered < 400 || r.Offered > 404 || r.Finished != r.Offered || r.Steady < 400 || r.Steady > 404 || r.Max != 20*time.Millisecond {
			t.Errorf("got %+v; want some 400 offered, finished and steady, 20 ms each", r)
		}
		if r.Elapsed < time.Second || r.Elapsed > 1020*time.Millisecond+polling {
			t.Errorf("took %v, want a little more than 1s", r.Elapsed)
		}
	})
}

// TestWarmWorkers has the number of workers at the end of the warm-up: not the last
// one, nor the first.
func TestWarmWorkers(t *testing.T) {
	for _, warmup := range []time.Duration{0, 500 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			p := plan(20, time.Second, 0)
			p.Warmup = warmup
			begin := time.Now()
			sides := Sides{"fake": func(Plan) (Side, error) {
				return aged{fake{func(*Job) Answer { return Full }}, begin}, nil
			}}
			r := last(runSides(t, t.Context(), p, sides))
			if r.WarmWorkers != int(warmup/time.Millisecond) || r.PeakWorkers < int((warmup+900*time.Millisecond)/time.Millisecond) {
				t.Errorf("%d workers at the end of the warm-up of %v, %d at most", r.WarmWorkers, warmup, r.PeakWorkers)
			}
		})
	}
}

// aged has a worker more each millisecond.
type aged struct {
	fake
	since time.Time
}

func (a aged) Workers() int { return int(time.Since(a.since) / time.Millisecond) }

// TestWarmupCPU leaves out the processor time of the warm-up.
func TestWarmupCPU(t *testing.T) {
	p := warm(10, 200*time.Millisecond, 0)
	begin := time.Now()
	r := last(runs(t, t.Context(), p, func(j *Job) Answer {
		for j.number == 0 && time.Since(begin) < 300*time.Millisecond {
		}
		return Full
	}))
	if used := r.CPUUser + r.CPUSystem; used > 150*time.Millisecond {
		t.Errorf("the window has used %v of processor time, want next to none", used)
	}
}
