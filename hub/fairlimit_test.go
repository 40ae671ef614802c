package hub

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

// replayFixture is a hub with a backlog larger than a client takes at once, in virtual time.
type replayFixture struct {
	*testing.T
	h *Hub
	s *tcptest.Server
	n int
}

const backlog = 40 // messages of 60 KiB

func runWithBacklog(t *testing.T, r *Replay, f func(c *replayFixture)) {
	synctest.Test(t, func(t *testing.T) {
		h := newReplayHub(r)
		h.Users = mustReadUsers("user eve on nopass allchannels +@all\nuser bob on nopass allchannels +@all\n")
		for range backlog {
			h.publishAll(t, "k.a", strings.Repeat("x", 60<<10))
		}
		f(&replayFixture{T: t, h: h, s: serveVirtual(t, h, tcp.Limits{})})
	})
}

// connectForReplay connects a client of a user and requests messages since an id. An empty addrText means an
// address of its own.
func (c *replayFixture) connectForReplay(user, addrText, since string, reads bool) *tcptest.Peer {
	c.n++
	addr := netip.AddrFrom4([4]byte{10, 0, byte(c.n >> 8), byte(c.n)})
	if addrText != "" {
		addr = netip.MustParseAddr(addrText)
	}
	p := c.s.DialFrom(netip.AddrPortFrom(addr, uint16(1024+c.n)))
	if !reads {
		p.StopReading()
	}
	auth := map[string]string{"eve": "ZXZlOg==", "bob": "Ym9iOg=="}[user] // with an empty password
	if auth != "" {
		auth = "Authorization: Basic " + auth + "\r\n"
	}
	p.Send("GET /events?topic=k.a&since=" + since + " HTTP/1.1\r\nHost: localhost\r\n" + auth + "\r\n")
	return p
}

func (c *replayFixture) measureReplay(p *tcptest.Peer) time.Duration {
	c.Helper()
	began, last := time.Now(), fmt.Sprintf("id: e-%d\n", backlog+3)
	for text := ""; time.Since(began) < time.Minute; time.Sleep(time.Millisecond) {
		synctest.Wait()
		c.s.Advance(0)
		if text += p.Output(); strings.Contains(text, last) {
			return time.Since(began)
		}
		if strings.Contains(text, "event: refused") {
			c.Fatalf("it is refused after %v: %.200s", time.Since(began), text[strings.Index(text, "event: refused"):])
		}
	}
	c.Fatal("it has not got the backlog after a minute")
	return 0
}

func (c *replayFixture) advance(d time.Duration) {
	for end := time.Now().Add(d); ; time.Sleep(10 * time.Millisecond) {
		synctest.Wait()
		c.s.Advance(0)
		if !time.Now().Before(end) {
			return
		}
	}
}

// TestStalledReplaysDoNotDelayOthers checks that 80 stalled clients of one user or address don't delay others,
// and their own kind by seconds only, and that those which read again get all messages.
func TestStalledReplaysDoNotDelayOthers(t *testing.T) {
	for name, test := range map[string]struct{ evil, from, good, at string }{
		"user":                  {"eve", "", "bob", ""},
		"user, of one address":  {"eve", "198.51.100.7", "bob", "198.51.100.7"},
		"address without users": {"", "198.51.100.7", "", ""},
		"network without users": {"", "2001:db8::1", "", "2001:db8:0:1::1"},
	} {
		t.Run(name, func(t *testing.T) {
			runWithBacklog(t, &Replay{}, func(c *replayFixture) {
				if test.evil == "" {
					c.h.Users = nil
				}
				var stalled *tcptest.Peer
				for range 80 {
					stalled = c.connectForReplay(test.evil, test.from, "e-3", false)
				}
				c.advance(0)
				if n := c.h.Stats().Replay.Waiting; n != 80 {
					t.Fatalf("%d wait; expected 80", n)
				}
				if took := c.measureReplay(c.connectForReplay(test.good, test.at, "e-3", true)); took > 50*time.Millisecond {
					t.Errorf("somebody else waits for %v", took)
				}
				if took := c.measureReplay(c.connectForReplay(test.evil, test.from, "e-3", true)); took > 6*time.Second {
					t.Errorf("one of them waits for %v", took)
				}
				stalled.StartReading()
				c.measureReplay(stalled)
				if s := c.h.Stats().Replay; s.Stalled == 0 || s.Refused != 0 {
					t.Errorf("%+v; expected that clients which did not read lost their turns, and none was refused", s)
				}
			})
		})
	}
}

