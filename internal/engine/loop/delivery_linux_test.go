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
	"github.com/myriad-go/myriad/internal/testkit"
)

// acceptAllDriver is a driver whose peers accept everything that is sent.
type acceptAllDriver struct {
	visits    map[uint32]int // of sweeps, by chunk
	Driver                   // nil: no other method is called
	sends     map[*engine.Conn][]string
	turnSends int // sends in this turn
}

func (d *acceptAllDriver) PerformActions(c *engine.Conn) {
	for c.AdvanceToNextAction() == engine.Send {
		out := c.Output()
		d.sends[c] = append(d.sends[c], string(out))
		d.turnSends++
		c.OnSent(len(out))
	}
}

// newLoopWithConns returns a loop with n open connections that does not run.
func newLoopWithConns(n int) (l *Loop, driver *acceptAllDriver, refs []engine.Ref) {
	cfg := engine.Config{Handler: noopHandler{}, Loops: 1, Log: slog.New(slog.DiscardHandler), Limits: engine.Limits{
		MaxConns: n, MaxMessage: 1000, MaxUnsent: 1 << 20, MaxMail: 1 << 20, MaxMailBytes: 1 << 20}}
	g := &loopEngine{cfg: cfg, admission: engine.NewAdmission(&cfg)}
	l = newLoop(g, 0, sock.Eventfd{})
	driver = &acceptAllDriver{sends: make(map[*engine.Conn][]string)}
	l.driver, l.host.SendDirect = driver, nil
	g.loops = []*Loop{l}
	for range n {
		g.admission.AcquireConn()
		c := l.conns.acquireConn()
		c.SetFD(0)
		c.OnOpen(netip.AddrPort{}, false)
		refs = append(refs, c.Ref())
	}
	return l, driver, refs
}

// runTurns calls runTurn until there is no more work, and returns how often. It checks that no turn sends
// more than maxSends times.
func (d *acceptAllDriver) runTurns(t *testing.T, maxSends int, hasWork func() bool, runTurn func()) (n int) {
	t.Helper()
	for ; hasWork(); n++ {
		d.turnSends = 0
		if runTurn(); d.turnSends > maxSends {
			t.Errorf("a turn sent %d times, want at most %d", d.turnSends, maxSends)
		}
		if n > 1e6 {
			t.Fatal("more than a million turns")
		}
	}
	return n
}

// All mail for a connection goes out in one send, even if it was interleaved with other connections' mail,
// and a turn serves a limited number of connections.
func TestMailIsCoalescedPerTurn(t *testing.T) {
	const conns, each = 3*mailConnsPerTurn + 1, mailClockCheck - 1 // more than a turn distributes
	l, d, refs := newLoopWithConns(conns)
	var want strings.Builder
	for i := range each {
		fmt.Fprintf(&want, "%d,", i)
		for _, r := range refs {
			testkit.RequireNoError(t, r.Send(fmt.Appendf(nil, "%d,", i)))
		}
	}
	for len(l.mailQueues.unsorted) > 0 || l.mailbox.HasRequests() { // | | all of it is distributed first
		l.mailQueues.distributeMailWithinLimits(&l.mailbox)
	}
	n := d.runTurns(t, mailConnsPerTurn, l.mailQueues.hasUndelivered, l.deliverMailWithinTimeLimit)
	if n < 4 {
		t.Errorf("%d turns, want at least 4", n)
	}
	for _, r := range refs {
		if got := d.sends[r.ConnIfOwnedBy(&l.host)]; len(got) != 1 || got[0] != want.String() {
			t.Fatalf("a connection got %q, want %q in one piece", got, want.String())
		}
	}
	if p := &l.mailQueues; p.count != 0 || p.bytes != 0 || len(p.byConn) != 0 {
		t.Errorf("%d messages with %d bytes in %d queues are counted after delivery, want none", p.count, p.bytes, len(p.byConn))
	}
}

