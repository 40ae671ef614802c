// Package wstest is a WebSocket server for tests: it sends each message back. It
// is built on github.com/coder/websocket, so that a client that gets along with
// it gets along with something that its author hasn't written.
package wstest

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/coder/websocket"
)

// MaxMessage is the size of the longest message, in bytes; one that is longer
// has its connection closed with code 1009.
const MaxMessage = 1 << 20

// Options say how a Server answers. The zero value sends each message back as
// one frame.
type Options struct {
	// Fragment cuts answers in frames of so many bytes, with an empty one at
	// the end. Default 0: an answer is one frame.
	Fragment int
	// PingEvery sends a Ping after so many messages of a connection, again
	// and again, unless the last one has not been answered. It may arrive
	// before, within or behind an answer. Default 0: none.
	PingEvery int
	// CloseAfter sends a Close with code 1000 after so many messages of a
	// connection. Default 0: the client closes.
	CloseAfter int
}

// Server is an echo server. Its methods are safe for concurrent use.
type Server struct {
	options  Options
	ln       net.Listener
	http     http.Server
	messages atomic.Int64
	pongs    atomic.Int64

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	mu     sync.Mutex // guards wait against an Add after Close
	wait   sync.WaitGroup
}

// Serve starts a server, which closes the listener in the end. Whatever path is
// asked for, the upgrade is agreed to.
func Serve(ln net.Listener, options Options) *Server {
	s := &Server{options: options, ln: ln}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.http.Handler = http.HandlerFunc(s.upgrade)
	s.wait.Go(func() { _ = s.http.Serve(ln) })
	return s
}

// Addr is the listener's address.
func (s *Server) Addr() string { return s.ln.Addr().String() }

// Messages is how many messages have come.
func (s *Server) Messages() int64 { return s.messages.Load() }

// Pongs is how many Pings of the server have been answered.
func (s *Server) Pongs() int64 { return s.pongs.Load() }

// Close ends all connections, without a Close frame, and waits for them.
func (s *Server) Close() {
	s.mu.Lock()
	s.cancel()
	s.mu.Unlock()
	_ = s.http.Close()
	s.wait.Wait()
}

// enter counts a connection among those that Close waits for; false if it's too
// late.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.wait.Add(1)
	return true
}

func (s *Server) upgrade(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		return
	}
	defer s.wait.Done()
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return // the client has been told
	}
	p := peer{Server: s, conn: c}
	defer p.pings.Wait()
	defer c.CloseNow()
	c.SetReadLimit(MaxMessage)
	for count := 1; p.echo(count) == nil; count++ {
	}
}

// peer is a connection.
type peer struct {
	*Server
	conn    *websocket.Conn
	pinging atomic.Bool
	pings   sync.WaitGroup
}

// echo answers the connection's next message.
func (p *peer) echo(count int) error {
	kind, message, err := p.conn.Read(p.ctx)
	if err != nil {
		return err
	}
	p.messages.Add(1)
	if every := p.options.PingEvery; every > 0 && count%every == 0 {
		p.ping()
	}
	if err := p.answer(kind, message); err != nil {
		return err
	}
	if count == p.options.CloseAfter {
		return p.conn.Close(websocket.StatusNormalClosure, "enough")
	}
	return nil
}

// ping sends a Ping. What waits for the Pong is a goroutine of its own, as the
// Pong arrives where messages are read.
func (p *peer) ping() {
	if !p.pinging.CompareAndSwap(false, true) {
		return
	}
	p.pings.Go(func() {
		if p.conn.Ping(p.ctx) == nil {
			p.pongs.Add(1)
		}
		p.pinging.Store(false)
	})
}

func (p *peer) answer(kind websocket.MessageType, message []byte) error {
	size := p.options.Fragment
	if size <= 0 {
		return p.conn.Write(p.ctx, kind, message)
	}
	w, err := p.conn.Writer(p.ctx, kind)
	if err != nil {
		return err
	}
	for len(message) > 0 {
		n := min(size, len(message))
		if _, err := w.Write(message[:n]); err != nil {
			return err
		}
		message = message[n:]
	}
	return w.Close()
}
