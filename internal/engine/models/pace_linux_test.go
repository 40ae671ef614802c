package models_test

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/enginetest"
	"github.com/myriad-go/myriad/internal/engine/models"
)

// nudged is a handler that keeps its connection's Ref and counts its nudges.
type nudged struct {
	ref   atomic.Pointer[engine.Ref]
	times atomic.Int64
}

func (n *nudged) Opened(c *engine.Conn) {
	r := c.Ref()
	n.ref.Store(&r)
}
func (n *nudged) Nudged(c *engine.Conn)                      { n.times.Add(1); c.WriteString("x") }
func (n *nudged) Received(_ *engine.Conn, in []byte) int     { return len(in) }
func (n *nudged) Ended(_ *engine.Conn, in []byte) (used int) { return len(in) }
func (n *nudged) Closed(*engine.Conn, error)                 {}

// A loop that owns a connection calls Nudged within the touch, not by mail.
func TestTouchAtOnce(t *testing.T) {
	for _, m := range models.All()[1:] {
		t.Run(m.Name, func(t *testing.T) {
			if err := m.Available(); err != nil {
				t.Skip(err)
			}
			var h nudged
			before, after := int64(-1), int64(-1)
			done := make(chan struct{})
			e, err := m.Start(engine.Config{
				Network: "tcp", Addr: "127.0.0.1:0", Handler: &h, Limits: enginetest.Limits(), Loops: 1,
				Log: slog.New(slog.DiscardHandler),
				Pace: func(_ int, now time.Duration, touch func(engine.Ref) bool) time.Duration {
					if r := h.ref.Load(); r != nil && before < 0 {
						before = h.times.Load()
						touch(*r)
						after = h.times.Load()
						close(done)
					}
					return now + time.Millisecond
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			nc, err := net.Dial("tcp", e.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			nc.SetDeadline(time.Now().Add(time.Minute))
			if _, err := nc.Read(make([]byte, 1)); err != nil {
				t.Errorf("what Nudged has written does not come: %v", err)
			} else if <-done; before != 0 || after != 1 {
				t.Errorf("Nudged was called %d times before the touch and %d after it, want 0 and 1", before, after)
			}
			nc.Close()
			if err := e.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
}
