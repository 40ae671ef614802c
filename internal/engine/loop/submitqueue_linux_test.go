package loop

import (
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// limitedPool is a pool that accepts capacity connections and keeps them.
type limitedPool struct {
	capacity int
	taken    []*engine.Conn
}

var errFull = errors.New("full")

func (p *limitedPool) TrySubmit(c *engine.Conn) error {
	if p.capacity == 0 {
		return errFull
	}
	p.capacity--
	p.taken = append(p.taken, c)
	return nil
}

func (p *limitedPool) IsClosedErr(error) bool { return false }

type noopHandler struct{}

func (noopHandler) Opened(*engine.Conn)               {}
func (noopHandler) Received(*engine.Conn, []byte) int { return 0 }
func (noopHandler) Ended(*engine.Conn, []byte) int    { return 0 }
func (noopHandler) Closed(*engine.Conn, error)        {}

// Sheddable input does not enter the pool before a connection that must wait, even while submissions are
// throttled. So waiting connections make progress under any load.
func TestSheddableInputDoesNotOvertake(t *testing.T) {
	p := &limitedPool{}
	shed := 0
	cfg := engine.Config{Handler: noopHandler{}, Loops: 1, Pool: p, Log: slog.New(slog.DiscardHandler),
		Limits: engine.Limits{MaxConns: 100, MaxMessage: 100, MaxUnsent: 100},
		Shed:   func(_ *engine.Conn, in []byte, _ error) int { shed++; return len(in) }}
	l := newLoop(&loopEngine{cfg: cfg, admission: engine.NewAdmission(&cfg)}, 0, sock.Eventfd{})
	l.host.SetClock(time.Second)
	newConn := func() *engine.Conn {
		c := l.conns.acquireConn()
		c.OnOpen(netip.AddrPort{}, false)
		return c
	}
	newConnWithInput := func() *engine.Conn {
		c := newConn()
		c.MakeDeferredHandlerCalls()
		c.OnRead([]byte("x"))
		if !c.CanShed() {
			t.Fatal("MayShed is false, want true")
		}
		return c
	}
	var waiting []*engine.Conn
	for range 3 {
		waiting = append(waiting, newConn())
		if l.submitOrQueueOrShed(waiting[len(waiting)-1]) {
			t.Fatal("a new connection was not queued")
		}
	}
	l.submitQueue.lastShedAt = l.host.Clock()

	p.capacity = 1
	if stillOwned := l.submitOrQueueOrShed(newConnWithInput()); !stillOwned || shed != 1 {
		t.Errorf("capacity 1: input shed %d times, want 1, and a waiting connection in the pool", shed)
	}
	p.capacity = 2
	last := newConnWithInput()
	if stillOwned := l.submitOrQueueOrShed(last); stillOwned || shed != 1 {
		t.Errorf("capacity 2: input shed %d times more, want it in the pool behind a waiting connection", shed-1)
	}
	p.capacity = 1
	l.submitOrQueueOrShed(newConnWithInput())
	if want := []*engine.Conn{waiting[0], waiting[1], last, waiting[2]}; len(p.taken) != 4 || [4]*engine.Conn(p.taken) != [4]*engine.Conn(want) || l.submitQueue.Len() != 0 {
		t.Errorf("the pool accepted %d, and %d wait; want the three waiting ones in order, with input after the second", len(p.taken), l.submitQueue.Len())
	}
}
