package enginetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

var relays = []relayTestCase{
	{"Relay to one that does not read", testRelayToSlowReader},
	{"Relay of half-closes", testRelayHalfClose},
	{"Relay that ends on one side", testRelayClose},
	{"Relay of many connections that come and go", testManyRelays},
}

// timedRelayCases test relays with time limits.
var timedRelayCases = []relayTestCase{
	{"Relay gets no broadcasts and no heartbeats", testRelayTimeouts},
	{"Relay that is used one way is not idle", testRelayOneWay},
}

// relayTestCase is a test case for which both connections are on one loop if near is set.
type relayTestCase struct {
	name string
	run  func(b *testEnv, near bool)
}

// relayTestCases returns the cases for a model: with both connections on one loop, and on different
// ones, where possible.
func relayTestCases(m engine.Model, loops int, cases []relayTestCase) (all []testCase) {
	for _, c := range cases {
		if !m.HasLoops || loops > 1 {
			all = append(all, testCase{c.name, func(b *testEnv) { c.run(b, false) }})
		}
		if m.HasLoops {
			all = append(all, testCase{c.name + ", on one loop", func(b *testEnv) { c.run(b, true) }})
		}
	}
	return all
}

// relayServer is a relay server with a fixed target. It turns reading off for a client, dials the
// target, and joins the two. It handles one client at a time and finds its Ref by the source port.
type relayServer struct {
	*server
	b      *testEnv
	near   bool
	target netip.AddrPort

	mu      sync.Mutex
	waiting []engine.Ref
}

func (b *testEnv) startRelay(target netip.AddrPort, near bool, changes ...with) *relayServer {
	r := &relayServer{b: b, near: near, target: target}
	ready := make(chan struct{})
	r.server = b.startServer(&Script{
		Opened: func(c *engine.Conn) {
			if <-ready; !c.IsDialled() {
				r.dialTarget(c)
				return
			}
			r.mu.Lock()
			client := r.waiting[0]
			r.waiting = r.waiting[1:]
			r.mu.Unlock()
			if err := c.RequestRelayWith(client); errors.Is(err, engine.ErrClosed) {
				c.CloseWith(err)
			} else if err != nil {
				b.Errorf("Relay: %v", err)
			}
		},
		Received: func(c *engine.Conn, in []byte) int {
			b.Errorf("Received of a relay: %q", in[:min(len(in), 40)])
			return len(in)
		},
		Ended:      func(*engine.Conn, []byte) { b.Error("Ended of a relay") },
		DialFailed: func(err error) { b.Errorf("DialFailed: %v", err) },
	}, changes...)
	close(ready)
	return r
}

