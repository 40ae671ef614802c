package loop

import (
	"context"
	"log/slog"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file finds loops that are stuck in one turn: what a loop measures itself it
// can only tell when the turn is over. Under Auto the others then leave their handlers to
// workers: what this one waits for may hold them up too.

// minWatchInterval is the shortest time between two looks at the loops.
const minWatchInterval = 100 * time.Millisecond

// watchForStuckTurns looks at the loops' clocks now and then, until all have ended. A loop
// that is awake sets its own at each turn.
func (e *loopEngine) watchForStuckTurns(ended <-chan struct{}) {
	limit := e.cfg.Limits.HandlerTime
	if limit == 0 {
		return
	}
	ticker := time.NewTicker(max(limit, minWatchInterval))
	defer ticker.Stop()
	turns := make([]observedTurn, len(e.loops))
	for {
		select {
		case <-ended:
			return
		case <-ticker.C:
		}
		for i, l := range e.loops {
			l.reportStuckTurn(&turns[i])
		}
	}
}

// What a loop may be doing when it is held up.
const (
	phaseEvents int32 = iota
	phaseMail
	phaseBroadcasts
	phasePacing
	phaseTasks
)

// phaseNames say so in logs.
var phaseNames = [...]string{
	phaseEvents:     "events: a handler has not returned, or there was no CPU",
	phaseMail:       "mail: a handler has not returned, or there was no CPU",
	phaseBroadcasts: "broadcasts",
	phasePacing:     "planned calls",
	phaseTasks:      "upkeep",
}

// observedTurn is a turn that was under way at a look.
type observedTurn struct {
	clock     time.Duration // of the loop
	firstSeen time.Duration // when it was first seen
	reported  bool
}

// reportStuckTurn reports a loop that is in the same turn as at the last look.
func (l *Loop) reportStuckTurn(seen *observedTurn) {
	clock, now := l.host.Clock(), engine.Since()
	if l.asleep.Load() || seen.clock != clock {
		if seen.reported {
			l.engine.stuckLoops.Add(-1)
		}
		*seen = observedTurn{clock: clock, firstSeen: now}
		return
	}
	if held := now - seen.firstSeen; !seen.reported && held >= l.engine.cfg.Limits.HandlerTime {
		seen.reported = true
		l.engine.stuckLoops.Add(1)
		l.engine.moveOtherHandlersToWorkers(l, held)
		phase := l.phase.Load()
		if phase != phaseBroadcasts && phase != phaseTasks {
			l.counters.Add(engine.Slow, 1)
		}
		l.host.Log.LogAttrs(context.Background(), slog.LevelError,
			"an event loop is held up in one turn; its other connections wait",
			slog.String("doing", phaseNames[phase]),
			slog.Int("loop", l.host.Index), slog.Duration("for", held), slog.Int64("connections", l.connCount.Load()))
	}
}

// moveOtherHandlersToWorkers has workers call the handlers of all loops but one, under Auto.
func (e *loopEngine) moveOtherHandlersToWorkers(except *Loop, held time.Duration) {
	for _, l := range e.loops {
		if e.cfg.Auto && l != except {
			l.enqueueCall(func() {
				if !l.host.OnWorkers {
					l.placement.moveHandlersToWorkers(held)
				}
			})
		}
	}
}
