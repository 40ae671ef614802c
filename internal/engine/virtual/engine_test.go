package virtual

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

// echo echoes its input, and nudges itself endlessly after the first nudge.
type echo struct{ nudged int }

func (*echo) Opened(*engine.Conn)                   {}
func (*echo) Ended(_ *engine.Conn, rest []byte) int { return len(rest) }
func (*echo) Closed(*engine.Conn, error)            {}

func (*echo) Received(c *engine.Conn, in []byte) int {
	c.Write(in)
	return len(in)
}

func (h *echo) Nudged(c *engine.Conn) {
	h.nudged++
	c.Ref().Nudge()
}

func startEngine(t *testing.T, h engine.Handler, with ...func(*engine.Config)) *Engine {
	t.Helper()
	l := &Listener{}
	cfg := engine.Config{
		Listeners: []engine.Listener{{Socket: l}}, Handler: h, Log: slog.New(slog.DiscardHandler),
		Limits: engine.Limits{
			MaxConns: 10, MaxMessage: 100, MaxUnsent: 1000, MaxMail: 10, MaxMailBytes: 1000,
			CloseTimeout: time.Second, Linger: time.Second,
		},
	}
	for _, set := range with {
		set(&cfg)
	}
	if _, err := l.Start(cfg); err != nil {
		t.Fatal(err)
	}
	return l.Engine
}

func connect(t *testing.T, e *Engine) (p *Peer) {
	t.Helper()
	var err error
	e.DoAndRunUntilIdle(func() { p, err = e.Connect(netip.MustParseAddrPort("198.51.100.1:1024")) })
	testkit.RequireNoError(t, err)
	return p
}

// TestEndlessWork has a handler that causes itself endless work.
func TestEndlessWork(t *testing.T) {
	h := &echo{}
	e := startEngine(t, h)
	p := connect(t, e)
	defer func() {
		text, _ := recover().(string)
		if !strings.Contains(text, "still cause work after 131072 rounds") || h.nudged != maxSettleRounds {
			t.Errorf("nudged %d times, and then: %q", h.nudged, text)
		}
	}()
	testkit.RequireNoError(t, p.conn.Ref().Nudge())
	e.DoAndRunUntilIdle(func() {})
}

// TestRequestLimits exceeds the limits on requests.
func TestRequestLimits(t *testing.T) {
	e := startEngine(t, &echo{})
	p := connect(t, e)
	times := func(most int, ask func() error) {
		t.Helper()
		for i := range most + 1 {
			if err := ask(); errors.Is(err, engine.ErrFull) != (i == most) {
				t.Fatalf("the %d. of %d gives %v", i+1, most, err)
			}
		}
	}
	times(engine.MaxBroadcasts, func() error { return e.BroadcastToAllConns(nil) })
	e.DoAndRunUntilIdle(func() {})
	times(2, func() error { return e.BroadcastToAllConns(make([]byte, 400)) })
	e.DoAndRunUntilIdle(func() {})
	if n := len(p.Received()); n != 800 {
		t.Errorf("%d bytes of two broadcasts, want 800", n)
	}
	if err := e.BroadcastToAllConns(make([]byte, 1001)); !errors.Is(err, engine.ErrTooLarge) {
		t.Errorf("a broadcast of more than MaxUnsent gives %v", err)
	}
	times(maxPendingDials, func() error {
		return e.Dial(engine.DialRequest{Target: netip.MustParseAddrPort("192.0.2.2:80"), Count: 1})
	})
	times(maxQueuedRequests, func() error { return e.QueueCloseOfPeerConns(netip.MustParseAddrPort("198.51.100.9:1")) })
	times(10, func() error { return p.conn.Ref().Send([]byte("x")) })
}

// TestCallsAfterEnd calls methods of an engine that has ended.
func TestCallsAfterEnd(t *testing.T) {
	e := startEngine(t, &echo{})
	testkit.RequireNoError(t, e.Stop(t.Context()))
	e.Wait()
	for what, err := range map[string]error{
		"Broadcast": e.BroadcastToAllConns(nil), "Hold": e.PauseAccept(true), "Expel": e.QueueCloseOfPeerConns(netip.AddrPort{}),
		"Dial": e.Dial(engine.DialRequest{Target: netip.MustParseAddrPort("192.0.2.2:80"), Count: 1}),
	} {
		if !errors.Is(err, engine.ErrClosed) {
			t.Errorf("%s gives %v, want ErrClosed", what, err)
		}
	}
}
