package enginetest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

var castCases = []testCase{
	{"broadcast to all, in order, while others come and go", testBroadcastToAll},
	{"broadcast to a peer that does not read", func(b *testEnv) { testBroadcastToSlowReader(b, false) }},
	{"broadcast to a peer that does not read, with messages dropped", func(b *testEnv) { testBroadcastToSlowReader(b, true) }},
	{"broadcast to a connection whose handler takes long", testBroadcastToBusyHandlers},
}

// broadcast broadcasts p, and retries while there is no space.
func (s *server) broadcast(p []byte) {
	s.t.Helper()
	if err := retryWhileFull(func() error { return s.BroadcastToAllConns(p) }); err != nil {
		s.t.Errorf("Broadcast: %v", err)
	}
}

func broadcastMessage(i, size int) []byte {
	p := fmt.Appendf(nil, "%d:", i)
	return append(append(p, bytes.Repeat([]byte{'x'}, max(size-len(p)-1, 0))...), '\n')
}

func testBroadcastToAll(b *testEnv) {
	const n, messages = 30, 60
	s := b.startServer(newEchoScript())
	clients := s.dialMany(n)
	for _, c := range clients {
		c.exchange("hello")
	}
	var want bytes.Buffer
	sizes := slices.Repeat([]int{5, 1000, 20 << 10}, messages/3)
	sizes[messages/2] = 300 << 10
	for i, size := range sizes {
		want.Write(broadcastMessage(i, size))
	}
	var readers, passing sync.WaitGroup
	for i, c := range clients {
		readers.Go(func() {
			if err := c.tryExpect(want.String()); err != nil {
				b.Errorf("client %d: %v", i, err)
			}
		})
	}
	stop := make(chan struct{})
	for range 3 {
		passing.Go(func() { connectAndCloseRepeatedly(b, s, stop) })
	}
	for i, size := range sizes {
		s.broadcast(broadcastMessage(i, size))
		for s.Counters()[engine.BytesOut] < int64(i-10)*n && !b.Failed() {
			runtime.Gosched()
		}
	}
	readers.Wait()
	close(stop)
	passing.Wait()
	if got := s.Counters()[engine.Broadcasts]; got != messages {
		b.Errorf("counted %d broadcasts, want %d", got, messages)
	}
	for _, c := range clients {
		c.exchange("goodbye")
	}
}

// connectAndCloseRepeatedly opens connections and closes them in order or by reset.
func connectAndCloseRepeatedly(b *testEnv, s *server, stop <-chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		case <-time.After(time.Millisecond):
		}
		c, err := tryDial(b, s.Addr().String())
		if err != nil {
			b.Errorf("dial: %v", err)
			return
		}
		io.WriteString(c, "hello")
		if i%2 == 0 {
			c.Reset()
		} else {
			c.Close()
		}
	}
}

// broadcastUntil broadcasts until ok, no faster than r receives. It returns the number of messages.
func broadcastUntil(b *testEnv, s *server, size int, r *reader, ok func(n engine.Counts) bool) (n int) {
	testkit.WaitFor(b, "the broadcasts have no effect", func() bool {
		if ok(s.Counters()) {
			return true
		}
		if r != nil && r.n.Load() < int64(n) {
			return false
		}
		for range 20 {
			s.broadcast(broadcastMessage(n, size))
			n++
		}
		return false
	})
	return n
}

// reader counts the messages that a client receives, and checks that they are whole and in order.
type reader struct {
	n, last atomic.Int64 // number of messages received, and number of the last message
	done    chan struct{}
}

