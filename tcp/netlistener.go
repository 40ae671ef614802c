package tcp

import (
	"net"
	"sync"
)

// NetListener is a Handler that is also a net.Listener, for libraries such as net/http that call Accept.
//
//	l := tcp.NewNetListener()
//	httpServer := &http.Server{Handler: mux}
//	srv := &tcp.Server{Addr: ":8080", Handler: l, Stopping: func() { go httpServer.Shutdown(ctx) }}
//	go httpServer.Serve(l)
//	err := srv.ListenAndServe(ctx)
//
// The connections are of type [*NetConn]. If the library keeps a goroutine in Read for each connection, a NetListener
// saves little memory: only the overhead of package net. If the library can instead be called when there is input, use
// a [Blocking] handler, which needs no goroutine for an idle connection.
//
// Unlike a listener of package net, the server closes quiet connections, according to its limits.
// Limits.FirstByteTimeout (default 1 minute) and Limits.IdleTimeout (default Never) apply to connections that send
// nothing. Limits.WriteTimeout (default 30 s) applies to connections that accept no output, such as a paused download.
// To disable a limit, set it to Never.
//
// With TLS, set the library's protocols in NextProtos of Server.TLSConfig, such as "h2" for gRPC. Otherwise the server
// rejects clients that use ALPN.
//
// Accept fails with net.ErrClosed after Close or when the server shuts down. A drain waits until the library has closed
// its connections, so shut the library down in Server.Stopping.
type NetListener struct {
	mu     sync.Mutex
	queued sync.Cond
	queue  []*NetConn // at most Limits.MaxConns
	closed bool
	server *Server
}

// NewNetListener returns a NetListener for use as Server.Handler or Listener.Handler.
func NewNetListener() *NetListener {
	l := new(NetListener)
	l.queued.L = &l.mu
	return l
}

// Accept implements net.Listener.
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

// Close implements net.Listener. It closes all connections that Accept has not yet returned. The server continues to
// run, but immediately closes new connections for this NetListener.
func (l *NetListener) Close() error {
	l.mu.Lock()
	l.closed = true
	queue := l.queue
	l.queue = nil
	l.queued.Broadcast()
	l.mu.Unlock()
	for _, n := range queue {
		_ = n.Close() // it may already be closed
	}
	return nil
}

// Addr implements net.Listener. It returns the address of the server's first listener whose handler is l. Before the
// server has started, it returns an empty *net.TCPAddr.
func (l *NetListener) Addr() net.Addr {
	l.mu.Lock()
	s := l.server
	l.mu.Unlock()
	if s == nil {
		return &net.TCPAddr{}
	}
	for i, at := range s.ListenerStats() {
		if s.listenerHandler(i) == Handler(l) {
			return at.Addr
		}
	}
	return s.listenAddrOrZero()
}

func (l *NetListener) setServer(s *Server) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.server = s
}

func (l *NetListener) Opened(c *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		c.Close()
		return
	}
	n := newNetConn(c)
	n.retainWithIndependentDirections(c)
	c.SetValue(n)
	l.queue = append(l.queue, n)
	l.queued.Signal()
}

func (l *NetListener) Received(c *Conn, in []byte) int {
	if n, ok := c.Value().(*NetConn); ok {
		n.bufferInput(c, in)
	}
	return len(in)
}

func (l *NetListener) Ended(c *Conn, rest []byte) int {
	if n, ok := c.Value().(*NetConn); ok {
		n.bufferInput(c, rest)
		n.markPeerEnded()
	}
	return len(rest)
}

func (l *NetListener) Closed(c *Conn, reason error) {
	if n, ok := c.Value().(*NetConn); ok {
		n.markConnClosed(reason)
	}
}
