package loop

import (
	"log/slog"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// Handlers move if they have held up their loop three times, by working or by sleeping, or once for very
// long; not if the thread only waited for a CPU.
func TestSlowTurnsMoveHandlers(t *testing.T) {
	const ms = time.Millisecond
	for name, test := range map[string]struct {
		took, reads time.Duration
		did         sock.ThreadUsage
		moves       int // the turn in which handlers move; 0 for never
	}{
		"waits for a CPU":          {5 * ms, 10, sock.ThreadUsage{CPU: ms}, 0},
		"waits long for a CPU":     {500 * ms, 1, sock.ThreadUsage{CPU: ms}, 0},
		"many quick reads":         {5 * ms, 10, sock.ThreadUsage{CPU: 999 * time.Microsecond}, 0},
		"computes":                 {5 * ms, 10, sock.ThreadUsage{CPU: 4 * ms}, 3},
		"sleeps":                   {5 * ms, 10, sock.ThreadUsage{Sleeps: 1}, 3},
		"sleeps for long":          {640 * ms, 64, sock.ThreadUsage{Sleeps: 64}, 1},
		"computes for long":        {64 * ms, 64, sock.ThreadUsage{CPU: 60 * ms}, 1},
		"long by many short calls": {60 * ms, 400, sock.ThreadUsage{CPU: 60 * ms}, 3},
	} {
		l := newLoop(&loopEngine{cfg: engine.Config{AutoWorkers: true, Log: slog.New(slog.DiscardHandler)}}, 0, sock.Eventfd{})
		moved := 0
		for turn := 1; turn <= 10 && moved == 0; turn++ {
			l.placement.moveToWorkersAfterSlowTurns(test.took, test.reads, test.did)
			if l.host.OnWorkers {
				moved = turn
			}
		}
		if moved != test.moves {
			t.Errorf("%s: handlers move in turn %d, want %d", name, moved, test.moves)
		}
	}
}
