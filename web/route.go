package web

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// route decides whether the calls of an HTTP handler run on workers or on event loops. A route covers one pattern of an
// http.ServeMux. If the handler is not an http.ServeMux, the route covers all calls.
//
// The calls of a route run on workers until they have proved quick, and then on event loops until they have proved
// slow. If a route soon moves back to workers, its calls stay there twice as long as before. A slow call on a loop does
// not block the loop for long; see engine.LoopJob.
type route struct {
	name   string
	onLoop atomic.Bool
	// While calls run on workers, score is the number of recent quick calls. While they run on loops, it is the weight
	// of recent calls that were not quick.
	score atomic.Int32
	// measured is the number of further calls whose CPU time is measured. Measuring begins when a call on a loop was
	// long, perhaps only because its thread waited for a CPU. slowCalls counts measured calls that were long for
	// another reason.
	measured, slowCalls atomic.Int32
	takenCalls          atomic.Int32 // calls in progress that have lost their event loop
	moves               atomic.Int64 // from loops to workers

	mu       sync.Mutex
	movedAt  time.Time     // when the route last moved
	stay     time.Duration // how long the calls stay on workers
	lastMove string        // why the calls last moved to workers
}

const (
	quickCall        = 100 * time.Microsecond
	slowCall         = time.Millisecond
	callsToMove      = 200 // quick calls on workers after which a route moves to loops
	longCallWeight   = 5   // quick calls that offset one call of the duration quickCall; a longer call needs more
	scoreToMove      = 1000
	measuredCalls    = 1000
	slowCallsToMove  = 3  // a single call may be slow only because it collects garbage
	maxTakenCalls    = 16 // takenCalls at which a route moves to workers, because each of these calls has a thread
	minTimeOnWorkers = time.Second
	maxTimeOnWorkers = time.Minute
	maxRoutes        = 1024
)

// routeTable contains routes by pattern. It is safe for concurrent use.
type routeTable struct {
	byPattern   sync.Map // of *route
	count       atomic.Int32
	startOnLoop bool // for tests
}

// getOrAdd returns the route of a pattern. If the table has no such route, getOrAdd adds one. If the table already has
// maxRoutes routes, getOrAdd returns nil instead.
func (t *routeTable) getOrAdd(pattern string) (routeOrNil *route) {
	if r, ok := t.byPattern.Load(pattern); ok {
		return r.(*route)
	}
	if t.count.Load() >= maxRoutes {
		return nil
	}
	r := &route{name: pattern}
	r.onLoop.Store(t.startOnLoop)
	if known, ok := t.byPattern.LoadOrStore(pattern, r); ok {
		return known.(*route)
	}
	t.count.Add(1)
	return r
}

// isOnLoop reports whether the calls of x's route run on event loops.
func (x *exchange) isOnLoop() bool { return x.route != nil && x.route.onLoop.Load() }

// serveAndRecordOrMove serves x and measures the call. It moves the route if its calls have proved quick or slow.
func (r *route) serveAndRecordOrMove(x *exchange) {
	hold := x.loop.hold
	var before threadUsage
	measures := hold != nil && r.measured.Load() > 0
	if measures {
		if r.measured.Add(-1) == 0 {
			r.slowCalls.Store(0)
		}
		before, _ = hold.Usage()
	}
	start := x.loop.started
	if start == 0 || measures {
		start = monotonicNow()
	}
	x.serveAndFinishOrAbort()
	took := monotonicNow() - start
	switch {
	case hold == nil:
		r.recordWorkerCallOrMoveToLoop(took - time.Duration(x.waited.Load()))
	case took < slowCall:
		r.recordLoopCallOrMoveToWorkers(took)
	case !measures:
		r.measured.Store(measuredCalls)
	default:
		if now, onLoop := hold.Usage(); !onLoop { // countLoopLosingCallOrMove has counted it
		} else if isSlow(took, now.Since(before)) {
			r.recordSlowCallOrMove("a call took " + took.String())
		} else {
			r.measured.Store(r.measured.Load()/4 + 1) // measuring has a cost
		}
	}
}

