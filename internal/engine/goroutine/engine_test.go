package goroutine

import (
	"log/slog"
	"testing"
	"unsafe"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/enginetest"
	"github.com/myriad-go/myriad/internal/testkit"
)

type recordingHandler struct {
	opened chan engine.Ref
	closed chan error
}

func newHandler() *recordingHandler {
	return &recordingHandler{opened: make(chan engine.Ref, 1000), closed: make(chan error, 1000)}
}

func (h *recordingHandler) Opened(c *engine.Conn)                  { h.opened <- c.Ref() }
func (h *recordingHandler) Received(_ *engine.Conn, in []byte) int { return len(in) }
func (h *recordingHandler) Ended(_ *engine.Conn, in []byte) int    { return len(in) }
func (h *recordingHandler) Closed(_ *engine.Conn, why error)       { h.closed <- why }

// startTestEngine starts an engine that is stopped when the test ends.
func startTestEngine(t *testing.T, h engine.Handler, change func(*engine.Config)) *goroutineEngine {
	t.Helper()
	cfg := engine.Config{
		Network: "tcp", Addr: "127.0.0.1:0", Handler: h, Limits: enginetest.Limits(), Log: slog.New(slog.DiscardHandler),
	}
	change(&cfg)
	e, err := startEngine(cfg)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() { enginetest.Kill(e) })
	return e.(*goroutineEngine)
}

// dialEngine connects to the engine; the connection is closed when the test ends.
func dialEngine(t *testing.T, g *goroutineEngine) *testkit.Conn {
	t.Helper()
	return testkit.Dial(t, g.Addr().String())
}

// A conn fits into the allocator's class of 192 bytes; the next one is 208.
func TestConnSize(t *testing.T) {
	if got := unsafe.Sizeof(conn{}); got > 192 {
		t.Errorf("a connection's driver entry is %d bytes, want at most 192", got)
	}
}
