package offer

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/pool"
)

// TestSchedule has every job submitted when it is due. While the pool holds up a
// submission, others take over.
func TestSchedule(t *testing.T) {
	const hold = 100 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		at := map[uint64]time.Duration{}
		start := time.Now()
		r := last(runs(t, t.Context(), plan(1000, time.Second, 0), func(j *Job) Answer {
			mu.Lock()
			at[j.number] = time.Since(start)
			mu.Unlock()
			if j.number == 500 {
				time.Sleep(hold)
			}
			return Full
		}))
		if len(at) != 1000 || r.Offered != 1000 || r.Rejected != 1000 || r.Missed != 0 || r.Late != 0 {
			t.Fatalf("%d jobs submitted, %+v; want 1,000, none late", len(at), r)
		}
		for i, got := range at {
			due := time.Duration(i) * time.Millisecond
			held := i > 500 && due < 500*time.Millisecond+hold
			if most := due + 2*relief; got < due || got > most || (got > due && !held) {
				t.Fatalf("job %d was submitted after %v, want %v (while held up, to %v)", i, got, due, most)
			}
		}
	})
}

// TestLate has the pool hold up every submission: what is due is submitted late, or
// missed.
func TestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := plan(100, 2*time.Second, 0)
		p.Drain = 500 * time.Millisecond
		r := last(runs(t, t.Context(), p, func(*Job) Answer {
			time.Sleep(500 * time.Millisecond)
			return Full
		}))
		const lanes = 1 + reserves
		if r.LateP99 < time.Second || r.LateP99 > 2500*time.Millisecond {
			t.Errorf("late by %v; want seconds", r.LateP99)
		}
		if r.Offered+r.Missed != 200 || r.Offered < 4*lanes || r.Offered > 6*lanes || r.Late < 3*lanes || r.Late > r.Offered {
			t.Errorf("%d offered, %d late, %d missed; want 4 to 6 by each of %d lanes, most late, and 200 in all", r.Offered, r.Late, r.Missed, lanes)
		}
	})
}

// TestLatency follows each job through one worker and a queue of two. They are
// due each 10 ms and take 23 ms.
func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := plan(100, 100*time.Millisecond, 23*time.Millisecond)
		p.Pool, p.Queue, p.Deadline = "channel", 2, 49*time.Millisecond
		r := last(runSides(t, t.Context(), p, Own()))
		ms := time.Millisecond
		want := &Result{
			Pool: "channel", Work: Published, Rate: 100, Duration: 100 * ms, Iterations: 1,
			Offered: 10, Accepted: 6, Rejected: 4, Causes: map[string]uint64{"full": 4},
			// Submitted at 0, 10, 20, 30, 50 and 70 ms, ended at 23, 46, 69, 92, 115
			// and 138: 23, 36, 49, 62, 65 and 68 ms later.
			Finished: 6, Good: 3, Steady: 3, P99: 68 * ms, P999: 68 * ms, Max: 68 * ms, Mean: 50*ms + 500*time.Microsecond,
			PeakWorkers: 1,
		}
		within := func(got *time.Duration, least, most time.Duration) {
			t.Helper()
			if *got < least || *got > most {
				t.Errorf("%v, want %v to %v", *got, least, most)
			}
			*got = 0
		}
		within(&r.P50, 49*ms, 49*ms*1008/1000)
		within(&r.P99, want.P99, want.P99*1008/1000)
		within(&r.P999, want.P999, want.P999*1008/1000)
		within(&r.Elapsed, 138*ms, 138*ms+polling)
		want.P99, want.P999 = 0, 0
		if r.PeakGoroutines < 2 || r.CPUUser < 0 || r.CPUSystem < 0 {
			t.Errorf("got %+v", r)
		}
		r.PeakGoroutines, r.PeakRSS, r.CPUUser, r.CPUSystem = 0, 0, 0, 0
		if !reflect.DeepEqual(r, want) {
			t.Errorf("got  %+v\nwant %+v", r, want)
		}
	})
}

// TestOwn runs the sides with few jobs and no room for all of them.
func TestOwn(t *testing.T) {
	for name := range Own() {
		for _, work := range Shapes() {
			t.Run(name+" "+work, func(t *testing.T) {
				p := plan(2000, 100*time.Millisecond, -1)
				p.Pool, p.Work, p.Workers, p.Queue, p.Bytes, p.Iterations = name, work, 2, 3, -1, 1000
				p.Deadline = time.Minute // also on a machine that is busy
				r := last(runSides(t, t.Context(), p, Own()))
				if r.Offered != 200 || r.Finished == 0 || r.Unfinished != 0 || r.Overran != "" {
					t.Errorf("got %+v", r)
				}
				if name == "naive" && r.Finished != 200 {
					t.Errorf("%d finished of 200", r.Finished)
				}
			})
		}
	}
}