// recordSlowCallOrMove counts a slow call on an event loop. The caller must not count a call that was slow only because
// it waited for a CPU. After several slow calls, recordSlowCallOrMove moves the route to workers for the given reason.
func (r *route) recordSlowCallOrMove(reason string) {
	r.measured.Store(measuredCalls)
	if r.slowCalls.Add(1) >= slowCallsToMove {
		r.moveToWorkers(reason)
	}
}

// scoreOfLongCall returns the number of quick calls that offset one call of the duration took.
func scoreOfLongCall(took time.Duration) int32 {
	return int32(longCallWeight * min(took, slowCall) / quickCall)
}

func (r *route) recordWorkerCallOrMoveToLoop(took time.Duration) {
	if r.onLoop.Load() {
		return
	}
	if took >= quickCall {
		r.score.Store(max(r.score.Load()-scoreOfLongCall(took), 0))
		return
	}
	if r.score.Add(1) < callsToMove {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.movedAt) >= r.stay && !r.onLoop.Load() {
		r.movedAt = time.Now()
		r.score.Store(0)
		r.onLoop.Store(true)
	}
}

func (r *route) recordLoopCallOrMoveToWorkers(took time.Duration) {
	if took < quickCall {
		if n := r.score.Load(); n > 0 {
			r.score.Store(n - 1)
		}
	} else if r.score.Add(scoreOfLongCall(took)) >= scoreToMove {
		r.moveToWorkers("calls took about " + took.String())
	}
}

// countLoopLosingCallOrMove counts a call that has lost its event loop, because another goroutine continues the loop.
// isSlow means that the call did not only wait for a CPU. If too many such calls are running or too many calls were
// slow, countLoopLosingCallOrMove moves the route to workers.
func (r *route) countLoopLosingCallOrMove(isSlow bool) {
	if n := r.takenCalls.Add(1); n >= maxTakenCalls {
		r.moveToWorkers(strconv.Itoa(int(n)) + " calls have not returned")
	} else if isSlow {
		r.recordSlowCallOrMove("a call has blocked the event loop")
	}
}

// moveToWorkers makes workers run the route's calls for at least one second. If the route has moved to workers before
// and soon moves there again, the calls stay there twice as long as the last time, but at most one minute.
func (r *route) moveToWorkers(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.onLoop.Load() {
		return
	}
	if time.Since(r.movedAt) > 10*r.stay {
		r.stay = 0
	}
	r.stay = min(max(2*r.stay, minTimeOnWorkers), maxTimeOnWorkers)
	r.movedAt, r.lastMove = time.Now(), reason
	r.moves.Add(1)
	r.score.Store(0)
	r.slowCalls.Store(0)
	r.onLoop.Store(false)
}

// RouteStats describes where the calls of a route run.
type RouteStats struct {
	// Pattern is the pattern of the http.ServeMux. It is "" if HTTP.Handler is not an http.ServeMux.
	Pattern string
	// OnLoop reports whether the calls run on event loops.
	OnLoop bool
	// MovedToWorkers counts the moves of the route from event loops to workers. Reason is the reason for the last move.
	MovedToWorkers int64
	Reason         string
}

// Routes returns the routes that have been called, ordered by pattern. Handlers marked as Quick or Blocking have no
// routes, because their calls do not move. Routes is safe for concurrent use.
func (h *HTTP) Routes() (all []RouteStats) {
	for _, r := range h.routes.byPattern.Range {
		r := r.(*route)
		r.mu.Lock()
		all = append(all, RouteStats{Pattern: r.name, OnLoop: r.onLoop.Load(), MovedToWorkers: r.moves.Load(), Reason: r.lastMove})
		r.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b RouteStats) int { return strings.Compare(a.Pattern, b.Pattern) })
	return all
}
