package enginetest

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

// This file tests the cost of messages to many connections, and which messages slow connections miss.

var fanCases = []testCase{
	{"broadcasts that wait go out together", func(b *testEnv) { testMessagesTogether(b, true) }},
	{"mail that waits goes out together", func(b *testEnv) { testMessagesTogether(b, false) }},
	{"messages to many are in order with those to one", testGroupAndSingleSendOrder},
	{"delayed output is sent after the delay", func(b *testEnv) { testDelayedOutput(b, 5*time.Millisecond, func(*delayedRun) {}) }},
	{"delayed output is sent in one write, before a request for the connection", func(b *testEnv) {
		testDelayedOutput(b, time.Hour, func(d *delayedRun) {
			for _, r := range d.refs {
				b.checkNoError(r.Nudge())
			}
		})
	}},
	{"delayed output is sent when a large message follows", func(b *testEnv) { testDelayedOutput(b, time.Hour, (*delayedRun).sendLarge) }},
	{"delayed output is sent when the engine stops", func(b *testEnv) { testDelayedOutput(b, time.Hour, func(d *delayedRun) { d.stop(background(b)) }) }},
	{"delayed output is limited", testDelayedOutputLimits},
	{"what was missed in a group is reported", testMissedInGroup},
	{"no message of a group behind an answer to who has left", testLeaveGroup},
	{"a value that is not sent is replaced", testLatestToSlowReader},
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

// delayedRun is a server whose clients wait for delayed messages of groups and Refs.
type delayedRun struct {
	*server
	refs  []engine.Ref
	large string // sent to all by sendLarge
	many  engine.Group
}

func (d *delayedRun) sendLarge() {
	d.large = strings.Repeat("x", 16<<10)
	d.many.Broadcast([]byte(d.large))
}

// testDelayedOutput sends messages that are delayed. Requests that concern other connections must not end the delay;
// release must end it.
func testDelayedOutput(b *testEnv, delay time.Duration, release func(d *delayedRun)) {
	const conns, messages = 20, 30
	nudged := make(chan bool, 1)
	d := &delayedRun{server: b.startServer(&Script{Nudged: func(c *engine.Conn) {
		if c.Value() != nil {
			nudged <- true
		}
	}, Received: func(c *engine.Conn, in []byte) int {
		c.SetValue(true)
		c.Write(in)
		return len(in)
	}}, func(cfg *engine.Config) { cfg.WriteDelay, cfg.Limits.MaxMail = delay, 4*2*conns*messages })}
	clients := d.dialMany(conns)
	d.refs = d.wantOpened(conns)
	other := d.dial()
	other.exchange("other") // an answer is not delayed
	delayed := delay == time.Hour && d.Loops() > 0
	if delayed {
		testkit.WaitFor(b, "the write of the answer is not counted", func() bool { return d.Counters()[engine.Writes] > 0 })
	}
	writes := d.Counters()[engine.Writes]
	want := ""
	var few engine.Group
	few.Add(d.refs[0])
	for _, r := range d.refs {
		d.many.Add(r)
	}
	for i := range messages {
		text := fmt.Sprintf("%d,", i)
		want += text + text
		d.many.Broadcast([]byte(text))
		few.Broadcast([]byte(text))
		for _, r := range d.refs[1:] {
			b.checkNoError(r.Send([]byte(text)))
		}
	}
	b.checkNoError(d.wantOpened(conns + 1)[conns].Nudge())
	testkit.Receive(b, nudged, "Nudged of a connection without messages")
	if delayed && d.Counters()[engine.Writes] != writes {
		b.Errorf("%d writes of delayed messages", d.Counters()[engine.Writes]-writes)
	}
	release(d)
	for _, c := range clients {
		c.Expect(want + d.large)
	}
	if n := d.Counters()[engine.Writes] - writes; delayed && d.large == "" && n > 2*conns {
		b.Errorf("%d connections took %d writes for %d messages each", conns, n, 2*messages)
	}
}

// testDelayedOutputLimits sends more than may be delayed.
func testDelayedOutputLimits(b *testEnv) {
	for _, row := range []struct {
		n, size int
		send    func(s *server, r engine.Ref, p []byte) error
	}{
		{10, 1000, func(_ *server, r engine.Ref, p []byte) error { return r.Send(p) }},
		{256, 10, func(_ *server, r engine.Ref, p []byte) error { return r.Send(p) }},
		{256, 10, func(s *server, _ engine.Ref, p []byte) error { return s.BroadcastToAllWorkers(p) }},
		{1, 16 << 10, func(s *server, _ engine.Ref, p []byte) error { return s.BroadcastToAllWorkers(p) }},
		{1, 10, func(_ *server, r engine.Ref, p []byte) error { return r.SendWait(background(b), p) }},
	} {
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

// testMissedInGroup sends to a group of which one peer first does not read and then reads.
func testMissedInGroup(b *testEnv) {
	var missed *atomic.Int64
	s := b.startServer(&Script{}, limited(func(l *engine.Limits) { l.MaxUnsent = 64 << 10 }),
		func(cfg *engine.Config) { cfg.DropMessages, missed = true, countMissed(cfg) })
	slow := s.dial()
	slow.shrinkSocketBuffers()
	var g engine.Group
	g.Add(s.wantOpened(1)[0])
	var readers []*reader
	for range 9 {
		readers = append(readers, s.dial().startReader(b))
	}
	for _, r := range s.wantOpened(10) {
		g.Add(r)
	}
	i := 0
	testkit.WaitFor(b, "nothing is dropped", func() bool {
		g.Broadcast(broadcastMessage(i, 4<<10))
		i++
		return s.Counters()[engine.Dropped] > 20
	})
	readers = append(readers, slow.startReader(b))
	testkit.WaitFor(b, "Missed does not report what was dropped", func() bool { return missed.Load() == s.Counters()[engine.Dropped] })
	testkit.WaitFor(b, "not all messages are received or reported", func() bool {
		n := missed.Load()
		for _, r := range readers {
			n += r.n.Load()
		}
		return n == int64(10*i)
	})
}

// readEnds sends EOF and returns what each client receives until EOF.
func readEnds(b *testEnv, clients []*client) (got []string) {
	for _, c := range clients {
		c.CloseWrite()
		got = append(got, testkit.Receive(b, readAllInBackground(c), "the end"))
	}
	return got
}

// testLeaveGroup removes connections from a small or large group during broadcasts. A message that is sent to a
// connection after its removal must arrive after all messages of the group.
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
	var reported *atomic.Int64
	s := b.startServer(&Script{Closed: func(c *engine.Conn, _ error) { missed <- c.MissedMessages() }},
		limited(func(l *engine.Limits) { l.MaxUnsent = 64 << 10 }), func(cfg *engine.Config) { reported = countMissed(cfg) })
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
	if reason := s.reasons(); len(reason) > 0 {
		b.Fatalf("closed for %v", reason)
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
	testkit.WaitFor(b, "Missed does not report replaced values", func() bool { return reported.Load() == replaced })
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
		// The value after last was set, too, and may have been sent instead.
		if n := got.last.Load(); n < last-1 {
			b.Errorf("the last value that came is %d, %d was published", n, last)
		}
	}
}
