package myriad

import (
	"net"
	"sync"
)

// Listener is a Server's Handler that is a net.Listener, too: for libraries that take
// connections with Accept, such as net/http.
//
//	l := myriad.NewListener()
//	srv := &myriad.Server{Addr: ":8080", Handler: l, Stopping: func() { go web.Shutdown(ctx) }}
//	go web.Serve(l) // an *http.Server
//	err := srv.ListenAndServe(ctx)
//
// Each connection is a [*NetConn]. A library that has a goroutine for each connection,
// which waits in Read, has one here too: what is spared is package net. Code that can be
// called when there is something to read does better with a [Blocking] handler.
//
// Accept fails with net.ErrClosed when the server is told to end, or Close was called. A
// drain waits until the library has closed the connections: it is best told to end, too
// (Server.Stopping), and what it keeps open is closed when the time of the drain is over.
type Listener struct {
	mu     sync.Mutex
	come   sync.Cond
	queue  []*NetConn // at most as many as Limits.MaxConns
	closed bool
	server *Server
}

// NewListener makes a Listener.
func NewListener() *Listener {
	l := new(Listener)
	l.come.L = &l.mu
	return l
}

// Accept implements net.Listener. The connection is a *NetConn.
func (l *Listener) Accept() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) == 0 && !l.closed {
		l.come.Wait()
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
func (l *Listener) Close() error {
	l.mu.Lock()
	l.closed = true
	queue := l.queue
	l.queue = nil
	l.come.Broadcast()
	l.mu.Unlock()
	for _, n := range queue {
		_ = n.Close() // it may have closed
	}
	return nil
}

// Addr implements net.Listener: what the server listens on, or an address without host
// and port before it does.
func (l *Listener) Addr() net.Addr {
	l.mu.Lock()
	s := l.server
	l.mu.Unlock()
	if s == nil {
		return &net.TCPAddr{}
	}
	return s.listensOn()
}

// begin tells whose handler it is.
func (l *Listener) begin(s *Server) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.server = s
}

// Opened implements Handler.
func (l *Listener) Opened(c *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		c.Close()
		return
	}
	n := newNetConn(c)
	n.attach(c)
	c.SetValue(n)
	l.queue = append(l.queue, n)
	l.come.Signal()
}

// Received implements Handler.
func (l *Listener) Received(c *Conn, in []byte) int {
	if n, ok := c.Value().(*NetConn); ok {
		n.arrived(c, in)
	}
	return len(in)
}

// Ended implements Handler.
func (l *Listener) Ended(c *Conn, rest []byte) int {
	if n, ok := c.Value().(*NetConn); ok {
		n.arrived(c, rest)
		n.end()
	}
	return len(rest)
}

// Writable implements WritableHandler.
func (l *Listener) Writable(c *Conn) {
	if n, ok := c.Value().(*NetConn); ok {
		n.drained()
	}
}

// Closed implements Handler.
func (l *Listener) Closed(c *Conn, why error) {
	if n, ok := c.Value().(*NetConn); ok {
		n.finish(why)
	}
}
