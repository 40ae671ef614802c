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

// taker is a driver whose peers take all that they are sent.
type taker struct {
	Driver // nil: nothing else of it is called
	sends  map[*engine.Conn][]string
	turn   int // sends in this turn
}

func (d *taker) Settle(c *engine.Conn) {
	for c.Next() == engine.Send {
		out := c.Output()
		d.sends[c] = append(d.sends[c], string(out))
		d.turn++
		c.Sent(len(out))
	}
}

// fan is a loop with n connections that nobody runs.
func fan(n int) (l *Loop, d *taker, refs []engine.Ref) {
	cfg := engine.Config{Handler: idler{}, Loops: 1, Log: slog.New(slog.DiscardHandler), Limits: engine.Limits{
		MaxConns: n, MaxMessage: 1000, MaxUnsent: 1 << 20, MaxMail: 1 << 20, MaxMailBytes: 1 << 20}}
	g := &group{cfg: cfg, admission: engine.NewAdmission(&cfg)}
	l = newLoop(g, 0, sock.Eventfd{})
	d = &taker{sends: make(map[*engine.Conn][]string)}
	l.driver, l.host.Direct = d, nil
	g.loops = []*Loop{l}
	for range n {
		g.admission.AcquireConn()
		c := l.slab.take()
		c.SetFD(0)
		c.Open(netip.AddrPort{}, false)
		refs = append(refs, c.Ref())
	}
	return l, d, refs
}

// turns has the loop do a part of its work until none is left, and says in how many
// turns. None does it for more than most connections.
func (d *taker) turns(t *testing.T, most int, left func() bool, do func()) (n int) {
	t.Helper()
	for ; left(); n++ {
		d.turn = 0
		if do(); d.turn > most {
			t.Errorf("a turn has sent %d times, want %d at the most", d.turn, most)
		}
		if n > 1e6 {
			t.Fatal("it does not end")
		}
	}
	return n
}

// All mail for a connection goes out in one send, whatever is between it, and a turn
// gives mail to so many connections.
func TestMailOfATurn(t *testing.T) {
	const conns, each = 3*mailBatch + 1, mailLook - 1 // more than a turn sorts
	l, d, refs := fan(conns)
	var want strings.Builder
	for i := range each {
		fmt.Fprintf(&want, "%d,", i)
		for _, r := range refs {
			if err := r.Send(fmt.Appendf(nil, "%d,", i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for len(l.post.mail) > 0 || l.box.Waiting() { // all of it is sorted before
		l.post.sort(&l.box)
	}
	n := d.turns(t, mailBatch, l.post.left, l.takeMail)
	if n < 4 {
		t.Errorf("it took %d turns, want 4 at least", n)
	}
	for _, r := range refs {
		if got := d.sends[r.On(&l.host)]; len(got) != 1 || got[0] != want.String() {
			t.Fatalf("a connection got %q, want %q in one piece", got, want.String())
		}
	}
	if p := &l.post; p.n != 0 || p.bytes != 0 || len(p.runs) != 0 {
		t.Errorf("%d pieces of mail with %d bytes are counted, and %d have some, when all is given out", p.n, p.bytes, len(p.runs))
	}
}

// Queues that hold as much as the mailbox may take no more.
func TestMailIsBounded(t *testing.T) {
	l, _, refs := fan(1)
	l.box.Max = 10
	for range 3 {
		for range l.box.Max {
			_ = refs[0].Send([]byte("x"))
		}
		if l.box.Waiting() {
			l.post.sort(&l.box)
		}
	}
	if err := refs[0].Send([]byte("x")); err != engine.ErrFull || l.post.n != l.box.Max {
		t.Errorf("with %d in the queues: %v; want %d, and %v", l.post.n, err, l.box.Max, engine.ErrFull)
	}
}

// Broadcasts that wait go out together; one that comes while they walk joins them, and
// reaches all, too. A turn gives them to so many connections.
func TestBroadcastsWalkTogether(t *testing.T) {
	const conns = 3*castBatch + 1
	l, d, refs := fan(conns)
	cast := func(s string) {
		if err := l.group.Broadcast([]byte(s)); err != nil {
			t.Fatal(err)
		}
		l.takeOrders()
	}
	cast("1,")
	cast("2,")
	cast("3,")
	l.casts.run(0)
	if n := l.casts.walk.to; n == 0 || n > castBatch {
		t.Fatalf("a turn has reached %d connections, want %d at the most", n, castBatch)
	}
	first := l.casts.walk.to
	cast("4,")
	if n := l.group.Counters(); n[engine.Casting] != 4 || n[engine.CastBytes] != 8 || n[engine.CastAge] <= 0 {
		t.Errorf("under way are %d broadcasts of %d bytes, the oldest for %d ns; want 4, 8", n[engine.Casting], n[engine.CastBytes], n[engine.CastAge])
	}
	d.turns(t, castBatch, func() bool { return len(l.casts.all) > 0 }, func() { l.casts.run(0) })
	for i, r := range refs {
		want := []string{"1,2,3,4,"}
		if i < int(first) {
			want = []string{"1,2,3,", "4,"}
		}
		if got := d.sends[r.On(&l.host)]; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("connection %d got %q, want %q", i, got, want)
		}
	}
	if n := l.group.Counters(); n[engine.Casting] != 0 || n[engine.CastBytes] != 0 || n[engine.CastAge] != 0 {
		t.Errorf("when all is done there are %d under way", n[engine.Casting])
	}
	cast("5,") // to none
	for _, r := range refs {
		c := r.On(&l.host)
		c.Abort(nil)
		c.Finish()
		l.free(c)
	}
	d.turns(t, 0, func() bool { return len(l.casts.all) > 0 }, func() { l.casts.run(0) })
}

// A loop that is held up is reported with what it does, and only a handler is blamed
// that may be.
func TestHeldUp(t *testing.T) {
	for doing, slow := range map[int32]int64{events: 1, mail: 1, broadcasts: 0, planned: 1, upkeep: 0} {
		var log bytes.Buffer
		l, _, _ := fan(1)
		l.group.cfg.Limits.HandlerTime = 1
		l.host.Log = slog.New(slog.NewTextHandler(&log, nil))
		l.doing.Store(doing)
		turn := observedTurn{clock: l.host.Clock(), at: engine.Since() - time.Second}
		l.judgeTurn(&turn)
		l.judgeTurn(&turn) // and once
		if n := l.counters.Get(engine.Slow); n != slow {
			t.Errorf("held up by %s: %d slow handlers are counted, want %d", doingNames[doing], n, slow)
		}
		if !strings.Contains(log.String(), doingNames[doing]) || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("held up by %s: the log says %s", doingNames[doing], log.String())
		}
	}
}
