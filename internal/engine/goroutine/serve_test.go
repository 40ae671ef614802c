package goroutine

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// patience bounds every wait. It is far longer than anything takes.
const patience = time.Minute

// handler uses all input up, and tells what comes and goes.
type handler struct {
	opened chan engine.Ref
	closed chan error
}

func newHandler() *handler {
	return &handler{opened: make(chan engine.Ref, 1000), closed: make(chan error, 1000)}
}

func (h *handler) Opened(c *engine.Conn)                  { h.opened <- c.Ref() }
func (h *handler) Received(_ *engine.Conn, in []byte) int { return len(in) }
func (h *handler) Ended(_ *engine.Conn, in []byte) int    { return len(in) }
func (h *handler) Closed(_ *engine.Conn, why error)       { h.closed <- why }

// serve starts a group that is stopped when the test ends.
func serve(t *testing.T, h engine.Handler, change func(*engine.Config)) *group {
	t.Helper()
	cfg := engine.Config{
		Network: "tcp", Addr: "127.0.0.1:0", Handler: h, Log: slog.New(slog.DiscardHandler),
		Limits: engine.Limits{
			MaxConns: 1000, MaxMessage: 64 << 10, MaxUnsent: 1 << 20, MaxMail: 1024, MaxMailBytes: 16 << 20,
			CloseTimeout: 10 * patience, Linger: 10 * patience,
		},
	}
	change(&cfg)
	e, err := start(cfg)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = e.Stop(ctx) // it says that it has cut connections off
		e.Wait()
	})
	return e.(*group)
}

// dial connects to the group; the connection is closed when the test ends.
func dial(t *testing.T, g *group) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", g.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return nc
}
