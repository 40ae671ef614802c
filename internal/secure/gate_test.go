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
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// flight is the client's first flight, from a session that then is aborted.
func flight(t testing.TB) []byte {
	t.Helper()
	_, clientCfg := configs(tls.VersionTLS13)
	g := NewGate(1, 1)
	c := clientSide(t, clientCfg, g)
	testkit.WaitFor(t, "a ClientHello", func() bool { c.poll(); return len(c.out) > 0 })
	c.s.Abort()
	g.Wait()
	return c.out
}

// TestGateBounds sends hundreds of clients through a gate of 4 places and 2
// tokens. One goroutine serves them all, so that some wait for long: in a bubble no
// time passes meanwhile, and nobody has to give way.
func TestGateBounds(t *testing.T) {
	now := time.Now() // in which the certificate is valid
	synctest.Test(t, func(t *testing.T) { gateBounds(t, now) })
}

func gateBounds(t *testing.T, now time.Time) {
	const sessions, places, cpus = 300, 4, 2
	serverCfg, clientCfg := configs(tls.VersionTLS13)
	serverCfg.Time = func() time.Time { return now }
	clientCfg.Time = serverCfg.Time
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
	g, clients := NewGate(places, cpus), NewGate(64, 2)
	woken := make(chan *pump, 100*sessions) // each is woken a few times
	for range sessions {
		server, client := serverSide(t, serverCfg, g), clientSide(t, clientCfg, clients)
		p := &pump{t: t, piece: always(500), a: server, b: client}
		server.onWake = func() { woken <- p }
		client.onWake = server.onWake
		p.turn()
		woken <- p // it may have been woken already
	}
	late := time.NewTimer(testkit.Timeout) // since the last one has opened
	defer late.Stop()
	mostRunning, mostWaiting := 0, 0
	for open := make(map[*pump]bool); len(open) < sessions; {
		select {
		case p := <-woken:
			for p.turn() {
			}
			if p.a.err != nil || p.b.err != nil {
				t.Fatalf("server %v, client %v", p.a.err, p.b.err)
			}
			if p.a.open && p.b.open && !open[p] {
				open[p] = true
				late.Reset(testkit.Timeout)
			}
		case <-late.C:
			t.Fatalf("%d sessions of %d have opened", len(open), sessions)
		}
		running, waiting := g.Count()
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
	if running, waiting := g.Count(); running != 0 || waiting != 0 {
		t.Errorf("at the end %d run and %d wait", running, waiting)
	}
}

// TestQueueOrder fills the only place with a handshake that stalls: the others
// wait, without a goroutine, and are served in the order they came. It is in a bubble,
// where it has not stalled for too long before all have come.
func TestQueueOrder(t *testing.T) {
	synctest.Test(t, queueOrder)
}

func queueOrder(t *testing.T) {
	hello := flight(t)
	var order []string
	var mu sync.Mutex
	g := NewGate(1, 1)
	make1 := func(name string) *side {
		cfg := &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, name)
			c := site()
			return &c, nil
		}}
		return serverSide(t, cfg, g)
	}
	var all []*side
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		d := make1(name)
		d.give(hello)
		all = append(all, d)
	}
	if running, waiting := g.Count(); running != 1 || waiting != 4 {
		t.Fatalf("%d run and %d wait, want 1 and 4", running, waiting)
	}
	all[2].s.Abort() // from the middle of the queue
	all[4].s.Abort() // from its end
	all[1].s.Ended() // a peer that has gone can't have a handshake
	if open, err := all[1].s.Step(); open || err != io.ErrUnexpectedEOF {
		t.Errorf("Step after Ended in the queue: %v, %v", open, err)
	}
	if _, waiting := g.Count(); waiting != 1 {
		t.Errorf("%d wait, want 1", waiting)
	}
	last := make1("f")
	last.give(hello)
	testkit.WaitFor(t, "the first answer", func() bool { all[0].poll(); return len(all[0].out) > 0 })
	for _, d := range []*side{all[0], all[3], last} {
		testkit.WaitFor(t, "an answer", func() bool { d.poll(); return len(d.out) > 0 })
		d.s.Abort()
	}
	g.Wait()
	if got := strings.Join(order, ""); got != "adf" {
		t.Errorf("the order is %q, want adf", got)
	}
}

