package loop

import (
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/engine"
)

// dialer is a driver whose dials stay under way; it is its own handler, and counts.
type dialer struct {
	taker
	idler
	loop           *Loop
	failed, closed int
}

func (d *dialer) Watch(*engine.Conn) syscall.Errno { return 0 }
func (d *dialer) Drop(c *engine.Conn)              { d.loop.Forget(c) }
func (d *dialer) DialFailed(error)                 { d.failed++ }
func (d *dialer) Closed(*engine.Conn, error)       { d.closed++ }

// A dial that is under way when all is closed has failed: its handler is told that once,
// and of no connection.
func TestDialAtTheEnd(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, stage := range []int32{stopping, killing} {
		l, _, _ := fan(0)
		d := &dialer{loop: l}
		l.driver, l.host.Handler = d, d
		l.group.cfg.Limits.MaxConns = 1
		l.group.admission = engine.NewAdmission(&l.group.cfg)
		l.dialOne(engine.DialRequest{Target: netip.MustParseAddrPort(ln.Addr().String()), Count: 1})
		if l.slab.used != 1 {
			t.Fatal("no dial is under way")
		}
		l.request(stage)
		l.applyStop()
		l.drain.run(l.host.Clock())
		var n engine.Counts
		l.counters.AddTo(&n)
		if d.failed != 1 || d.closed != 0 || l.slab.used != 0 || n[engine.Open] != 0 || n[engine.Closing] != 0 {
			t.Errorf("stage %d: DialFailed was called %d times, Closed %d; %d slots are used, counted are %d open and %d closing",
				stage, d.failed, d.closed, l.slab.used, n[engine.Open], n[engine.Closing])
		}
	}
}