// TestReplayQueueShare checks that a user's clients can't use up the queue, and that closed clients leave it.
func TestReplayQueueShare(t *testing.T) {
	runWithBacklog(t, &Replay{MaxReplays: 8}, func(c *replayFixture) {
		const share = (waitersPerTurn + 1) * 2
		var evil []*tcptest.Peer
		for range share + 10 {
			evil = append(evil, c.connectForReplay("eve", "", "e-3", false))
		}
		c.advance(0)
		if s := c.h.Stats().Replay; s.Waiting != share || s.Refused != 10 {
			t.Errorf("%d wait, %d are refused; expected %d and 10", s.Waiting, s.Refused, share)
		}
		c.measureReplay(c.connectForReplay("bob", "", "e-3", true))
		for _, p := range evil[:share] {
			p.Reset()
		}
		c.advance(0)
		if s := c.h.Stats().Replay; s.Waiting != 0 || s.Refused != 10 {
			t.Errorf("%d wait when they have gone, %d are refused; expected 0 and 10", s.Waiting, s.Refused)
		}
	})
}

// TestReplayOfUnissuedID checks that clients with ids that were never issued don't block others. Impossible ids
// are rejected; possible ones wait in a queue of their own.
func TestReplayOfUnissuedID(t *testing.T) {
	const turns = 8
	const all = (waitersPerTurn + 1) * turns
	runWithBacklog(t, &Replay{}, func(c *replayFixture) {
		for n, text := range []string{"e-99999999999", fmt.Sprint("e-", backlog+3+1_000_001)} {
			p := c.connectForReplay("eve", "", text, true)
			c.advance(0)
			if out := p.Output(); !strings.HasPrefix(out, "HTTP/1.1 400") || !strings.Contains(out, text+" has not been issued; the newest is e-43") {
				t.Errorf("%s: %s", text, out)
			}
			if s := c.h.Stats().Replay; s.Unissued != int64(n+1) || s.Waiting != 0 {
				t.Errorf("%s: %+v", text, s)
			}
		}
	})
	runWithBacklog(t, &Replay{MaxReplays: turns}, func(c *replayFixture) {
		c.h.Users = nil // no share limits them
		var early []*tcptest.Peer
		for range all {
			early = append(early, c.connectForReplay("", "", "e-1000", true))
		}
		c.advance(0)
		if s := c.h.Stats().Replay; s.Waiting != all || s.Refused != 0 {
			t.Fatalf("%+v; expected %d to wait", s, all)
		}
		if took := c.measureReplay(c.connectForReplay("", "", "e-3", true)); took > 50*time.Millisecond {
			t.Errorf("somebody else waits for %v", took)
		}
		c.h.Cluster.(*fakeKeepingCluster).asked = 1 // so that Newest answers
		c.advance(unknownPositionDelay + streamNewestTTL)
		if s := c.h.Stats().Replay; s.Waiting != 0 || s.Unissued != all || s.Refused != 0 {
			t.Errorf("%+v; expected %d ids that were not issued", s, all)
		}
		for _, p := range early[:10] {
			if out := p.Output(); !strings.Contains(out, `{"op":"gap","id":"e-43","topic":"k.a"}`) {
				t.Errorf("it is told %.300s; expected a gap", out)
			}
		}
	})
}

