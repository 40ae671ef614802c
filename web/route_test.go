package web

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// A route whose calls are quick on workers and slow on loops moves ever more rarely.
func TestRouteDoesNotFlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(route)
		for range 10 * time.Minute / time.Millisecond {
			r.recordWorkerCallOrMoveToLoop(10 * time.Microsecond)
			if r.onLoop.Load() {
				r.moveToWorkers("a test")
			}
			time.Sleep(time.Millisecond)
		}
		// It stays on workers for 1, 2, 4, 8, 16, 32 and then 60 seconds.
		if n := r.moves.Load(); n < 10 || n > 16 {
			t.Errorf("it has moved to workers %d times in 10 minutes; want 10 to 16", n)
		}
	})
}

// Some calls that are slow because the thread had no CPU do not move a route, frequent long ones do.
func TestLongCallsMoveRoute(t *testing.T) {
	r := new(route)
	r.onLoop.Store(true)
	for i := range 100_000 {
		if took := 10 * time.Microsecond; i%100 == 0 {
			r.recordLoopCallOrMoveToWorkers(quickCall)
		} else {
			r.recordLoopCallOrMoveToWorkers(took)
		}
	}
	if !r.onLoop.Load() {
		t.Error("one long call in 100 has moved the route to workers")
	}
	for range callsToMove {
		r.recordLoopCallOrMoveToWorkers(quickCall)
	}
	if r.onLoop.Load() {
		t.Errorf("%d long calls have not moved the route to workers", callsToMove)
	}
}

func TestRoutesAreLimited(t *testing.T) {
	var table routeTable
	for i := range maxRoutes {
		if table.getOrAdd(string(rune('a'+i))) == nil {
			t.Fatalf("route %d is missing", i)
		}
	}
	if table.getOrAdd("one more") != nil {
		t.Errorf("there are more than %d routes", maxRoutes)
	}
}

// A call is slow if it computes, or if it waits while the process could have run it. A call that only waits for a CPU,
// for example during garbage collection, is not slow.
func TestSlowCalls(t *testing.T) {
	all := time.Duration(min(runtime.GOMAXPROCS(0), runtime.NumCPU()))
	for name, c := range map[string]struct {
		took time.Duration
		used threadUsage
		want bool
	}{
		"computes":                            {time.Millisecond, threadUsage{CPU: time.Millisecond, ProcessCPU: time.Millisecond}, true},
		"sleeps":                              {5 * time.Millisecond, threadUsage{Sleeps: 1}, true},
		"sleeps in an otherwise busy process": {5 * time.Millisecond, threadUsage{ProcessCPU: 5 * (all - 1) * time.Millisecond, Sleeps: 1}, true},
		"has no CPU":                          {5 * time.Millisecond, threadUsage{}, false},
		"waits for goroutines":                {5 * time.Millisecond, threadUsage{ProcessCPU: 5 * all * time.Millisecond, Sleeps: 1}, false},
	} {
		if got := isSlow(c.took, c.used); got != c.want {
			t.Errorf("a call that %s is slow: %v; want %v", name, got, c.want)
		}
	}
}

// A few slow calls do not move a route, recurring ones do.
func TestRecurringSlowCallsMoveRoute(t *testing.T) {
	r := new(route)
	r.onLoop.Store(true)
	for range slowCallsToMove - 1 {
		r.recordSlowCallOrMove("a test")
	}
	if !r.onLoop.Load() {
		t.Errorf("%d slow calls have moved the route to workers; want %d to be needed", slowCallsToMove-1, slowCallsToMove)
	}
	if r.recordSlowCallOrMove("a test"); r.onLoop.Load() {
		t.Errorf("%d slow calls have not moved the route to workers", slowCallsToMove)
	}
}
