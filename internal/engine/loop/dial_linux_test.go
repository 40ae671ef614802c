package loop

import (
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/engine"
)

// pendingDialDriver is a driver whose dials never finish, and a handler that counts calls.
type pendingDialDriver struct {
	acceptAllDriver
	noopHandler
	loop           *Loop
	failed, closed int
}

func (d *pendingDialDriver) WatchForInputOrConnect(*engine.Conn) syscall.Errno { return 0 }
func (d *pendingDialDriver) DropUnopened(c *engine.Conn)                       { d.loop.CloseUnopened(c) }
func (d *pendingDialDriver) DialFailed(error)                                  { d.failed++ }
func (d *pendingDialDriver) Closed(*engine.Conn, error)                        { d.closed++ }

// A dial in progress fails when the loop stops: its handler is told once, of no connection.
func TestPendingDialFailsOnStop(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, stage := range []int32{stageStopping, stageKilling} {
		l, _, _ := newLoopWithConns(0)
		d := &pendingDialDriver{loop: l}
		l.driver, l.host.Handler = d, d
		l.engine.cfg.Limits.MaxConns = 1
		l.engine.admission = engine.NewAdmission(&l.engine.cfg)
		l.startDelegateOrFailDial(engine.DialRequest{Target: netip.MustParseAddrPort(ln.Addr().String()), Count: 1})
		if l.conns.used != 1 {
			t.Fatal("no dial is in progress")
		}
		l.requestStopStage(stage)
		l.applyRequestedStopStage()
		l.drainer.runIfDue(l.host.Clock())
		var n engine.Counts
		l.counters.AddToWithMaxAge(&n)
		if d.failed != 1 || d.closed != 0 || l.conns.used != 0 || n[engine.Open] != 0 || n[engine.Closing] != 0 {
			t.Errorf("stage %d: DialFailed called %d times, Closed %d; %d slots in use, %d connections open and %d closing; want 1, then 0",
				stage, d.failed, d.closed, l.conns.used, n[engine.Open], n[engine.Closing])
		}
	}
}
