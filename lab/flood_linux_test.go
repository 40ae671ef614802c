package lab

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestAwaitQuiet has a process that does nothing, one that never stops, and one that ends.
func TestAwaitQuiet(t *testing.T) {
	o := children(t)
	l := newLauncher()
	t.Cleanup(l.close)
	l.grace = time.Second
	begin := func(part string) *measurement {
		p, err := l.start([]string{o.Self, part}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.end)
		return &measurement{runner: &runner{sampled: true}, server: &server{process: p}}
	}
	const bound = 2 * quietTime
	if err := begin("stubborn").awaitQuiet(t.Context(), time.Hour); err != nil {
		t.Errorf("a quiet process: %v", err)
	}
	busy := begin("spin")
	if err := busy.awaitQuiet(t.Context(), bound); err != nil {
		t.Errorf("a busy process: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := busy.awaitQuiet(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was cancelled", err)
	}
	busy.server.process.end()
	if err := busy.awaitQuiet(t.Context(), time.Hour); !errors.Is(err, errServerGone) {
		t.Errorf("got %v, want that the server is gone", err)
	}
}
