package loop

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// acceptAllDriver is a driver whose peers take all that they are sent.
type acceptAllDriver struct {
	Driver    // nil: nothing else of it is called
	sends     map[*engine.Conn][]string
	turnSends int // sends in this turn
}

func (d *acceptAllDriver) PerformActions(c *engine.Conn) {
	for c.Next() == engine.Send {
		out := c.Output()
		d.sends[c] = append(d.sends[c], string(out))
		d.turnSends++
		c.Sent(len(out))
	}
}

// newLoopWithConns is a loop with n connections that nobody runs.
func newLoopWithConns(n int) (l *Loop, driver *acceptAllDriver, refs []engine.Ref) {
	cfg := engine.Config{Handler: noopHandler{}, Loops: 1, Log: slog.New(slog.DiscardHandler), Limits: engine.Limits{
		MaxConns: n, MaxMessage: 1000, MaxUnsent: 1 << 20, MaxMail: 1 << 20, MaxMailBytes: 1 << 20}}
	g := &loopEngine{cfg: cfg, admission: engine.NewAdmission(&cfg)}
	l = newLoop(g, 0, sock.Eventfd{})
	driver = &acceptAllDriver{sends: make(map[*engine.Conn][]string)}
	l.driver, l.host.Direct = driver, nil
	g.loops = []*Loop{l}
	for range n {
		g.admission.Acquire()
		c := l.conns.acquireConn()
		c.SetFD(0)
		c.Open(netip.AddrPort{}, false)
		refs = append(refs, c.Ref())
	}
	return l, driver, refs
}

// runTurns has the loop do a part of its work until none is left, and says in how many
// turns. None does it for more than most connections.
func (d *acceptAllDriver) runTurns(t *testing.T, maxSends int, hasWork func() bool, runTurn func()) (n int) {
	t.Helper()
	for ; hasWork(); n++ {
		d.turnSends = 0
		if runTurn(); d.turnSends > maxSends {
			t.Errorf("a turn has sent %d times, want %d at the most", d.turnSends, maxSends)
		}
		if n > 1e6 {
			t.Fatal("it does not end")
		}
	}
	return n
}

// All mail for a connection goes out in one send, whatever is between it, and a turn
// gives mail to so many connections.
func TestMailIsCoalescedPerTurn(t *testing.T) {
	const conns, each = 3*mailConnsPerTurn + 1, mailClockCheck - 1 // more than a turn sorts
	l, d, refs := newLoopWithConns(conns)
	var want strings.Builder
	for i := range each {
		fmt.Fprintf(&want, "%d,", i)
		for _, r := range refs {
			if err := r.Send(fmt.Appendf(nil, "%d,", i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for len(l.mailQueues.unsorted) > 0 || l.mailbox.Waiting() { // all of it is sorted before
		l.mailQueues.distributeMail(&l.mailbox)
	}
	n := d.runTurns(t, mailConnsPerTurn, l.mailQueues.hasUndelivered, l.deliverMail)
	if n < 4 {
		t.Errorf("it took %d turns, want 4 at least", n)
	}
	for _, r := range refs {
		if got := d.sends[r.On(&l.host)]; len(got) != 1 || got[0] != want.String() {
			t.Fatalf("a connection got %q, want %q in one piece", got, want.String())
		}
	}
	if p := &l.mailQueues; p.count != 0 || p.bytes != 0 || len(p.byConn) != 0 {
		t.Errorf("%d pieces of mail with %d bytes are counted, and %d have some, when all is given out", p.count, p.bytes, len(p.byConn))
	}
}

// Queues that hold as much as the mailbox may take no more.
func TestMailIsBounded(t *testing.T) {
	l, _, refs := newLoopWithConns(1)
	l.mailbox.Max = 10
	for range 3 {
		for range l.mailbox.Max {
			_ = refs[0].Send([]byte("x"))
		}
		if l.mailbox.Waiting() {
			l.mailQueues.distributeMail(&l.mailbox)
		}
	}
	if err := refs[0].Send([]byte("x")); err != engine.ErrFull || l.mailQueues.count != l.mailbox.Max {
		t.Errorf("with %d in the queues: %v; want %d, and %v", l.mailQueues.count, err, l.mailbox.Max, engine.ErrFull)
	}
}

// Broadcasts that wait go out together; one that comes while they walk joins them, and
// reaches all, too. A turn gives them to so many connections.
func TestBroadcastsAreJoined(t *testing.T) {
	const conns = 3*broadcastConnsPerTurn + 1
	l, d, refs := newLoopWithConns(conns)
	cast := func(s string) {
		if err := l.engine.Broadcast([]byte(s)); err != nil {
			t.Fatal(err)
		}
		l.takeRemoteRequests()
	}
	cast("1,")
	cast("2,")
	cast("3,")
	l.broadcasts.runIfDue(0)
	if n := l.broadcasts.pass.nextSlot; n == 0 || n > broadcastConnsPerTurn {
		t.Fatalf("a turn has reached %d connections, want %d at the most", n, broadcastConnsPerTurn)
	}
	first := l.broadcasts.pass.nextSlot
	cast("4,")
	if n := l.engine.Counters(); n[engine.Casting] != 4 || n[engine.CastBytes] != 8 || n[engine.CastAge] <= 0 {
		t.Errorf("under way are %d broadcasts of %d bytes, the oldest for %d ns; want 4, 8", n[engine.Casting], n[engine.CastBytes], n[engine.CastAge])
	}
	d.runTurns(t, broadcastConnsPerTurn, func() bool { return len(l.broadcasts.active) > 0 }, func() { l.broadcasts.runIfDue(0) })
	for i, r := range refs {
		want := []string{"1,2,3,4,"}
		if i < int(first) {
			want = []string{"1,2,3,", "4,"}
		}
		if got := d.sends[r.On(&l.host)]; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("connection %d got %q, want %q", i, got, want)
		}
	}
	if n := l.engine.Counters(); n[engine.Casting] != 0 || n[engine.CastBytes] != 0 || n[engine.CastAge] != 0 {
		t.Errorf("when all is done there are %d under way", n[engine.Casting])
	}
	cast("5,") // to none
	for _, r := range refs {
		c := r.On(&l.host)
		c.Abort(nil)
		c.Finish()
		l.freeConn(c)
	}
	d.runTurns(t, 0, func() bool { return len(l.broadcasts.active) > 0 }, func() { l.broadcasts.runIfDue(0) })
}

// A loop that is held up is reported with what it does, and only a handler is blamed
// that may be.
func TestStuckTurnIsReported(t *testing.T) {
	for doing, slow := range map[int32]int64{phaseEvents: 1, phaseMail: 1, phaseBroadcasts: 0, phasePacing: 1, phaseTasks: 0} {
		var log bytes.Buffer
		l, _, _ := newLoopWithConns(1)
		l.engine.cfg.Limits.HandlerTime = 1
		l.host.Log = slog.New(slog.NewTextHandler(&log, nil))
		l.phase.Store(doing)
		turn := observedTurn{clock: l.host.Clock(), firstSeen: engine.Since() - time.Second}
		l.reportStuckTurn(&turn)
		l.reportStuckTurn(&turn) // and once
		if n := l.counters.Get(engine.Slow); n != slow {
			t.Errorf("held up by %s: %d slow handlers are counted, want %d", phaseNames[doing], n, slow)
		}
		if !strings.Contains(log.String(), phaseNames[doing]) || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("held up by %s: the log says %s", phaseNames[doing], log.String())
		}
	}
}
