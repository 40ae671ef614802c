package goroutine

import (
	"context"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/await"
	"github.com/myriad-go/myriad/internal/engine"
)

func TestMayDrain(t *testing.T) {
	for _, c := range []struct {
		rate   int
		passed time.Duration
		want   int
	}{
		{1, 0, 1}, {1, 500 * time.Millisecond, 1}, {1, time.Second, 2}, {1, 10 * time.Second, 11},
		{150, 0, 2}, {150, 990 * time.Millisecond, 151}, {10_000, 0, 101},
	} {
		g := &group{cfg: engine.Config{Limits: engine.Limits{ShutdownRate: c.rate}}}
		if got := g.mayDrain(c.passed); got != c.want {
			t.Errorf("at %d a second, after %v: %d connections may be told, want %d", c.rate, c.passed, got, c.want)
		}
	}
}

// ShutdownRate is kept where it is less than one each time that some are told.
func TestSlowShutdownRate(t *testing.T) {
	h := newHandler()
	g := serve(t, h, func(cfg *engine.Config) { cfg.Limits.ShutdownRate, cfg.Limits.Linger = 4, 0 })
	for range 3 {
		dial(t, g)
		await.Receive(t, h.opened, "Opened")
	}
	start := time.Now()
	if err := g.Stop(context.Background()); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if took := time.Since(start); took < 450*time.Millisecond {
		t.Errorf("3 connections were told within %v, at 4 a second", took)
	}
}
