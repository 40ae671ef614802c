package secure

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/myriad-go/myriad/internal/testkit"
)

func recordClientHello(t testing.TB) []byte {
	t.Helper()
	_, clientCfg := newConfigs(tls.VersionTLS13)
	g := NewHandshakeLimiter(1, 1)
	c := newClientPeer(t, clientCfg, g)
	c.waitForOutput()
	c.session.Abort()
	g.Wait()
	return c.out
}

// TestHandshakeLimits sends hundreds of clients through a limiter with 4 slots and 2 tokens. One
// goroutine serves all of them, so some wait long; in a synctest bubble no time passes, so none is
// evicted.
func TestHandshakeLimits(t *testing.T) {
	synctest.Test(t, testHandshakeLimits)
}

func testHandshakeLimits(t *testing.T) {
	const sessions, places, cpus = 300, 4, 2
	serverCfg, clientCfg := newConfigs(tls.VersionTLS13)
	clientCfg.CurvePreferences = []tls.CurveID{tls.X25519} // the cheapest
	clientCfg.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	var computing, most atomic.Int64
	serverCfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		defer computing.Add(-1)
		if n := computing.Add(1); n > most.Load() {
			most.Store(n)
		}
		runtime.Gosched()
		return nil, nil
	}
	g, clients := NewHandshakeLimiter(places, cpus), NewHandshakeLimiter(64, 2)
	woken := make(chan *pump, 100*sessions) // each is woken several times
	for range sessions {
		server, client := newServerPeer(t, serverCfg, g), newClientPeer(t, clientCfg, clients)
		p := &pump{t: t, a: server, b: client, piece: fixedPieceSize(500)}
		server.onWake = func() { woken <- p }
		client.onWake = server.onWake
		p.moveOnce()
		woken <- p // it may have been woken already
	}
	mostRunning, mostWaiting := 0, 0
	for open := make(map[*pump]bool); len(open) < sessions; {
		p := testkit.Receive(t, woken, "a session to open")
		for p.moveOnce() {
		}
		if p.a.err != nil || p.b.err != nil {
			t.Fatalf("server %v, client %v", p.a.err, p.b.err)
		}
		if p.a.open && p.b.open {
			open[p] = true
		}
		running, waiting := g.Counts()
		mostRunning, mostWaiting = max(mostRunning, running), max(mostWaiting, waiting)
	}
	if mostRunning > places || mostWaiting == 0 {
		t.Errorf("%d places taken, the most is %d; %d waited", mostRunning, places, mostWaiting)
	}
	if n := most.Load(); n > cpus {
		t.Errorf("%d computed at a time, the most is %d", n, cpus)
	}
	g.Wait()
	clients.Wait()
	if running, waiting := g.Counts(); running != 0 || waiting != 0 {
		t.Errorf("at the end %d run and %d wait", running, waiting)
	}
}

// TestQueueOrder occupies the only slot with a stalled handshake. The others wait without a goroutine
// and are served in order. It runs in a bubble, so that the first one is not evicted too early.
func TestQueueOrder(t *testing.T) {
	synctest.Test(t, testQueueOrder)
}

func testQueueOrder(t *testing.T) {
	hello := recordClientHello(t)
	var order []string
	var mu sync.Mutex
	g := NewHandshakeLimiter(1, 1)
	queue := func(name string) *testPeer {
		d := newServerPeer(t, &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, name)
			c := siteCert()
			return &c, nil
		}}, g)
		d.receiveCiphertext(hello)
		return d
	}
	all := []*testPeer{queue("a"), queue("b"), queue("c"), queue("d"), queue("e")}
	if running, waiting := g.Counts(); running != 1 || waiting != 4 {
		t.Fatalf("%d run and %d wait, want 1 and 4", running, waiting)
	}
	all[2].session.Abort()
	all[4].session.Abort()
	all[1].session.MarkInputEnded() // a peer that has closed cannot complete a handshake
	if open, err := all[1].session.AdvanceHandshake(); open || err != io.ErrUnexpectedEOF {
		t.Errorf("Step after Ended in the queue: %v, %v", open, err)
	}
	if _, waiting := g.Counts(); waiting != 1 {
		t.Errorf("%d wait, want 1", waiting)
	}
	last := queue("f")
	for _, d := range []*testPeer{all[0], all[3], last} {
		d.waitForOutput()
		d.session.Abort()
	}
	g.Wait()
	if got := strings.Join(order, ""); got != "adf" {
		t.Errorf("the order is %q, want adf", got)
	}
}

