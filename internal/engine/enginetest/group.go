package enginetest

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

// This file tests the cost of messages to many connections, and what slow ones miss.

var fanCases = []testCase{
	{"broadcasts that wait go out together", func(b *testEnv) { testMessagesTogether(b, true) }},
	{"mail that waits goes out together", func(b *testEnv) { testMessagesTogether(b, false) }},
	{"messages to many are in order with those to one", testGroupAndSingleSendOrder},
	{"no message of a group behind an answer to who has left", testLeaveGroup},
	{"a value that is not sent is replaced", testLatestToSlowReader},
	{"a value to a connection whose handler takes long is replaced", testLatestToBusyHandler},
	{"a value before the end", testLatestAtClose},
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
	if casts && s.Loops() == 0 { // where others than the handler's owner bring them
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

// testGroupAndSingleSendOrder sends alternately to a group and to one of its members.
func testGroupAndSingleSendOrder(b *testEnv) {
	const conns, messages = 40, 150
	s := b.startServer(&Script{}, limited(func(l *engine.Limits) { l.MaxMail = conns * messages * 2 }))
	clients := s.dialMany(conns)
	refs := s.wantOpened(conns)
	var g engine.Group
	for _, r := range refs {
		g.Add(r)
	}
	all, one := "", ""
	for i := range messages {
		text := fmt.Sprintf("%d,", i)
		if sent, full := g.Broadcast([]byte(text)); sent != conns {
			b.Errorf("message %d was sent to %d, no room for %d; want %d, 0", i, sent, full, conns)
		}
		all, one = all+text, one+text
		if i%7 == 0 {
			b.checkNoError(refs[2].Send([]byte("you,")))
			one += "you,"
		}
		if i%50 == 0 {
			runtime.Gosched()
		}
	}
	got := readEnds(b, clients)
	slices.Sort(got)
	want := append(slices.Repeat([]string{all}, conns-1), one)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		b.Errorf("clients got %.200q, want %.200q", got, want)
	}
}

// readEnds sends EOF and returns what each client receives until EOF.
func readEnds(b *testEnv, clients []*client) (got []string) {
	for _, c := range clients {
		c.CloseWrite()
		got = append(got, testkit.Receive(b, readAllInBackground(c), "the end"))
	}
	return got
}

// testLeaveGroup removes connections from a small or large group during broadcasts. What is sent to
// one after its removal must arrive after all messages of the group.
func testLeaveGroup(b *testEnv) {
	s, opened := b.startServer(&Script{}), 0
	for _, conns := range []int{1, 5, 60} {
		clients := s.dialMany(conns)
		opened += conns
		refs := s.wantOpened(opened)[opened-conns:]
		var g engine.Group
		for _, r := range refs {
			g.Add(r)
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
		for i, r := range refs {
			if i%2 == 0 {
				runtime.Gosched()
			}
			g.Remove(r)
			testkit.WaitFor(b, "no room for an answer", func() bool { return r.Send([]byte("left")) == nil })
		}
		over.Store(true)
		broadcasts.Wait()
		for i, got := range readEnds(b, clients) {
			if !strings.HasSuffix(got, "left") {
				b.Errorf("of %d, client %d got %.20q behind the answer", conns, i, got[strings.Index(got, "left")+4:])
			}
		}
		if n := g.Len(); n != 0 {
			b.Errorf("%d of %d are left in the group", n, conns)
		}
	}
}

// sendLatest sets a new value and announces it to a connection.
func (s *server) sendLatest(topic *engine.LatestValue, r engine.Ref, l *engine.LatestSubscription, p []byte) {
	s.t.Helper()
	topic.Set(p)
	if err := r.AnnounceLatest(l, len(p)); err != nil {
		s.t.Errorf("Publish: %v", err)
	}
}

// testLatestToSlowReader sends much more than MaxUnsent. When the peer reads, it must get some of
// the values, each whole, and the last one. The counters must account for all.
func testLatestToSlowReader(b *testEnv) {
	const size = 8 << 10
	missed := make(chan int64, 1)
	s := b.startServer(&Script{Closed: func(c *engine.Conn, _ error) { missed <- c.MissedMessages() }},
		limited(func(l *engine.Limits) { l.MaxUnsent = 64 << 10 }))
	slow := s.dial()
	slow.shrinkSocketBuffers()
	ref := s.wantOpened(1)[0]
	var topic engine.LatestValue
	latest, n := engine.NewSubscriptionToLaterValues(&topic), 0
	testkit.WaitFor(b, "nothing is replaced", func() bool {
		for range 20 {
			s.sendLatest(&topic, ref, latest, broadcastMessage(n, size))
			n++
		}
		return s.Counters()[engine.Replaced] > 1000
	})
	if why := s.reasons(); len(why) > 0 {
		b.Fatalf("closed for %v", why)
	}
	if err := ref.AnnounceLatest(latest, 64<<10+1); err != engine.ErrTooLarge {
		b.Errorf("Publish of more than MaxUnsent: %v, want %v", err, engine.ErrTooLarge)
	}
	got := slow.startReader(b)
	testkit.WaitFor(b, "the last value does not come", func() bool { return got.last.Load() == int64(n-1) })
	replaced := s.Counters()[engine.Replaced]
	if taken := got.n.Load(); taken+replaced != int64(n) {
		b.Errorf("%d values were taken and %d replaced, of %d", taken, replaced, n)
	}
	slow.CloseWrite()
	testkit.Receive(b, got.done, "the end")
	s.wantClosed(io.EOF)
	if n := testkit.Receive(b, missed, "Closed"); n != replaced {
		b.Errorf("the connection has missed %d values, want %d", n, replaced)
	}
	if err := ref.AnnounceLatest(latest, 1); err != engine.ErrClosed {
		b.Errorf("Publish to one that has closed: %v, want %v", err, engine.ErrClosed)
	}
}

func testLatestToBusyHandler(b *testEnv) {
	const values = 50
	s, held, ref, release := b.blockHandler(&Script{}, limited(func(l *engine.Limits) { l.MaxMail = 1 }))
	var topic engine.LatestValue
	latest := engine.NewSubscriptionToLaterValues(&topic)
	for i := range values {
		s.sendLatest(&topic, ref, latest, broadcastMessage(i, 0))
	}
	got := held.startReader(b)
	release()
	testkit.WaitFor(b, "the last value does not come", func() bool { return got.last.Load() == values-1 })
	if n, r := got.n.Load(), s.Counters()[engine.Replaced]; n != 1 || r != values-1 {
		b.Errorf("got %d values, %d were replaced; want 1, %d", n, r, values-1)
	}
	s.sendLatest(&topic, ref, latest, broadcastMessage(values, 0))
	testkit.WaitFor(b, "a later value does not come", func() bool { return got.last.Load() == values })
	held.CloseWrite()
	testkit.Receive(b, got.done, "the end")
}

// testLatestAtClose sends EOF while values arrive. Values set before the connection began to close
// must arrive.
func testLatestAtClose(b *testEnv) {
	s := b.startServer(&Script{})
	for i := range 20 {
		c := s.dial()
		ref := s.wantOpened(i + 1)[i]
		got := c.startReader(b)
		go c.CloseWrite()
		var topic engine.LatestValue
		latest, last := engine.NewSubscriptionToLaterValues(&topic), int64(-1)
		for n := 0; ; n++ {
			topic.Set(broadcastMessage(n, 100))
			if ref.AnnounceLatest(latest, 100) != nil {
				break
			}
			last = int64(n)
		}
		testkit.Receive(b, got.done, "the end of the connection")
		// The next one has been set and may have been taken instead.
		if n := got.last.Load(); n < last-1 {
			b.Errorf("the last value that came is %d, %d was published", n, last)
		}
	}
}
