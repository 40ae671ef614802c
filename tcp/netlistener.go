package tcp

import (
	"net"
	"sync"
)

// NetListener is a Server's Handler that is a net.Listener, too: for libraries that take
// connections with Accept, such as net/http.
//
//	l := tcp.NewNetListener()
//	srv := &tcp.Server{Addr: ":8080", Handler: l, Stopping: func() { go web.Shutdown(ctx) }}
//	go web.Serve(l) // an *http.Server
//	err := srv.ListenAndServe(ctx)
//
// Each connection is a [*NetConn]. A library that has a goroutine for each connection,
// which waits in Read, has one here too: what is spared is package net. Code that can be
// called when there is something to read does better with a [Blocking] handler, and a library
// that can wait without a buffer with NetConn.WaitReadable.
//
// Unlike those of net.Listen, quiet connections are closed by the server's limits: one that
// sends nothing within Limits.FirstByteTimeout (1 minute by default) or Limits.IdleTimeout
// (Never by default), and one that takes no output for Limits.WriteTimeout (30 s by default),
// such as a paused download. Never turns each of them off.
//
// With TLS the library's protocols are for the caller to set: Server.TLSConfig has them in
// NextProtos, such as "h2" for gRPC, or clients that use ALPN are refused.
//
// Accept fails with net.ErrClosed when the server shuts down, or Close was called. A
// drain waits until the library has closed the connections: it is best shut down, too
// (Server.Stopping), and what it keeps open is closed when the time of the drain is over.
type NetListener struct {
	mu     sync.Mutex
	queued sync.Cond
	queue  []*NetConn // at most as many as Limits.MaxConns
	closed bool
	server *Server
}

// NewNetListener makes a NetListener.
func NewNetListener() *NetListener {
	l := new(NetListener)
	l.queued.L = &l.mu
	return l
}

// Accept implements net.Listener. The connection is a *NetConn.
func (l *NetListener) Accept() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) == 0 && !l.closed {
		l.queued.Wait()
	}
	if l.closed {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: net.ErrClosed}
	}
	n := l.queue[0]
	if l.queue[0], l.queue = nil, l.queue[1:]; len(l.queue) == 0 {
		l.queue = nil
	}
	return n, nil
}

// Close implements net.Listener: connections that nobody has accepted are closed, and so
// are those that come. The server goes on.
func (l *NetListener) Close() error {
	l.mu.Lock()
	l.closed = true
	queue := l.queue
	l.queue = nil
	l.queued.Broadcast()
	l.mu.Unlock()
	for _, n := range queue {
		_ = n.Close() // it may have closed
	}
	return nil
}

// Addr implements net.Listener: what the server listens on, or an address without host
// and port before it does.
func (l *NetListener) Addr() net.Addr {
	l.mu.Lock()
	s := l.server
	l.mu.Unlock()
	if s == nil {
		return &net.TCPAddr{}
	}
	return s.listenAddrOrZero()
}

// setServer tells whose handler it is.
func (l *NetListener) setServer(s *Server) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.server = s
}

// Opened implements Handler.
func (l *NetListener) Opened(c *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		c.Close()
		return
	}
	n := newNetConn(c)
	n.keepOpen(c)
	c.SetValue(n)
	l.queue = append(l.queue, n)
	l.queued.Signal()
}

// Received implements Handler.
func (l *NetListener) Received(c *Conn, in []byte) int {
	if n, ok := c.Value().(*NetConn); ok {
		n.bufferInput(c, in)
	}
	return len(in)
}

// Ended implements Handler.
func (l *NetListener) Ended(c *Conn, rest []byte) int {
	if n, ok := c.Value().(*NetConn); ok {
		n.bufferInput(c, rest)
		n.markPeerEnded()
	}
	return len(rest)
}

// Closed implements Handler.
func (l *NetListener) Closed(c *Conn, why error) {
	if n, ok := c.Value().(*NetConn); ok {
		n.markConnClosed(why)
	}
}