// TestAborts aborts sessions after each number of steps of the handshake, immediately or a little later.
func TestAborts(t *testing.T) {
	serverCfg, clientCfg := newConfigs(tls.VersionTLS13)
	g := NewHandshakeLimiter(4, 1)
	for stop, open := 0, false; !open; stop++ {
		server, client := newServerPeer(t, serverCfg, g), newClientPeer(t, clientCfg, g)
		p := &pump{t: t, a: server, b: client, piece: fixedPieceSize(200)}
		for range stop {
			p.moveOnce()
			runtime.Gosched()
		}
		open = server.open && client.open
		server.session.Abort()
		client.session.Abort()
		emitted := len(server.out)
		if stop%2 == 0 {
			g.Wait()
		}
		server.session.MarkInputEnded()
		_, _, readErr := server.session.Read(server.buf, []byte("x"))
		for _, err := range []error{readErr, server.session.Write([]byte("x")), server.session.CloseWrite(), server.session.FeedHandshake([]byte("x"))} {
			if err != net.ErrClosed || len(server.out) != emitted {
				t.Fatalf("after Abort: %v, want %v and no Emit", err, net.ErrClosed)
			}
		}
	}
	g.Wait()
}

// TestCallbacks has a callback panic or end its goroutine: the session fails, and the slot and the token
// are released.
func TestCallbacks(t *testing.T) {
	hello := recordClientHello(t)
	g := NewHandshakeLimiter(1, 1)
	for want, f := range map[string]func(){
		"secure: panic in the handshake: oops": func() { panic("oops") },
		"secure: a callback of tls.Config":     runtime.Goexit,
	} {
		d := newServerPeer(t, &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			f()
			return nil, errors.New("not reached")
		}}, g)
		d.receiveCiphertext(hello)
		testkit.WaitFor(t, "the failure", func() bool { d.advanceHandshake(); return d.err != nil })
		if !strings.HasPrefix(d.err.Error(), want) {
			t.Errorf("got %q, want %q", d.err, want)
		}
		g.Wait()
		if len(g.cpuTokens) != 0 {
			t.Errorf("%d tokens are taken", len(g.cpuTokens))
		}
	}
}

// TestAbortEndsContext aborts while a callback waits for its context.
func TestAbortEndsContext(t *testing.T) {
	g, inside := NewHandshakeLimiter(1, 1), make(chan struct{}, 1)
	d := newServerPeer(t, &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
		inside <- struct{}{}
		<-h.Context().Done()
		return nil, h.Context().Err()
	}}, g)
	d.receiveCiphertext(recordClientHello(t))
	<-inside
	d.session.Abort()
	g.Wait()
}

// TestInputFull has a client send much while the server's handshake has no token: the owner is asked to
// pause, nothing is lost, and it is woken to resume.
func TestInputFull(t *testing.T) {
	data := randomBytes(1, 3*MaxHandshakeInput)
	serverCfg, clientCfg := newConfigs(tls.VersionTLS13)
	server := newServerWithFullInput(t, serverCfg, clientCfg, data)
	if string(server.got) != string(data) {
		t.Errorf("%d bytes arrived, not the %d sent", len(server.got), len(data))
	}
	serverCfg.ClientAuth = tls.RequireAnyClientCert // the handshake itself is that large
	chain := siteCert()
	chain.Certificate = slices.Repeat(chain.Certificate, 2*InputPauseSize/len(chain.Certificate[0]))
	clientCfg.Certificates = []tls.Certificate{chain}
	server = newServerWithFullInput(t, serverCfg, clientCfg, []byte("x"))
	if got := len(server.session.State().PeerCertificates); got != len(chain.Certificate) {
		t.Errorf("%d certificates arrived, want %d", got, len(chain.Certificate))
	}
}