// TestAborts aborts a server's session after each number of bytes, so at every
// stage, and at once or a little later.
func TestAborts(t *testing.T) {
	for v, version := range versions {
		t.Run(v, func(t *testing.T) {
			g, clients := NewGate(2, 1), NewGate(2, 1)
			serverCfg, clientCfg := configs(version)
			for stop := 0; ; stop += 37 {
				server, client := serverSide(t, serverCfg, g), clientSide(t, clientCfg, clients)
				done := abortAfter(t, server, client, stop)
				server.s.Abort()
				client.s.Abort()
				emitted := len(server.out)
				if stop%2 == 0 {
					g.Wait()
					clients.Wait()
				}
				for _, err := range []error{server.s.Write([]byte("x")), server.s.CloseWrite(), server.s.Feed([]byte("x"))} {
					if err != net.ErrClosed {
						t.Fatalf("after Abort: %v, want %v", err, net.ErrClosed)
					}
				}
				server.s.Ended()
				if _, _, err := server.s.Read(server.buf, []byte("x")); err != net.ErrClosed {
					t.Fatalf("Read after Abort: %v", err)
				}
				if len(server.out) != emitted {
					t.Fatal("Emit after Abort")
				}
				if done {
					break
				}
			}
			g.Wait()
			clients.Wait()
		})
	}
}

// abortAfter runs a handshake until the server's side has had so many bytes, and
// says whether it was over before.
func abortAfter(t *testing.T, server, client *side, stop int) (open bool) {
	fed := 0
	testkit.WaitFor(t, "the bytes", func() bool {
		client.poll()
		server.poll()
		client.give(server.collect())
		for _, b := range client.collect() {
			if fed == stop {
				return true
			}
			server.give([]byte{b})
			fed++
		}
		return fed == stop || server.open && client.open
	})
	return fed < stop
}

// TestCallbacks lets a callback panic, and end its goroutine: the session fails,
// and the place and the token are free again.
func TestCallbacks(t *testing.T) {
	hello := flight(t)
	g := NewGate(1, 1)
	for want, f := range map[string]func(){
		"secure: panic in the handshake: oops": func() { panic("oops") },
		"secure: a callback of the tls.Config": runtime.Goexit,
	} {
		d := serverSide(t, &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			f()
			return nil, errors.New("not reached")
		}}, g)
		d.give(hello)
		testkit.WaitFor(t, "the failure", func() bool { d.poll(); return d.err != nil })
		if !strings.HasPrefix(d.err.Error(), want) {
			t.Errorf("got %q, want %q", d.err, want)
		}
		g.Wait()
		if len(g.tokens) != 0 {
			t.Errorf("%d tokens are taken", len(g.tokens))
		}
	}
}

// TestAbortEndsContext aborts while a callback waits for its context.
func TestAbortEndsContext(t *testing.T) {
	g, inside := NewGate(1, 1), make(chan struct{}, 1)
	d := serverSide(t, &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
		inside <- struct{}{}
		<-h.Context().Done()
		return nil, h.Context().Err()
	}}, g)
	d.give(flight(t))
	<-inside
	d.s.Abort()
	g.Wait()
}

// TestFull lets a client send much while the server's handshake has no token: the
// owner is told to stop, nothing is lost, and it is told when to go on.
func TestFull(t *testing.T) {
	t.Run("data", func(t *testing.T) {
		data := random(1, 3*MaxInput)
		serverCfg, clientCfg := configs(tls.VersionTLS13)
		server := fullServer(t, serverCfg, clientCfg, func(client *side) { client.write(data) })
		if string(server.got) != string(data) {
			t.Errorf("%d bytes arrived, not the %d sent", len(server.got), len(data))
		}
	})
	t.Run("certificates", func(t *testing.T) { // the handshake itself is that large
		serverCfg, clientCfg := configs(tls.VersionTLS13)
		serverCfg.ClientAuth = tls.RequireAnyClientCert
		chain := site()
		chain.Certificate = slices.Repeat(chain.Certificate, 2*FullInput/len(chain.Certificate[0]))
		clientCfg.Certificates = []tls.Certificate{chain}
		server := fullServer(t, serverCfg, clientCfg, func(client *side) { client.write([]byte("x")) })
		if got := len(server.s.State().PeerCertificates); got != len(chain.Certificate) {
			t.Errorf("%d certificates arrived, want %d", got, len(chain.Certificate))
		}
	})
}

