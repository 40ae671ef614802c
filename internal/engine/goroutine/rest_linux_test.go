package goroutine

import (
	"sync/atomic"
	"testing"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

// sated is a layer that wants no input; it counts how often it is asked.
type sated struct {
	asked    *atomic.Int64
	attended *atomic.Int64
	ref      chan engine.Ref
}

func (l sated) OnRead(*engine.Conn, []byte) error    { return nil }
func (l sated) Write(c *engine.Conn, p []byte) error { c.AppendToTransport(p); return nil }
func (l sated) InputFull() bool                      { l.asked.Add(1); return true }
func (l sated) OnEOF(*engine.Conn) error             { return nil }
func (l sated) Memory() (int, bool)                  { return 0, false }
func (l sated) SendClose(*engine.Conn)               {}
func (l sated) OnClosed(*engine.Conn)                {}
func (l sated) Resume(c *engine.Conn) error {
	if l.attended.Add(1) == 1 {
		l.ref <- c.Ref()
	}
	return nil
}

// A connection that wants no input sleeps until mail comes, though its peer sends.
func TestRestSleeps(t *testing.T) {
	l := sated{new(atomic.Int64), new(atomic.Int64), make(chan engine.Ref, 1)}
	g := serve(t, newHandler(), func(cfg *engine.Config) {
		cfg.NewLayer = func(*engine.Conn) engine.Layer { return l }
	})
	nc := dial(t, g)
	ref := testkit.Receive(t, l.ref, "Resume")
	sent := 0
	testkit.WaitFor(t, "sending takes too long", func() bool {
		nc.Send("x")
		sent++
		return sent == 50
	})
	if n := l.asked.Load(); n > 5 {
		t.Errorf("it was asked %d times whether it wants input, want once or twice", n)
	}
	before := l.attended.Load()
	if err := ref.ResumeLayer(); err != nil {
		t.Fatalf("Resume: %v", err)
	}
	testkit.WaitFor(t, "it does not wake when mail comes", func() bool { return l.attended.Load() > before })
}
