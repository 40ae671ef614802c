package engine

import (
	"log/slog"
	"testing"
	"time"
)

// TestDialledAtForgiven has a slow turn come between dialling and Opened: it does
// not change when that began.
func TestDialledAtForgiven(t *testing.T) {
	for _, began := range []time.Duration{1, 5 * time.Second, 20 * 24 * time.Hour} {
		var got time.Duration
		h := &calls{opened: func(c *Conn) { got = c.DialledAt() }}
		c := &Conn{}
		c.Bind(&Host{
			Config:   Config{Handler: h, Log: slog.New(slog.DiscardHandler)},
			Buffers:  &FreeList{},
			Counters: &Counters{},
			Now:      func() time.Duration { return began + time.Second },
		}, 0, 0)
		c.Dialling(loopback, began)
		c.host.SetClock(began + 2*time.Second)
		c.ExtendTimes(2 * time.Second)
		c.Open(loopback, true)
		if got != began {
			t.Errorf("dialled at %v, said to be %v", began, got)
		}
	}
}
