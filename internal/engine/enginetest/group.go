package enginetest

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

// This file tests the cost of messages to many connections, and their order.

var fanCases = []testCase{
	{"broadcasts that wait go out together", func(b *testEnv) { testMessagesTogether(b, true) }},
	{"mail that waits goes out together", func(b *testEnv) { testMessagesTogether(b, false) }},
	{"delayed output is sent after the delay", func(b *testEnv) { testDelayedOutput(b, 5*time.Millisecond, func(*server, engine.Ref) {}) }},
	{"delayed output is sent in one write, before a request for the connection", func(b *testEnv) {
		testDelayedOutput(b, time.Hour, func(_ *server, r engine.Ref) { b.checkNoError(r.Nudge()) })
	}},
	{"delayed output is sent when the engine stops", func(b *testEnv) {
		testDelayedOutput(b, time.Hour, func(s *server, _ engine.Ref) { s.stop(background(b)) })
	}},
	{"delayed output is limited", testDelayedOutputLimits},
	{"what was missed in a group is reported", testMissedInGroup},
	{"messages of a group are between those before it and those behind it", testLeaveGroup},
}

// blockHandler blocks the handler of a new connection until release is called.
func (b *testEnv) blockHandler(script *Script, changes ...with) (s *server, held *client, ref engine.Ref, release func()) {
	entered, wait := make(chan struct{}), make(chan struct{})
	script.Received = func(_ *engine.Conn, in []byte) int {
		if in[0] == 'h' {
			close(entered)
			<-wait
		}
		return len(in)
	}
	s = b.startServer(script, changes...)
	held = s.dial()
	ref = s.wantOpened(1)[0]
	held.Send("h")
	testkit.Receive(b, entered, "the handler")
	return s, held, ref, func() { close(wait) }
}

// testMessagesTogether checks that messages that wait for a slow handler are sent in few system
// calls.
func testMessagesTogether(b *testEnv, casts bool) {
	const messages = 200
	s, held, ref, release := b.blockHandler(&Script{})
	want := ""
	for i := range messages {
		text := fmt.Sprintf("%d,", i)
		if want += text; casts {
			s.broadcast([]byte(text))
		} else {
			b.requireNoError(ref.Send([]byte(text)))
		}
	}
	if casts && s.Loops() == 0 { // here, the blocked owner does not deliver the broadcasts
		testkit.WaitFor(b, "broadcasts stay under way", func() bool { return s.Counters()[engine.ActiveBroadcasts] == 0 })
	}
	if n := s.Counters(); n[engine.ActiveBroadcasts] > 0 && (n[engine.ActiveBroadcastBytes] == 0 || n[engine.OldestBroadcastAge] == 0) {
		b.Errorf("of %d broadcasts under way %d bytes are counted, and an age of %d ns", n[engine.ActiveBroadcasts], n[engine.ActiveBroadcastBytes], n[engine.OldestBroadcastAge])
	}
	release()
	held.Expect(want)
	if n := s.Counters()[engine.Writes]; n > messages/10 {
		b.Errorf("%d messages that had waited took %d sends", messages, n)
	}
	testkit.WaitFor(b, "broadcasts stay under way", func() bool {
		n := s.Counters()
		return n[engine.ActiveBroadcasts] == 0 && n[engine.ActiveBroadcastBytes] == 0 && n[engine.OldestBroadcastAge] == 0
	})
}

// testDelayedOutput sends messages that are delayed, to a group and to its members. Requests that concern other
// connections must not end the delay; release must end it.
func testDelayedOutput(b *testEnv, delay time.Duration, release func(s *server, r engine.Ref)) {
	const conns, messages = 20, 30
	nudged := make(chan engine.Ref, 2*conns)
	s := b.startServer(&Script{Nudged: func(c *engine.Conn) { nudged <- c.Ref() }},
		func(cfg *engine.Config) { cfg.WriteDelay, cfg.Limits.MaxMail = delay, 4*2*conns*messages })
	clients := s.dialMany(conns)
	refs := s.wantOpened(conns)
	other := s.dial()
	otherRef := s.wantOpened(conns + 1)[conns]
	var g engine.Group
	for _, r := range refs {
		g.Add(r)
	}
	want := ""
	for i := range messages {
		text := fmt.Sprintf("%d,", i)
		want += text + text
		g.Broadcast([]byte(text))
		for _, r := range refs {
			b.checkNoError(r.Send([]byte(text)))
		}
	}
	b.checkNoError(otherRef.Nudge())
	if r := testkit.Receive(b, nudged, "Nudged of a connection without messages"); r != otherRef {
		b.Errorf("Nudged of %v, want %v", r, otherRef)
	}
	together := delay == time.Hour && s.Loops() > 0
	if n := s.Counters()[engine.Writes]; together && n > 0 {
		b.Errorf("%d writes of delayed messages", n)
	}
	for _, r := range refs {
		release(s, r)
	}
	for _, c := range clients {
		c.Expect(want)
	}
	if n := s.Counters()[engine.Writes]; together && n > 2*conns {
		b.Errorf("%d connections took %d writes for %d messages each", conns, n, 2*messages)
	}
	other.CloseWrite()
	other.ExpectEOF("")
}