// Queues that hold as much as the mailbox may hold take no more.
func TestMailIsBounded(t *testing.T) {
	l, _, refs := newLoopWithConns(1)
	l.mailbox.MaxRequests = 10
	for range 3 {
		for range l.mailbox.MaxRequests {
			_ = refs[0].Send([]byte("x"))
		}
		if l.mailbox.HasRequests() {
			l.mailQueues.distributeMailWithinLimits(&l.mailbox)
		}
	}
	if err := refs[0].Send([]byte("x")); err != engine.ErrFull || l.mailQueues.count != l.mailbox.MaxRequests {
		t.Errorf("%d messages queued, then %v; want %d, then %v", l.mailQueues.count, err, l.mailbox.MaxRequests, engine.ErrFull)
	}
}

// Waiting broadcasts go out together; a new one joins during a pass and still reaches all connections. A turn
// serves a limited number of connections.
func TestBroadcastsAreJoined(t *testing.T) {
	const conns = 3*broadcastConnsPerTurn + 1
	l, d, refs := newLoopWithConns(conns)
	cast := func(s string) {
		testkit.RequireNoError(t, l.engine.BroadcastToAllConns([]byte(s)))
		l.dequeueRequestsAndRunCalls()
	}
	cast("1,")
	cast("2,")
	cast("3,")
	l.broadcasts.runIfDue(0)
	if n := l.broadcasts.pass.nextSlot; n == 0 || n > broadcastConnsPerTurn {
		t.Fatalf("a turn reached %d connections, want 1 to %d", n, broadcastConnsPerTurn)
	}
	first := l.broadcasts.pass.nextSlot
	cast("4,")
	if n := l.engine.Counters(); n[engine.ActiveBroadcasts] != 4 || n[engine.ActiveBroadcastBytes] != 8 || n[engine.OldestBroadcastAge] <= 0 {
		t.Errorf("%d active broadcasts of %d bytes, the oldest %d ns old; want 4 of 8 bytes", n[engine.ActiveBroadcasts], n[engine.ActiveBroadcastBytes], n[engine.OldestBroadcastAge])
	}
	d.runTurns(t, broadcastConnsPerTurn, func() bool { return len(l.broadcasts.active) > 0 }, func() { l.broadcasts.runIfDue(0) })
	for i, r := range refs {
		want := []string{"1,2,3,4,"}
		if i < int(first) {
			want = []string{"1,2,3,", "4,"}
		}
		if got := d.sends[r.ConnIfOwnedBy(&l.host)]; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("connection %d got %q, want %q", i, got, want)
		}
	}
	if n := l.engine.Counters(); n[engine.ActiveBroadcasts] != 0 || n[engine.ActiveBroadcastBytes] != 0 || n[engine.OldestBroadcastAge] != 0 {
		t.Errorf("%d active broadcasts at the end, want 0", n[engine.ActiveBroadcasts])
	}
	cast("5,") // all connections are closed below
	for _, r := range refs {
		c := r.ConnIfOwnedBy(&l.host)
		c.Abort(nil)
		c.OnClosed()
		l.freeSlotAndResumeAccepting(c)
	}
	d.runTurns(t, 0, func() bool { return len(l.broadcasts.active) > 0 }, func() { l.broadcasts.runIfDue(0) })
}

// A stuck loop is reported with its phase, and a slow handler is counted only in phases that call handlers.
func TestStuckTurnIsReported(t *testing.T) {
	for phase, slow := range map[int32]int64{phaseEvents: 1, phaseMail: 1, phaseBroadcasts: 0, phaseScheduler: 1, phaseTasks: 0} {
		var log bytes.Buffer
		l, _, _ := newLoopWithConns(1)
		l.engine.cfg.Limits.SlowHandlerTime = 1
		l.host.Log = slog.New(slog.NewTextHandler(&log, nil))
		l.phase.Store(phase)
		turn := observedTurn{clock: l.host.Clock(), firstSeen: engine.MonotonicNow() - time.Second}
		l.reportAndMoveOthersIfStuck(&turn)
		l.reportAndMoveOthersIfStuck(&turn) // must not report again
		if n := l.counters.Get(engine.SlowCalls); n != slow {
			t.Errorf("stuck in %s: %d slow handlers counted, want %d", phaseNames[phase], n, slow)
		}
		if !strings.Contains(log.String(), phaseNames[phase]) || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("stuck in %s: the log is %s", phaseNames[phase], log.String())
		}
	}
}