// TestEnds has jobs end in each way, and some not at all: those are waited for
// as long as the plan says, and no longer.
func TestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		r := last(runs(t, t.Context(), plan(100, time.Second, 5*time.Millisecond), func(j *Job) Answer {
			n++
			switch n % 10 {
			case 0:
				return Full
			case 1:
				return Late
			case 2:
				j.Dropped(fmt.Errorf("%w, really", pool.ErrExpired))
			case 3, 4:
				j.Dropped(pool.ErrShed)
			case 5:
				j.Dropped(pool.ErrClosed)
			case 6:
				// kept
			default:
				go j.Run(t.Context())
			}
			return Accepted
		}))
		got := []uint64{r.Offered, r.Rejected, r.Expired, r.Shed, r.Unfinished, r.Finished, r.Causes["full"], r.Causes["expired"]}
		if want := []uint64{100, 20, 10, 20, 20, 30, 10, 10}; !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if r.Elapsed != 6*time.Second || r.Overran != "" {
			t.Errorf("ended after %v (%q), want 6s", r.Elapsed, r.Overran)
		}
	})
}

// TestAfterTheEnd has jobs begin and end after the result: they do nothing, and are
// not counted.
func TestAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hold
		r := last(runs(t, t.Context(), plan(100, time.Second, time.Hour), h.try))
		before := time.Now()
		for _, j := range h.jobs {
			j.Do()
		}
		if took := time.Since(before); took > 0 {
			t.Errorf("%d jobs took %v after the end", len(h.jobs), took)
		}
		if r.Unfinished != 100 {
			t.Errorf("%d unfinished, want 100", r.Unfinished)
		}
	})
}

// TestHang has a pool that does not answer.
func TestHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lanes = 1 + reserves
		answer := make(chan Answer)
		begin := time.Now()
		r := last(runs(t, t.Context(), plan(100, time.Second, 0), func(*Job) Answer { return <-answer }))
		if r.Offered != lanes || r.Unfinished != lanes || r.Missed != 100-lanes || !strings.Contains(r.Overran, "had not returned") {
			t.Errorf("got %+v; want a job of each of %d lanes, and why", r, lanes)
		}
		if took, want := time.Since(begin), 6*time.Second+maxHang; took != want {
			t.Errorf("it took %v, want %v", took, want)
		}
		for range lanes {
			answer <- Full
		}
	})
}

// TestEndsEarly ends a run by its context, while jobs are offered and while the
// last ones are waited for.
func TestEndsEarly(t *testing.T) {
	for _, after := range []time.Duration{505 * time.Millisecond, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(after, func() { cancel(errors.New("for a reason")) })
			var h hold
			r := last(runs(t, ctx, plan(100, time.Second, 0), h.try))
			if r.Elapsed != after || r.Overran != "ended from outside: for a reason" {
				t.Errorf("ended after %v: %q, want %v and the reason", r.Elapsed, r.Overran, after)
			}
			if want := min(51, uint64(after/(10*time.Millisecond))+1); after < time.Second && r.Offered != want {
				t.Errorf("%d offered, want %d", r.Offered, want)
			}
		})
	}
}

// TestProgress has a line each quarter of a second.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hold
		p := plan(100, 875*time.Millisecond, 0)
		p.Drain = 0
		lines := runs(t, t.Context(), p, h.try)
		if len(lines) != 4 {
			t.Fatalf("%d lines, want 3 of progress and a result", len(lines))
		}
		for i, l := range lines[:3] {
			if want := time.Duration(i+1) * 250 * time.Millisecond; l.Progress == nil || l.Progress.Elapsed != want || l.Progress.Offered < uint64(i+1)*25 {
				t.Errorf("line %d is %+v, want progress after %v", i, l, want)
			}
		}
	})
}

// TestBadWriter has the reader of the lines go away.
func TestBadWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("gone")
		sides := Sides{"fake": func(Plan) (Side, error) { return fake{func(*Job) Answer { return Full }}, nil }}
		if err := Run(t.Context(), plan(10, 2*time.Second, 0), sides, failing{gone}); !errors.Is(err, gone) {
			t.Errorf("got %v, want %v", err, gone)
		}
	})
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// TestBadSide has a pool that can't be made.
func TestBadSide(t *testing.T) {
	bad := errors.New("bad")
	sides := Sides{"fake": func(Plan) (Side, error) { return nil, bad }}
	if err := Run(t.Context(), plan(10, time.Second, 0), sides, nil); !errors.Is(err, bad) || !strings.Contains(err.Error(), "fake") {
		t.Errorf("got %v, want %v", err, bad)
	}
}

// TestClosedLoop has as many jobs in flight as it is to, always.
func TestClosedLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := plan(0, time.Second, 9*time.Millisecond)
		p.Pool, p.Workers, p.Queue, p.Inflight = "channel", 4, 8, 8
		r := last(runSides(t, t.Context(), p, Own()))
		// Each of the workers does one in 9 ms, up to what is in flight when
		// the second is over.
		if r.Finished < 444 || r.Finished > 452 || r.Unfinished != 0 || r.Rejected != 0 || r.Max != 18*time.Millisecond {
			t.Errorf("got %+v; want some 448 finished, 18 ms each", r)
		}
	})
}

// TestClosedLoopRejected does not spin at a pool that rejects.
func TestClosedLoopRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := last(runs(t, t.Context(), plan(0, time.Second, 0), func(*Job) Answer { return Exceeded }))
		if want := uint64(time.Second / retry); r.Offered < want || r.Offered > want+1 || r.Causes["limit"] != r.Offered {
			t.Errorf("%d offered, %v; want %d, and perhaps one at the end", r.Offered, r.Causes, want)
		}
	})
}