// dialTarget dials the target for a client.
func (r *relayServer) dialTarget(c *engine.Conn) {
	c.SetReading(false)
	d := engine.DialRequest{Target: r.target, Count: 1}
	if r.near {
		d.Loop = c.LoopIndex() + 1
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = append(r.waiting, c.Ref())
	if err := r.Dial(d); err != nil {
		r.b.Errorf("Dial: %v", err)
	}
}

// target accepts connections that a relay has dialled.
type target struct {
	net.Listener
	b *testEnv
}

func newTarget(b *testEnv) target { return target{listen(b), b} }

func (t target) addr() netip.AddrPort { return t.Addr().(*net.TCPAddr).AddrPort() }

// acceptRelayed returns the next connection.
func (t target) acceptRelayed() *client {
	t.b.Helper()
	nc, err := t.Accept()
	testkit.RequireNoError(t.b, err)
	return &client{testkit.NewConn(t.b, nc), t.b}
}

// startRelayed starts a relay, whose target accepts, with one client.
func (b *testEnv) startRelayed(near bool, changes ...with) (r *relayServer, c, up *client) {
	b.Helper()
	t := newTarget(b)
	r = b.startRelay(t.addr(), near, changes...)
	c = r.dial()
	return r, c, t.acceptRelayed()
}

// testRelayToSlowReader sends much data, of which little may be buffered until the other side
// reads.
func testRelayToSlowReader(b *testEnv, near bool) {
	const size = 12 << 20
	for _, toTarget := range []bool{false, true} {
		r, c, up := b.startRelayed(near)
		from, to := up, c
		if toTarget {
			from, to = c, up
		}
		from.shrinkSocketBuffers()
		to.shrinkSocketBuffers()
		sent := from.sendInBackground(testPattern(size))
		testkit.WaitFor(b, "the relay does not pause", func() bool { return r.Counters()[engine.BytesIn] > 128<<10 })
		for range 50 {
			if n := r.Counters()[engine.Buffered]; n > 8<<20 {
				b.Fatalf("%d bytes are buffered for one that does not read", n)
			}
			// The other direction works meanwhile.
			to.Send("ping\n")
			from.Expect("ping\n")
		}
		to.CloseWrite()
		got := testkit.Receive(b, readAllInBackground(to), "what was sent")
		b.checkNoError(compareBytes([]byte(got), testPattern(size)))
		if err := testkit.Receive(b, sent, "the end of sending"); err != nil {
			b.Errorf("sending: %v", err)
		}
		r.wantClosed(io.EOF, io.EOF)
	}
}

// testRelayHalfClose sends EOF before or after the two are joined.
func testRelayHalfClose(b *testEnv, near bool) {
	for _, before := range []bool{false, true} {
		t := newTarget(b)
		r := b.startRelay(t.addr(), near)
		c := r.dial()
		var up *client
		if !before {
			up = t.acceptRelayed()
		}
		c.Send("request")
		c.CloseWrite()
		if before {
			up = t.acceptRelayed()
		}
		up.ExpectEOF("request")
		up.Send("answer")
		c.Expect("answer")
		up.Send(", all of it")
		up.CloseWrite()
		c.ExpectEOF(", all of it")
		r.wantClosed(io.EOF, io.EOF)
	}
}

// testRelayClose resets the target's side, and closes the client's.
func testRelayClose(b *testEnv, near bool) {
	for _, end := range []func(r *relayServer, up *client){
		func(_ *relayServer, up *client) { up.Reset() },
		func(r *relayServer, up *client) {
			b.checkNoError(r.wantOpened(2)[0].Close())
			up.ExpectEOF("")
			up.Close()
		},
	} {
		r, c, up := b.startRelayed(near)
		c.exchangeWith(up, "before\n")
		end(r, up)
		c.ExpectClosed()
		c.Close()
		r.awaitClosed(2)
	}
}

// exchangeWith sends a line in each direction.
func (c *client) exchangeWith(other *client, line string) {
	c.t.Helper()
	c.Send(line)
	other.Expect(line)
	other.Send(line)
	c.Expect(line)
}

func testRelayTimeouts(b *testEnv, near bool) {
	r, c, up := b.startRelayed(near, func(cfg *engine.Config) {
		cfg.Heartbeat = engine.Heartbeat{Every: short / 4, MaxMissed: 2, Send: func(c *engine.Conn) { c.WriteString("beat\n") }}
	})
	c.exchangeWith(up, "before\n")
	b.checkNoError(r.BroadcastToAllConns([]byte("to all\n")))
	c.SetReadDeadline(time.Now().Add(short))
	if n, err := c.Read(make([]byte, 64)); n > 0 || err == nil {
		b.Errorf("a relay got %d bytes that the target has not sent, %v", n, err)
	}
	c.SetReadDeadline(time.Now().Add(patience))
	c.exchangeWith(up, "behind\n")
}

// testRelayOneWay sends in one direction for longer than IdleTimeout, and then waits for the
// timeout.
func testRelayOneWay(b *testEnv, near bool) {
	r, c, up := b.startRelayed(near, limited(func(l *engine.Limits) { l.IdleTimeout = 5 * short }))
	c.exchangeWith(up, "before\n")
	for began := time.Now(); time.Since(began) < 6*short; time.Sleep(short / 4) {
		c.Send("word\n")
		up.Expect("word\n")
	}
	up.ExpectEOF("")
	c.ExpectEOF("")
	up.Close()
	c.Close()
	r.wantClosed(engine.ErrIdleTimeout, engine.ErrIdleTimeout)
}

func testManyRelays(b *testEnv, near bool) {
	r := b.startRelay(echoServer(b), near)
	const n = 20
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			for j := range 5 {
				c, err := tryDial(b, r.Addr().String())
				if err != nil {
					b.Error(err)
					return
				}
				line := fmt.Sprintf("client %d, %d: %s\n", i, j, bytes.Repeat([]byte("x"), 1000*i))
				c.Send(line)
				switch i % 3 {
				case 0: // its target may be dialled when it has gone
					c.Reset()
					continue
				case 1:
					b.checkNoError(c.tryExpect(line))
				case 2:
					b.checkNoError(c.tryExpect(line))
					c.CloseWrite()
					io.Copy(io.Discard, c)
				}
				c.Close()
			}
		})
	}
	running.Wait()
	r.awaitClosed(2 * 5 * n)
}