// TestFairLimit checks that the waiter whose owners hold least is admitted next, and that a cancelled one holds
// nothing.
func TestFairLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := fairSemaphore{max: 4, maxEach: 2}
		var order []string
		here := quotaOwner{addr: netip.MustParseAddr("::1")}
		a, b, c := []quotaOwner{{user: &user{name: "a"}}}, []quotaOwner{{user: &user{name: "b"}}, here}, []quotaOwner{here}
		wait := func(ctx context.Context, name string, owners []quotaOwner) {
			go func() {
				if l.acquire(ctx, owners) == nil {
					order = append(order, name)
				}
			}()
			synctest.Wait()
		}
		wants := func(want string, n int) {
			t.Helper()
			synctest.Wait()
			if have := strings.Join(order, " "); have != want || l.slotsInUse() != n {
				t.Fatalf("%s, %d holders; expected %s, %d", have, l.slotsInUse(), want, n)
			}
		}
		for _, name := range []string{"a1", "a2", "a3", "a4"} { // the share of a is 2
			wait(t.Context(), name, a)
		}
		wants("a1 a2", 2)
		ctx, cancel := context.WithCancel(t.Context())
		wait(ctx, "b1", b)
		wait(ctx, "c1", c)
		wait(ctx, "b2", b)
		wait(ctx, "c2", c)
		wait(ctx, "c3", c)
		wants("a1 a2 b1 c1", 4)
		if l.tryAcquire(a) || l.tryAcquire(c) {
			t.Error("a fifth is admitted")
		}
		l.releaseAndAdmitWaiters(a) // the owners of waiters hold: a 1, c 2, b 3
		wants("a1 a2 b1 c1 a3", 4)
		l.releaseAndAdmitWaiters(b) // a has its share of 2, c holds 1, and so does b, which has waited longer
		wants("a1 a2 b1 c1 a3 b2", 4)
		cancel() // c2 and c3 stop waiting
		synctest.Wait()
		l.releaseAndAdmitWaiters(c)
		wants("a1 a2 b1 c1 a3 b2", 3)
		l.releaseAndAdmitWaiters(a)
		wants("a1 a2 b1 c1 a3 b2 a4", 3)
		for _, owners := range [][]quotaOwner{a, a, b} {
			l.releaseAndAdmitWaiters(owners)
		}
		wants("a1 a2 b1 c1 a3 b2 a4", 0)
		if len(l.held) != 0 || len(l.waiting) != 0 {
			t.Errorf("%v and %v are left", l.held, l.waiting)
		}
	})
}

// TestFairLimitShares checks that an address has twice the share of a user, and that a few greedy owners leave capacity
// for others.
func TestFairLimitShares(t *testing.T) {
	address := func(i byte) quotaOwner { return quotaOwner{addr: netip.AddrFrom4([4]byte{127, 0, 0, i})} }
	l := fairSemaphore{max: 100, maxEach: 3}
	for n := range 7 {
		if ok := l.tryAcquire([]quotaOwner{{user: &user{}}, address(1)}); ok != (n < 6) {
			t.Errorf("the holder %d of an address is admitted: %v", n+1, ok)
		}
	}
	l = fairSemaphore{max: 4160, maxEach: 1040, keepSpare: true}
	for i := range byte(8) {
		for l.tryAcquire([]quotaOwner{address(i)}) {
		}
	}
	if !l.tryAcquire([]quotaOwner{address(8)}) {
		t.Errorf("%d of %d places are taken, and the first client of another address is refused", l.slotsInUse(), l.max)
	}
}

// TestReplayStepBounds checks that a step of a replay is limited in work and output.
func TestReplayStepBounds(t *testing.T) {
	h := &Hub{Replay: &Replay{Topics: []string{"*"}}}
	r := h.Replay
	r.Begin("e", 1)
	const messages = 1000
	for seq := range uint64(messages) {
		r.addWithinTopicLimitsLocked(seq+1, time.Now(), strings.Repeat("x", 1000), make([]byte, 100))
	}
	r.SetLoaded(messages)
	replay := func(kind Kind, names ...string) *clientReplay {
		s := &clientReplay{hub: h, client: &client{user: unrestrictedUser, format: formatEvents}, pos: Position{"e", 0}}
		for _, name := range names {
			s.topics = append(s.topics, &topic{kind: kind, name: name})
		}
		s.indexTopicsAndCompilePatterns()
		return s
	}
	var patterns []string
	work := messageLookupUnits
	for i := range 22 {
		patterns = append(patterns, "*"+strings.Repeat("?", 500+i)+"[b]*")
		work += compileGlob(patterns[i]).maxMatchWork(1000)
	}
	s := replay(Pattern, patterns...)
	if s.prepareStepAndJoinIfLast(laterStepLimits) || s.pos.Seq > uint64(laterStepLimits.work/work+1) {
		t.Errorf("a step with patterns of %d units looks at %d messages", work, s.pos.Seq)
	}
	s = replay(Topic, strings.Repeat("x", 1000))
	if s.prepareStepAndJoinIfLast(laterStepLimits) || s.pos.Seq == 0 || len(s.pending.buf) < laterStepLimits.bytes || len(s.pending.buf) > 2*laterStepLimits.bytes {
		t.Errorf("a step makes %d bytes of %d messages", len(s.pending.buf), s.pos.Seq)
	}
	s.rollBackPending()
	r.messages[0].data = make([]byte, 1<<20)
	if s.prepareStepAndJoinIfLast(firstStepLimits) || len(s.pending.buf) > 0 {
		t.Errorf("the first step makes %d bytes of a large message", len(s.pending.buf))
	}
}