// fullServer is a server whose input was full during the handshake. It is done
// when something has arrived and nothing is under way.
func fullServer(t *testing.T, serverCfg, clientCfg *tls.Config, send func(*side)) *side {
	server, client, g := lateServer(t, serverCfg, clientCfg)
	send(client)
	p := &pump{t: t, a: server, b: client, piece: upTo(1, 64<<10)}
	for p.turn() {
	}
	if !server.s.Full() || len(server.held) == 0 || server.open {
		t.Fatalf("full is %v, %d bytes are held, open is %v", server.s.Full(), len(server.held), server.open)
	}
	if n := len(server.s.hs.Load().in); n > MaxInput {
		t.Errorf("%d bytes are kept, the most is %d", n, MaxInput)
	}
	<-g.tokens
	p.until("something has arrived", func() bool { return len(server.got) > 0 || server.err != nil })
	if server.err != nil {
		t.Fatal(server.err)
	}
	return server
}

// lateServer is an open client, whose last flight is not on its way yet, and its
// server, which can't go on until somebody takes the token out of its gate.
func lateServer(t *testing.T, serverCfg, clientCfg *tls.Config) (server, client *side, g *Gate) {
	g = NewGate(1, 1)
	server = serverSide(t, serverCfg, g)
	client = clientSide(t, clientCfg, NewGate(1, 1))
	t.Cleanup(func() {
		server.s.Abort()
		client.s.Abort()
		g.Wait()
	})
	hasAnswered := false // then the client's next flight is kept back
	testkit.WaitFor(t, "the client to open", func() bool {
		server.poll()
		client.poll()
		if !hasAnswered {
			server.give(client.collect())
		}
		answer := server.collect()
		hasAnswered = hasAnswered || len(answer) > 0
		client.give(answer)
		return client.open
	})
	g.tokens <- struct{}{} // when it waits, and so has given it back
	return server, client, g
}

// TestEndedBeforeOpen ends the transport when all of the handshake and some data
// has arrived, but before the server's turn.
func TestEndedBeforeOpen(t *testing.T) {
	for _, isClosed := range []bool{false, true} {
		serverCfg, clientCfg := configs(tls.VersionTLS13)
		server, client, g := lateServer(t, serverCfg, clientCfg)
		client.write([]byte("short"))
		want := io.ErrUnexpectedEOF
		if isClosed {
			want = io.EOF
			if err := client.s.CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}
		server.give(client.collect())
		server.end()
		<-g.tokens
		testkit.WaitFor(t, "the end", func() bool { server.poll(); return server.err != nil })
		if !server.open || string(server.got) != "short" || server.err != want {
			t.Errorf("open is %v, got %q, then %v, want %v", server.open, server.got, server.err, want)
		}
	}
}

func TestTooMuchInput(t *testing.T) {
	g := NewGate(1, 1)
	first := serverSide(t, &tls.Config{}, g)
	g.tokens <- struct{}{}
	hello := flight(t)
	first.give(hello)
	queued := serverSide(t, &tls.Config{}, g)
	if err := queued.s.Feed(hello); err != nil {
		t.Fatal(err)
	}
	if queued.s.Full() {
		t.Error("full after a ClientHello")
	}
	for range MaxInput/1000 - 3 {
		if err := queued.s.Feed(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	if !queued.s.Full() {
		t.Error("not full")
	}
	err := queued.s.Feed(make([]byte, 4000))
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint(MaxInput)) {
		t.Errorf("more than the most: %v", err)
	}
	if _, waiting := g.Count(); waiting != 0 {
		t.Error("it still waits for a place")
	}
	first.s.Abort()
	g.Wait() // though it never got a token
	<-g.tokens
}

// TestNoWakeAfterAbort is about what a slab of connections relies on.
func TestNoWakeAfterAbort(t *testing.T) {
	hello := flight(t)
	serverCfg, _ := configs(tls.VersionTLS13)
	g := NewGate(4, 2)
	for i := range 200 {
		o := &strict{t: t}
		s := Server(serverCfg, g, o, nil)
		if err := s.Feed(hello); err != nil {
			t.Fatal(err)
		}
		for range i % 20 * 10 {
			runtime.Gosched()
		}
		s.Abort()
		o.isGone.Store(true)
	}
	g.Wait()
}

type strict struct {
	t      *testing.T
	isGone atomic.Bool
}

func (o *strict) Emit([]byte) { o.t.Error("Emit without a Step") }
func (o *strict) Wake() {
	if o.isGone.Load() {
		o.t.Error("Wake after Abort")
	}
}
