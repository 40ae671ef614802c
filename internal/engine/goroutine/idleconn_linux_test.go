package goroutine

import (
	"sync/atomic"
	"testing"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

// fullLayer is a layer that wants no input. It counts how often it is asked.
type fullLayer struct {
	fullCalls   *atomic.Int64
	resumeCalls *atomic.Int64
	ref         chan engine.Ref
}

func (l fullLayer) OnRead(*engine.Conn, []byte) error    { return nil }
func (l fullLayer) Write(c *engine.Conn, p []byte) error { c.AppendToTransport(p); return nil }
func (l fullLayer) InputFull() bool                      { l.fullCalls.Add(1); return true }
func (l fullLayer) OnEOF(*engine.Conn) error             { return nil }
func (l fullLayer) Memory() (int, bool)                  { return 0, false }
func (l fullLayer) SendClose(*engine.Conn)               {}
func (l fullLayer) OnClosed(*engine.Conn)                {}
func (l fullLayer) ContinueHandshake(c *engine.Conn) error {
	if l.resumeCalls.Add(1) == 1 {
		l.ref <- c.Ref()
	}
	return nil
}

// A connection that wants no input sleeps until mail comes, even if its peer sends.
func TestConnWithoutInputSleeps(t *testing.T) {
	l := fullLayer{new(atomic.Int64), new(atomic.Int64), make(chan engine.Ref, 1)}
	g := startTestEngine(t, newHandler(), func(cfg *engine.Config) {
		cfg.NewLayer = func(*engine.Conn) engine.Layer { return l }
	})
	nc := dialEngine(t, g)
	ref := testkit.Receive(t, l.ref, "Resume")
	sent := 0
	testkit.WaitFor(t, "sending takes too long", func() bool {
		nc.Send("x")
		sent++
		return sent == 50
	})
	if n := l.fullCalls.Load(); n > 5 {
		t.Errorf("it was asked %d times whether it wants input, want once or twice", n)
	}
	before := l.resumeCalls.Load()
	if err := ref.ResumeLayer(); err != nil {
		t.Fatalf("Resume: %v", err)
	}
	testkit.WaitFor(t, "it does not wake when mail comes", func() bool { return l.resumeCalls.Load() > before })
}
