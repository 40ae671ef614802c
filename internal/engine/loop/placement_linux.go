package loop

import (
	"context"
	"log/slog"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// Where handlers run at first: on workers, until they have proved to be quick. A first
// call that waits for ever would freeze its loop otherwise, and nothing can take a loop
// over that is within a call: its ring belongs to its thread, and so do a shard's
// descriptors. A handler that has been quick and then waits for ever does so. When the
// others are told (see watch_linux.go) they move theirs, and none comes back while one is
// held.
//
// When handlers move. A turn is slow when it has taken long and the reads in it
// have taken long each: a turn of many quick calls is none. That alone does not
// say why: the thread may only have waited for a CPU. So after such a turn the
// next ones are seen through, and count only if the thread has worked that long,
// or has slept. Some of them in a row move the handlers of a loop onto workers;
// one with very slow reads is enough by itself, because with all that waits for
// it the next may take a second. There their own time is counted, and when it is
// short again they come back. Each time they move again they stay away for twice
// as long.
const (
	slowTurnTime       = 2 * time.Millisecond
	slowReadTime       = 100 * time.Microsecond
	slowTurnsToMove    = 3
	verySlowTurnTime   = 50 * time.Millisecond
	verySlowReadTime   = time.Millisecond
	quickCallTime      = 20 * time.Microsecond
	quickCallsToReturn = 1000
	minReviewInterval  = 100 * time.Millisecond
	minTimeOnWorkers   = time.Second
	maxTimeOnWorkers   = time.Minute
)

// handlerPlacement decides, for one loop, where its handlers run. It is the loop's, but for
// the times, which workers add to.
type handlerPlacement struct {
	loop           *Loop
	lastTurnSlow   bool          // the last turn looked slow
	slowTurnsInRow int           // slow turns in a row
	reviewAt       time.Duration // when to see whether handlers can come back
	timeOnWorkers  time.Duration // how long they stay away at least
	quickReviews   int           // looks in a row at which they were quick
	quickCalls     int64         // calls that these have counted
	workerTimes    engine.RunTimes
}

// handleEventsTimed polls, and moves handlers that hold the loop onto workers.
func (a *handlerPlacement) handleEventsTimed() bool {
	l := a.loop
	var workBefore sock.ThreadWork
	if a.lastTurnSlow {
		workBefore = sock.Worked()
	}
	start, before := engine.Since(), l.counters.Get(engine.Reads)
	handled := l.handleDriverEvents()
	reads := time.Duration(l.counters.Get(engine.Reads) - before)
	if reads == 0 {
		return handled // no handler was called for input
	}
	took := engine.Since() - start
	switch {
	case took < slowTurnTime || took < slowReadTime*reads:
		a.lastTurnSlow, a.slowTurnsInRow = false, 0
	case !a.lastTurnSlow:
		a.lastTurnSlow = true
	default:
		a.evaluateSlowTurn(took, reads, sock.Worked().Since(workBefore))
	}
	return handled
}

// slowTurnTime judges a turn that looked slow, as did the one before it.
func (a *handlerPlacement) evaluateSlowTurn(took, reads time.Duration, work sock.ThreadWork) {
	if work.Sleeps == 0 && (work.CPU < slowTurnTime || work.CPU < slowReadTime*reads) {
		a.slowTurnsInRow = 0
		return // it has waited for a CPU, most of the time
	}
	a.slowTurnsInRow++
	if a.slowTurnsInRow >= slowTurnsToMove || took >= verySlowTurnTime && took >= verySlowReadTime*reads {
		a.moveHandlersToWorkers(took / reads)
	}
}

// moveHandlersToWorkers has workers call the handlers from now on.
func (a *handlerPlacement) moveHandlersToWorkers(timePerRead time.Duration) {
	l := a.loop
	a.lastTurnSlow, a.slowTurnsInRow = false, 0
	a.timeOnWorkers = min(max(2*a.timeOnWorkers, minTimeOnWorkers), maxTimeOnWorkers)
	a.reviewAt, a.quickReviews, a.quickCalls = engine.Since()+a.timeOnWorkers/2, 0, 0
	a.workerTimes.Take()
	a.callHandlersOnWorkers()
	l.counters.Add(engine.Moved, 1)
	l.host.Log.LogAttrs(context.Background(), slog.LevelInfo, "handlers hold their loop: workers call them from now on",
		slog.Int("loop", l.host.Index), slog.Duration("each", timePerRead))
}

// nextDue reports false: both are looked at in turns that events bring.
func (a *handlerPlacement) nextDue() (at time.Duration, ok bool) { return 0, false }

// runIfDue has handlers come back from workers, or the loop use its own buffers.
func (a *handlerPlacement) runIfDue(now time.Duration) {
	switch {
	case !a.loop.engine.cfg.Auto:
	case a.loop.host.OnWorkers:
		a.moveHandlersBackIfQuick(now)
	default:
		a.useLoopBuffers()
	}
}

// moveHandlersBackIfQuick has the loop call the handlers, if their calls have been short: quickCallsToReturn of
// them, and at one more look, which finds that none of those begun before is still out.
func (a *handlerPlacement) moveHandlersBackIfQuick(now time.Duration) {
	l := a.loop
	if now < a.reviewAt {
		return
	}
	a.reviewAt = now + max(a.timeOnWorkers/2, minReviewInterval)
	calls, took, stuck := a.workerTimes.Take()
	switch {
	case stuck, l.engine.stuckLoops.Load() > 0, calls > 0 && took/time.Duration(calls) > quickCallTime:
		a.quickReviews, a.quickCalls = 0, 0
		return
	case calls == 0:
		return
	}
	enough := a.quickCalls >= quickCallsToReturn
	a.quickCalls += calls
	if a.quickReviews++; a.quickReviews < 2 || !enough {
		return // calls that are out may be slow ones: the next look tells
	}
	l.host.OnWorkers = false
	l.counters.Set(engine.LoopsOnWorkers, 0)
	l.host.Log.LogAttrs(context.Background(), slog.LevelInfo, "handlers are quick: their loop calls them from now on",
		slog.Int("loop", l.host.Index))
}

// useLoopBuffers uses again what is the loop's own when no worker can be using the
// host.
func (a *handlerPlacement) useLoopBuffers() {
	l := a.loop
	if l.busyConns == 0 && l.host.Buffers != engine.Buffers(&l.buffers) {
		l.host.Buffers, l.host.Direct = &l.buffers, sendDirect
	}
}

// callHandlersOnWorkers has workers call the handlers, which must not touch what is the
// loop's own.
func (a *handlerPlacement) callHandlersOnWorkers() {
	l := a.loop
	l.host.OnWorkers = true
	l.counters.Set(engine.LoopsOnWorkers, 1)
	if l.host.Buffers != engine.Buffers(&l.sharedBuffers) { // otherwise workers may be looking
		l.host.Buffers, l.host.Direct = &l.sharedBuffers, nil
	}
}
