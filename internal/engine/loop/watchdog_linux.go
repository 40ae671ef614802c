package loop

import (
	"context"
	"log/slog"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// The watchdog finds loops that are stuck in a turn; a stuck loop cannot report this itself. With AutoWorkers, it then
// moves the handlers of the other loops to workers, because they may block on the same resource.

const minWatchInterval = 100 * time.Millisecond

// watchForStuckTurns reports loops that are stuck in an iteration. It returns when done is closed.
func (e *loopEngine) watchForStuckTurns(done <-chan struct{}) {
	limit := e.cfg.Limits.SlowHandlerTime
	if limit == 0 {
		return
	}
	ticker := time.NewTicker(max(limit, minWatchInterval))
	defer ticker.Stop()
	turns := make([]observedTurn, len(e.loops))
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
		}
		for i, l := range e.loops {
			l.reportAndMoveOthersIfStuck(&turns[i])
		}
	}
}

// Phases of a loop iteration.
const (
	phaseEvents int32 = iota
	phaseMail
	phaseBroadcasts
	phaseScheduler
	phaseTasks
)

var phaseNames = [...]string{
	phaseEvents:     "events: a handler has not returned, or there was no CPU",
	phaseMail:       "mail: a handler has not returned, or there was no CPU",
	phaseBroadcasts: "broadcasts",
	phaseScheduler:  "planned calls",
	phaseTasks:      "upkeep",
}

type observedTurn struct {
	clock     time.Duration // the loop's clock
	firstSeen time.Duration
	reported  bool
}

// reportAndMoveOthersIfStuck logs and counts the loop if it is stuck in an iteration. With Config.AutoWorkers, it also
// makes the other loops move their handlers to workers. lastObserved describes the iteration that the previous call has
// observed. reportAndMoveOthersIfStuck updates it.
func (l *Loop) reportAndMoveOthersIfStuck(lastObserved *observedTurn) {
	clock, now := l.host.Clock(), engine.MonotonicNow()
	if l.asleep.Load() || lastObserved.clock != clock {
		if lastObserved.reported {
			l.engine.stuckLoops.Add(-1)
		}
		*lastObserved = observedTurn{clock: clock, firstSeen: now}
		return
	}
	if stuckFor := now - lastObserved.firstSeen; !lastObserved.reported && stuckFor >= l.engine.cfg.Limits.SlowHandlerTime {
		lastObserved.reported = true
		l.engine.stuckLoops.Add(1)
		l.engine.queueMoveToWorkers(l, stuckFor)
		phase := l.phase.Load()
		if phase != phaseBroadcasts && phase != phaseTasks {
			l.counters.Add(engine.SlowCalls, 1)
		}
		l.host.Log.LogAttrs(context.Background(), slog.LevelError,
			"event loop stuck in a turn: its other connections wait",
			slog.String("phase", phaseNames[phase]),
			slog.Int("loop", l.host.Index), slog.Duration("duration", stuckFor), slog.Int64("connections", l.connCount.Load()))
	}
}

func (e *loopEngine) queueMoveToWorkers(except *Loop, stuckFor time.Duration) {
	for _, l := range e.loops {
		if e.cfg.AutoWorkers && l != except {
			l.enqueueCallAndWake(func() {
				if !l.host.OnWorkers {
					l.placement.moveHandlersToWorkers(stuckFor)
				}
			})
		}
	}
}
