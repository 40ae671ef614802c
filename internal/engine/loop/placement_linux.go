package loop

import (
	"context"
	"log/slog"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// Limits that decide where handlers run if Config.AutoWorkers is set: on their event loop or on workers.
//
// Handlers start on workers, because a call that blocks forever would freeze a loop. Quick handlers move to the loop.
// Several slow loop iterations in a row, or a very slow one, move the handlers back to workers. An iteration is slow if
// both its total time and its time per read are long. Each move to workers doubles the minimum time on workers, up to
// maxTimeOnWorkers.
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

// handlerPlacer decides whether the handlers of one loop run on the loop or on workers. Workers access the field
// workerTimes. Only the loop accesses the other fields.
type handlerPlacer struct {
	loop           *Loop
	lastTurnSlow   bool
	slowTurnsInRow int
	reviewAt       time.Duration // when to check whether handlers can return
	timeOnWorkers  time.Duration // minimum time that handlers stay on workers
	quickReviews   int           // consecutive reviews with quick calls
	quickCalls     int64         // calls in these consecutive reviews
	// workerTimes is updated by workers.
	workerTimes engine.WorkerCallTimes
}

func (a *handlerPlacer) handleEventsAndMoveIfSlow() (handledAny bool) {
	l := a.loop
	var workBefore sock.ThreadUsage
	if a.lastTurnSlow {
		workBefore = sock.CurrentThreadUsage()
	}
	start, before := engine.MonotonicNow(), l.counters.Get(engine.Reads)
	handled := l.handleEventsAndReadBulk()
	reads := time.Duration(l.counters.Get(engine.Reads) - before)
	if reads == 0 {
		return handled // no handler was called for input
	}
	took := engine.MonotonicNow() - start
	switch {
	case took < slowTurnTime || took < slowReadTime*reads:
		a.lastTurnSlow, a.slowTurnsInRow = false, 0
	case !a.lastTurnSlow:
		a.lastTurnSlow = true
	default:
		a.moveToWorkersAfterSlowTurns(took, reads, sock.CurrentThreadUsage().Since(workBefore))
	}
	return handled
}

// moveToWorkersAfterSlowTurns counts a slow loop iteration with the duration took. After several slow iterations in a
// row, or after a very slow iteration, it moves the handlers to workers. If the iteration was slow only because the
// thread waited for a CPU, the count starts again at 0.
func (a *handlerPlacer) moveToWorkersAfterSlowTurns(took, numReads time.Duration, threadUsage sock.ThreadUsage) {
	if threadUsage.Sleeps == 0 && (threadUsage.CPU < slowTurnTime || threadUsage.CPU < slowReadTime*numReads) {
		a.slowTurnsInRow = 0
		return // the loop has mostly waited for a CPU
	}
	a.slowTurnsInRow++
	if a.slowTurnsInRow >= slowTurnsToMove || took >= verySlowTurnTime && took >= verySlowReadTime*numReads {
		a.moveHandlersToWorkers(took / numReads)
	}
}

// moveHandlersToWorkers makes workers call the loop's handlers. timePerRead is only logged.
func (a *handlerPlacer) moveHandlersToWorkers(timePerRead time.Duration) {
	l := a.loop
	a.lastTurnSlow, a.slowTurnsInRow = false, 0
	a.timeOnWorkers = min(max(2*a.timeOnWorkers, minTimeOnWorkers), maxTimeOnWorkers)
	a.reviewAt, a.quickReviews, a.quickCalls = engine.MonotonicNow()+a.timeOnWorkers/2, 0, 0
	a.workerTimes.TakeTotals()
	a.switchToWorkers()
	l.counters.Add(engine.MovedToWorkers, 1)
	l.host.Log.LogAttrs(context.Background(), slog.LevelInfo, "handlers moved to workers: they held up their event loop",
		slog.Int("loop", l.host.Index), slog.Duration("time_per_read", timePerRead))
}

func (a *handlerPlacer) nextDue() (at time.Duration, ok bool) { return 0, false }

// runIfDue moves the handlers back from workers to the loop if the handlers have become quick.
func (a *handlerPlacer) runIfDue(now time.Duration) {
	switch {
	case !a.loop.engine.cfg.AutoWorkers:
	case a.loop.host.OnWorkers:
		a.moveHandlersToLoopIfQuick(now)
	default:
		a.useUnsharedBuffersIfNoConnBusy()
	}
}

func (a *handlerPlacer) moveHandlersToLoopIfQuick(now time.Duration) {
	l := a.loop
	if now < a.reviewAt {
		return
	}
	a.reviewAt = now + max(a.timeOnWorkers/2, minReviewInterval)
	calls, took, stuck := a.workerTimes.TakeTotals()
	switch {
	case stuck, l.engine.stuckLoops.Load() > 0, calls > 0 && took/time.Duration(calls) > quickCallTime:
		a.quickReviews, a.quickCalls = 0, 0
		return
	case calls == 0:
		return
	}
	hadEnoughCalls := a.quickCalls >= quickCallsToReturn
	a.quickCalls += calls
	if a.quickReviews++; a.quickReviews < 2 || !hadEnoughCalls {
		return // calls in progress may be slow, which the next review will show
	}
	l.host.OnWorkers = false
	l.counters.Set(engine.LoopsOnWorkers, 0)
	l.host.Log.LogAttrs(context.Background(), slog.LevelInfo, "handlers moved to their event loop: their calls are quick",
		slog.Int("loop", l.host.Index))
}

func (a *handlerPlacer) useUnsharedBuffersIfNoConnBusy() {
	l := a.loop
	if l.busyConns == 0 && l.host.Buffers != engine.BufferPool(&l.buffers) {
		l.host.Buffers, l.host.SendDirect = &l.buffers, sendDirect
	}
}

func (a *handlerPlacer) switchToWorkers() {
	l := a.loop
	l.host.OnWorkers = true
	l.counters.Set(engine.LoopsOnWorkers, 1)
	if l.host.Buffers != engine.BufferPool(&l.sharedBuffers) { // otherwise both are set, and workers may read them
		l.host.Buffers, l.host.SendDirect = &l.sharedBuffers, nil
	}
}
