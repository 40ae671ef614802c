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

// minWatch is the shortest time between two looks at the loops.
const minWatch = 100 * time.Millisecond

// watch looks at the loops' clocks now and then, until all have ended. A loop
// that is awake sets its own at each turn.
func (g *group) watch(ended <-chan struct{}) {
	limit := g.cfg.Limits.SlowHandlerTime
	if limit == 0 {
		return
	}
	ticker := time.NewTicker(max(limit, minWatch))
	defer ticker.Stop()
	turns := make([]observedTurn, len(g.loops))
	for {
		select {
		case <-ended:
			return
		case <-ticker.C:
		}
		for i, l := range g.loops {
			l.judgeTurn(&turns[i])
		}
	}
}

// What a loop may be doing when it is held up.
const (
	events int32 = iota
	mail
	broadcasts
	planned
	upkeep
)

// doingNames say so in logs.
var doingNames = [...]string{
	events:     "events: a handler has not returned, or there was no CPU",
	mail:       "mail: a handler has not returned, or there was no CPU",
	broadcasts: "broadcasts",
	planned:    "planned calls",
	upkeep:     "upkeep",
}

// observedTurn is a turn that was under way at a look.
type observedTurn struct {
	clock time.Duration // of the loop
	at    time.Duration // when it was first seen
	told  bool
}

// judgeTurn reports a loop that is in the same turn as at the last look.
func (l *Loop) judgeTurn(turn *observedTurn) {
	clock, now := l.host.Clock(), engine.MonotonicNow()
	if l.asleep.Load() || turn.clock != clock {
		if turn.told {
			l.group.stuck.Add(-1)
		}
		*turn = observedTurn{clock: clock, at: now}
		return
	}
	if held := now - turn.at; !turn.told && held >= l.group.cfg.Limits.SlowHandlerTime {
		turn.told = true
		l.group.stuck.Add(1)
		l.group.moveOthers(l, held)
		doing := l.doing.Load()
		if doing != broadcasts && doing != upkeep {
			l.counters.Add(engine.SlowCalls, 1)
		}
		l.host.Log.LogAttrs(context.Background(), slog.LevelError,
			"an event loop is held up in one turn; its other connections wait",
			slog.String("doing", doingNames[doing]),
			slog.Int("loop", l.host.Index), slog.Duration("for", held), slog.Int64("connections", l.used.Load()))
	}
}

// moveOthers has workers call the handlers of all loops but one, under Auto.
func (g *group) moveOthers(but *Loop, held time.Duration) {
	for _, l := range g.loops {
		if g.cfg.AutoWorkers && l != but {
			l.addChore(func() {
				if !l.host.OnWorkers {
					l.auto.moveAway(held)
				}
			})
		}
	}
}
