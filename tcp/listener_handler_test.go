package tcp

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// namedHandler is a MessageHandler with most optional interfaces. It answers with its name.
type namedHandler struct {
	name    string
	closed  chan error
	starts  atomic.Int32
	members Group
}

func newNamedHandler(name string) *namedHandler {
	return &namedHandler{name: name, closed: make(chan error, 10)}
}

func (h *namedHandler) answer(c *Conn, what string) { fmt.Fprintf(c, "%s %s\n", h.name, what) }

func (h *namedHandler) Opened(c *Conn) { h.members.Add(c.Ref()) }

func (h *namedHandler) Message(c *Conn, line []byte) {
	switch string(line) {
	case "panic":
		panic(h.name)
	case "much":
		h.answer(c, strings.Repeat("x", 9000)) // more than HighWater
	case "timer":
		c.SetTimer(1)
	case "STARTTLS":
		cfg, _ := identity()
		h.answer(c, "starts")
		_ = c.StartTLS(cfg)
	default:
		h.answer(c, string(line))
	}
}

func (h *namedHandler) Closed(_ *Conn, why error) { h.closed <- why }

func (h *namedHandler) Writable(c *Conn) { h.answer(c, "is writable") }
func (h *namedHandler) Timer(c *Conn)    { h.answer(c, "timer") }
func (h *namedHandler) Secured(c *Conn)  { h.answer(c, "is secured") }
func (h *namedHandler) Draining(c *Conn) { h.answer(c, "says bye") }
func (h *namedHandler) Starting(*Server) { h.starts.Add(1) }

func (h *namedHandler) NextProtos([]string) []string { return []string{h.name} }

func (h *namedHandler) Heartbeat(c *Conn) bool {
	h.answer(c, "beats")
	return false
}

func (h *namedHandler) SendToGroup(b Broadcast) (receivers int) {
	receivers, _ = h.members.Broadcast(b.Message)
	return receivers
}

func (s *started) listenerAddrs() (addrs []string) {
	for _, l := range s.ListenerStats() {
		addrs = append(addrs, l.Addr.String())
	}
	return addrs
}

// Each listener has its own handler with all of its optional interfaces.
func TestListenerHandlers(t *testing.T) {
	t.Parallel() // mostly waits
	const addr = "127.0.0.1:0"
	forEachModel(t, func(t *testing.T, model string, loops int) {
		server, client := identity()
		a, b, plain := newNamedHandler("a"), newNamedHandler("b"), Lines(MessageFunc(echoLine))
		accepts := NewNetListener()
		s := startServer(t, &Server{Model: model, Loops: loops, Limits: Limits{HighWater: 8000}, Listeners: []Listener{
			{Addr: addr, Handler: Lines(a)}, {Addr: addr, Handler: Lines(b), TLSConfig: server}, {Addr: addr, Handler: Lines(a)},
			{Addr: addr, Handler: plain}, {Addr: addr, Handler: accepts},
		}})
		at := s.listenerAddrs()
		if n, m := a.starts.Load(), b.starts.Load(); n != 1 || m != 1 {
			t.Errorf("Starting was called %d and %d times, want once for each handler", n, m)
		}
		expectEqual(t, "the NetListener's address", accepts.Addr().String(), at[4])
		client = client.Clone()
		client.NextProtos = []string{"a", "b"}
		onA, onB, shared, onPlain := dial(t, at[0]), testkit.DialTLS(t, at[1], client), dial(t, at[2]), dial(t, at[3])
		accepted := dial(t, at[4])
		nc, err := accepts.Accept()
		requireNoError(t, err)
		_, _ = io.WriteString(nc, "accepted\n")
		accepted.Expect("accepted\n")
		requireNoError(t, nc.Close())
		accepted.ExpectEOF("")

		onA.ExchangeLine("1", "a 1")
		onB.ExchangeLine("1", "b 1")
		shared.ExchangeLine("1", "a 1")
		onPlain.ExchangeLine("1", "1")
		onA.ExchangeLine("timer", "a timer")
		onB.ExchangeLine("timer", "b timer")
		onA.ExchangeLine("much", "a "+strings.Repeat("x", 9000))
		onA.Expect("a is writable\n")

		receivers, err := s.Broadcast(Broadcast{Group: "any", Message: []byte("to all\n")})
		if err != nil || receivers != 3 {
			t.Errorf("Broadcast to the groups of both handlers: %d, %v; want 3 receivers", receivers, err)
		}
		for _, c := range []*testkit.Conn{onA, onB, shared} {
			c.Expect("to all\n")
		}

		secured := dial(t, at[0])
		secured.ExchangeLine("STARTTLS", "a starts")
		_, plainClient := identity()
		encrypted := testkit.NewConn(t, tls.Client(secured.Conn, plainClient))
		encrypted.Expect("a is secured\n")
		encrypted.Close()

		shared.Send("panic\n")
		shared.ExpectClosed()
		waitFor(t, "the panic is not the reason that its handler gets", func() bool {
			return errors.As(testkit.Receive(t, a.closed, "Closed"), new(*PanicError))
		})
		if len(b.closed) > 0 || s.Stats().Panics != 1 {
			t.Errorf("%d panics, and the other handler has %d closed connections", s.Stats().Panics, len(b.closed))
		}

		s.stop()
		onA.ExpectEOF("a says bye\n")
		onB.ExpectEOF("b says bye\n")
		onPlain.ExpectEOF("")
		expectNoError(t, s.waitResult(t))
		if _, err := accepts.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept after the end: %v; want net.ErrClosed", err)
		}
	})
}

// A listener without its own handler has that of the server. Heartbeats are those of each handler.
func TestListenerHandlerHeartbeats(t *testing.T) {
	t.Parallel() // mostly waits
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startServer(t, &Server{Model: model, Loops: loops, Addr: "127.0.0.1:0", Handler: Lines(newNamedHandler("server")),
			Listeners: []Listener{{Addr: "127.0.0.1:0", Handler: Lines(newNamedHandler("own"))}, {Addr: "127.0.0.1:0", Handler: Lines(MessageFunc(echoLine))}, {Addr: "127.0.0.1:0"}},
			Heartbeat: Heartbeat{Interval: minHeartbeat, Message: []byte("beat\n")}})
		var clients []*testkit.Conn
		for _, at := range s.listenerAddrs() {
			clients = append(clients, dial(t, at))
		}
		for i, want := range []string{"server beats\n", "own beats\n", "beat\n", "server beats\n"} {
			clients[i].Expect(want)
		}
	})
}

// On Workers, a listener's handler rejects input if it is a ShedHandler. The others wait.
func TestListenerHandlerSheds(t *testing.T) {
	forEachLoopModel(t, func(t *testing.T, model string) {
		g := newGatedHandler()
		s := startServer(t, &Server{Model: model, Loops: 1, Workers: newPool(t, singleWorker), Listeners: []Listener{
			{Addr: "127.0.0.1:0", Handler: Lines(sheddingHandler{g})}, {Addr: "127.0.0.1:0", Handler: Lines(g)},
		}})
		at := s.listenerAddrs()
		sheds, waits := dialUntilServed(t, at[0]), dialUntilServed(t, at[1])
		blocks := g.blockWorker(t, at[0])
		before := s.Stats().BytesIn
		waits.Send("patient\n")
		waitFor(t, "the patient line has not been read", func() bool { return s.Stats().BytesIn > before })
		sheds.Send("x\n")
		sheds.Expect("busy x\n")
		close(g.gate)
		blocks.Expect("block\n")
		waits.Expect("patient\n")
	})
}