// newServerWithFullInput returns a server whose input was full during the handshake, because it had no token, after it
// has received data.
func newServerWithFullInput(t *testing.T, serverCfg, clientCfg *tls.Config, data []byte) *testPeer {
	g := NewHandshakeLimiter(1, 1)
	server, client := newServerPeer(t, serverCfg, g), newClientPeer(t, clientCfg, NewHandshakeLimiter(1, 1))
	t.Cleanup(func() {
		server.session.Abort()
		client.session.Abort()
		g.Wait()
	})
	hasAnswered := false // then the client's next flight is kept back
	testkit.WaitFor(t, "the client to open", func() bool {
		server.advanceHandshake()
		client.advanceHandshake()
		if !hasAnswered {
			server.receiveCiphertext(client.takeOutput())
		}
		answer := server.takeOutput()
		hasAnswered = hasAnswered || len(answer) > 0
		client.receiveCiphertext(answer)
		return client.open
	})
	g.cpuTokens <- struct{}{} // the handshake waits for input and has released it
	client.writePlaintext(data)
	p := &pump{t: t, a: server, b: client, piece: randomPieceSizes(1, 64<<10)}
	for p.moveOnce() {
	}
	if !server.session.IsInputFull() || len(server.pending) == 0 || server.open {
		t.Fatalf("full is %v, %d bytes are held, open is %v", server.session.IsInputFull(), len(server.pending), server.open)
	}
	if n := len(server.session.hs.Load().in); n > MaxHandshakeInput {
		t.Errorf("%d bytes are kept, the most is %d", n, MaxHandshakeInput)
	}
	<-g.cpuTokens
	p.pumpUntil("something has arrived", func() bool { return len(server.got) > 0 || server.err != nil })
	testkit.RequireNoError(t, server.err)
	return server
}

// TestTooMuchInput feeds a handshake that waits for a place more than the maximum.
func TestTooMuchInput(t *testing.T) {
	g := NewHandshakeLimiter(1, 1)
	hello := recordClientHello(t)
	first, queued := newServerPeer(t, &tls.Config{}, g), newServerPeer(t, &tls.Config{}, g)
	g.cpuTokens <- struct{}{}
	first.receiveCiphertext(hello)
	feed := func(p []byte, full bool) {
		t.Helper()
		if err := queued.session.FeedHandshake(p); err != nil || queued.session.IsInputFull() != full {
			t.Fatalf("with %d bytes more: %v, full is %v", len(p), err, !full)
		}
	}
	feed(hello, false)
	feed(make([]byte, MaxHandshakeInput-len(hello)-1000), true)
	err := queued.session.FeedHandshake(make([]byte, 1001))
	if _, waiting := g.Counts(); err == nil || !strings.Contains(err.Error(), fmt.Sprint(MaxHandshakeInput)) || waiting != 0 {
		t.Errorf("more than the most: %v, %d wait for a place", err, waiting)
	}
	queued.session.Abort()
	first.session.Abort()
	g.Wait() // although it never got a token
	<-g.cpuTokens
}

// TestNoWakeAfterAbort checks a guarantee that connection tables rely on.
func TestNoWakeAfterAbort(t *testing.T) {
	hello := recordClientHello(t)
	serverCfg, _ := newConfigs(tls.VersionTLS13)
	g := NewHandshakeLimiter(4, 2)
	for i := range 200 {
		var isGone atomic.Bool
		d := newServerPeer(t, serverCfg, g)
		d.onWake = func() {
			if isGone.Load() {
				t.Error("Wake after Abort")
			}
		}
		d.receiveCiphertext(hello)
		for range i % 20 * 10 {
			runtime.Gosched()
		}
		d.session.Abort()
		isGone.Store(true)
		if len(d.out) > 0 {
			t.Error("Emit without AdvanceHandshake")
		}
	}
	g.Wait()
}