func (c *client) startReader(b *testEnv) *reader {
	r := &reader{done: make(chan struct{})}
	r.last.Store(-1)
	go func() {
		defer close(r.done)
		in := bufio.NewReader(c)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				if line != "" {
					b.Errorf("a client's end comes within a message: %s, %v", abbreviate([]byte(line)), err)
				}
				return
			}
			var i int64
			if _, err := fmt.Sscanf(line, "%d:", &i); err != nil || i <= r.last.Load() {
				b.Errorf("a client got message %s after %d", abbreviate([]byte(line)), r.last.Load())
			}
			r.last.Store(i)
			r.n.Add(1)
		}
	}()
	return r
}

// wantAllBroadcasts waits until client c has received all n messages except those dropped for it, and then closes c.
func (r *reader) wantAllBroadcasts(b *testEnv, s *server, c *client, n int) {
	b.Helper()
	testkit.WaitFor(b, fmt.Sprintf("a client did not get all of %d messages", n), func() bool {
		return r.n.Load()+s.Counters()[engine.Dropped] >= int64(n)
	})
	if got, dropped := r.n.Load(), s.Counters()[engine.Dropped]; got+dropped != int64(n) {
		b.Errorf("%d messages were taken and %d are counted as dropped, of %d", got, dropped, n)
	}
	c.CloseWrite()
	testkit.Receive(b, r.done, "a client's end")
}

// testBroadcastToSlowReader checks that a peer that does not read is closed or, if drop is set, misses messages.
func testBroadcastToSlowReader(b *testEnv, drop bool) {
	var missed *atomic.Int64
	s := b.startServer(newEchoScript(), limited(func(l *engine.Limits) { l.MaxUnsent = 256 << 10 }),
		func(cfg *engine.Config) { cfg.DropMessages, missed = drop, countMissed(cfg) })
	slow := s.dial()
	slow.shrinkSocketBuffers()
	if drop {
		s.wantOpened(1)
		n := broadcastUntil(b, s, 8<<10, nil, func(c engine.Counts) bool { return c[engine.Dropped] > 20 })
		if n := s.reasons(); len(n) > 0 {
			b.Errorf("closed for %v", n)
		}
		r := slow.startReader(b)
		testkit.WaitFor(b, "Missed does not report what was dropped", func() bool { return missed.Load() == s.Counters()[engine.Dropped] })
		r.wantAllBroadcasts(b, s, slow, n)
		s.wantClosed(io.EOF)
		return
	}
	quick := s.dial()
	s.wantOpened(2)
	got := quick.startReader(b)
	n := broadcastUntil(b, s, 8<<10, got, func(engine.Counts) bool { return len(s.reasons()) > 0 })
	got.wantAllBroadcasts(b, s, quick, n)
	s.wantClosed(engine.ErrSlowConsumer, io.EOF)
	s.wantClosedByCause(engine.ClosedSlow, 1)
}

// testBroadcastToBusyHandlers blocks one handler and broadcasts until the limits apply. Clients on other loops must
// receive all messages, and the memory for the blocked client's messages must be limited.
func testBroadcastToBusyHandlers(b *testEnv) {
	const size = 1000
	missed := make(chan int64, 1)
	s, held, _, release := b.blockHandler(&Script{Closed: func(c *engine.Conn, _ error) { missed <- c.MissedMessages() }},
		limited(func(l *engine.Limits) { l.MaxUnsent, l.MaxMailBytes = 10*size, 100*size }),
		func(cfg *engine.Config) { cfg.DropMessages = true })
	sent := 0
	for full := 0; full < 5 && sent < 5000; {
		switch err := s.BroadcastToAllConns(broadcastMessage(sent, size)); {
		case errors.Is(err, engine.ErrFull):
			full++
			runtime.Gosched()
		case err != nil:
			b.Fatalf("Broadcast: %v", err)
		default:
			sent++
		}
	}
	release()
	held.startReader(b).wantAllBroadcasts(b, s, held, sent)
	s.wantClosed(io.EOF)
	if got, want := testkit.Receive(b, missed, "Closed"), s.Counters()[engine.Dropped]; got != want {
		b.Errorf("the connection has missed %d messages, %d are counted", got, want)
	}
}