// testDelayedOutputLimits sends more than may be delayed.
func testDelayedOutputLimits(b *testEnv) {
	send := func(_ *server, r engine.Ref, p []byte) error { return r.Send(p) }
	broadcast := func(s *server, _ engine.Ref, p []byte) error { return s.BroadcastToAllConns(p) }
	wait := func(_ *server, r engine.Ref, p []byte) error { return r.SendWait(background(b), p) }
	for _, row := range []struct {
		n, size int
		send    func(s *server, r engine.Ref, p []byte) error
	}{{10, 1000, send}, {256, 10, send}, {256, 10, broadcast}, {1, 16 << 10, broadcast}, {1, 10, wait}} {
		s := b.startServer(&Script{}, limited(func(l *engine.Limits) { l.MaxUnsent = 40_000 }),
			func(cfg *engine.Config) { cfg.WriteDelay = time.Hour })
		c := s.dial()
		r := s.wantOpened(1)[0]
		for i := range row.n {
			b.checkNoError(row.send(s, r, broadcastMessage(i, row.size)))
		}
		for i := range row.n {
			c.Expect(string(broadcastMessage(i, row.size)))
		}
	}
}

// countMissed makes Missed add to the result.
func countMissed(cfg *engine.Config) *atomic.Int64 {
	n := new(atomic.Int64)
	cfg.Missed = func(_ *engine.Conn, missed int64) { n.Add(missed) }
	return n
}

// testMissedInGroup sends to a large enough group of which one peer first does not read and then reads.
func testMissedInGroup(b *testEnv) {
	var missed *atomic.Int64
	s := b.startServer(&Script{}, limited(func(l *engine.Limits) { l.MaxUnsent = 64 << 10 }),
		func(cfg *engine.Config) { cfg.DropMessages, missed = true, countMissed(cfg) })
	clients := s.dialMany(10)
	var g engine.Group
	for _, r := range s.wantOpened(10) {
		g.Add(r)
	}
	clients[0].shrinkSocketBuffers()
	var readers []*reader
	for _, c := range clients[1:] {
		readers = append(readers, c.startReader(b))
	}
	i := 0
	testkit.WaitFor(b, "nothing is dropped", func() bool {
		g.Broadcast(broadcastMessage(i, 4<<10))
		i++
		return s.Counters()[engine.Dropped] > 20
	})
	readers = append(readers, clients[0].startReader(b))
	testkit.WaitFor(b, "Missed does not report what was dropped", func() bool { return missed.Load() == s.Counters()[engine.Dropped] })
	testkit.WaitFor(b, "not all messages are received or reported", func() bool {
		n := missed.Load()
		for _, r := range readers {
			n += r.n.Load()
		}
		return n == int64(10*i)
	})
}

// testLeaveGroup removes connections from a small or large group during broadcasts. Messages to one connection before
// the broadcasts, and after its removal, must arrive before and after all messages of the group.
func testLeaveGroup(b *testEnv) {
	s, opened := b.startServer(&Script{}), 0
	for _, conns := range []int{1, 5, 60} {
		clients := s.dialMany(conns)
		opened += conns
		refs := s.wantOpened(opened)[opened-conns:]
		var g engine.Group
		for _, r := range refs {
			g.Add(r)
			b.checkNoError(r.Send([]byte("first")))
		}
		var over atomic.Bool
		var broadcasts sync.WaitGroup
		for range 2 {
			broadcasts.Go(func() {
				for !over.Load() {
					g.Broadcast([]byte("m"))
					runtime.Gosched()
				}
			})
		}
		for _, r := range refs {
			g.Remove(r)
			testkit.WaitFor(b, "no room for an answer", func() bool { return r.Send([]byte("left")) == nil })
		}
		over.Store(true)
		broadcasts.Wait()
		for i, c := range clients {
			c.CloseWrite()
			got := testkit.Receive(b, readAllInBackground(c), "the end")
			rest, first := strings.CutPrefix(got, "first")
			rest, left := strings.CutSuffix(rest, "left")
			if !first || !left || strings.Trim(rest, "m") != "" {
				b.Errorf("of %d, client %d got %.20q, want only m between first and left", conns, i, got)
			}
		}
		if n := g.Len(); n != 0 {
			b.Errorf("%d of %d are left in the group", n, conns)
		}
	}
}
