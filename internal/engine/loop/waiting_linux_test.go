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

// rooms is a pool with so much room, which keeps what it takes.
type rooms struct {
	room  int
	taken []*engine.Conn
}

var errFull = errors.New("full")

func (p *rooms) TrySubmit(c *engine.Conn) error {
	if p.room == 0 {
		return errFull
	}
	p.room--
	p.taken = append(p.taken, c)
	return nil
}

func (p *rooms) IsClosedErr(error) bool { return false }

// idler is a handler that leaves all input.
type idler struct{}

func (idler) Opened(*engine.Conn)               {}
func (idler) Received(*engine.Conn, []byte) int { return 0 }
func (idler) Ended(*engine.Conn, []byte) int    { return 0 }
func (idler) Closed(*engine.Conn, error)        {}

// Input that may be shed takes no room in the pool before one of those that wait,
// also while these are offered sparingly: however much of it there is, they get on.
func TestWaitingGetsOn(t *testing.T) {
	p := &rooms{}
	shed := 0
	cfg := engine.Config{Handler: idler{}, Loops: 1, Pool: p, Log: slog.New(slog.DiscardHandler),
		Limits: engine.Limits{MaxConns: 100, MaxMessage: 100, MaxUnsent: 100},
		Shed:   func(_ *engine.Conn, in []byte, _ error) int { shed++; return len(in) }}
	l := newLoop(&group{cfg: cfg, admission: engine.NewAdmission(&cfg)}, 0, sock.Eventfd{})
	l.host.SetClock(time.Second)
	fresh := func() *engine.Conn {
		c := l.slab.take()
		c.OnOpen(netip.AddrPort{}, false)
		return c
	}
	input := func() *engine.Conn {
		c := fresh()
		c.FeedHandler()
		c.OnRead([]byte("x"))
		if !c.CanShed() {
			t.Fatal("input may not be shed")
		}
		return c
	}
	var waits []*engine.Conn
	for range 3 {
		waits = append(waits, fresh())
		if l.handOver(waits[len(waits)-1]) {
			t.Fatal("a new connection does not wait for room")
		}
	}
	l.waiting.shed = l.host.Clock()

	p.room = 1
	if here := l.handOver(input()); !here || shed != 1 {
		t.Errorf("room for one, and input that may be shed: shed %d times; want once, and one that waits in the pool", shed)
	}
	p.room = 2
	last := input()
	if here := l.handOver(last); here || shed != 1 {
		t.Errorf("room for two: shed %d times more; want the input in the pool, behind one that waits", shed-1)
	}
	p.room = 1
	l.handOver(input())
	if want := []*engine.Conn{waits[0], waits[1], last, waits[2]}; len(p.taken) != 4 || [4]*engine.Conn(p.taken) != [4]*engine.Conn(want) || l.waiting.n != 0 {
		t.Errorf("the pool has taken %d, and %d wait; want the three that waited, in order, and input behind the second", len(p.taken), l.waiting.n)
	}
}
