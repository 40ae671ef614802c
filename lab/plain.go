package lab

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// PlainBuffer is the buffer of a connection that most people choose, in bytes:
// that of bufio. MinPlainBuffer and MaxPlainBuffer are the bounds.
const (
	PlainBuffer    = 4096
	MinPlainBuffer = 512
	MaxPlainBuffer = 1 << 20
)

// The designs of a plain server. All but the first need Linux: plain_epoll_linux.go.
const (
	// PerConn has a goroutine for each connection.
	PerConn = "goroutine"
	// OneEpoll has one loop on an epoll instance for all connections.
	OneEpoll = "epoll"
	// Epolls has a loop for each CPU; connections are handed to them in turn.
	Epolls = "epolls"
	// Prefork has processes, each with a loop, that share the port.
	Prefork = "prefork"
	// Reactor has one loop that hands connections to a pool of goroutines.
	Reactor = "reactor"
)

// plainDesigns are all of them, as errors list them.
var plainDesigns = []string{PerConn, OneEpoll, Epolls, Prefork, Reactor}

// When the answers to lines are written.
const (
	// FlushEach writes every answer by itself: a system call for each.
	FlushEach = "each"
	// FlushTenth collects answers, and writes them with every tenth. Up to nine
	// answers to a connection that falls silent, or that ends, are never sent: a
	// server must not do that.
	FlushTenth = "tenth"
)

// PlainOptions say what Plain serves, and how.
type PlainOptions struct {
	// App is Echo, Lines, Wait, Pow, Sha, Sink or HTTP. All designs have the
	// first five.
	App string
	// Buffer is the size of a connection's buffer in bytes; 0 is
	// PlainBuffer.
	Buffer int
	// Flush is FlushEach, the default, or FlushTenth: for Lines, Wait, Pow and
	// Sha with the design PerConn.
	Flush string
	// Design is one of those above; "" is PerConn. The options below are for
	// that only.
	Design string
	// Prefork is set for the design of that name.
	Prefork *PreforkOptions
	// TLS, if set, has every connection encrypted by crypto/tls.
	TLS *tls.Config
	// Heartbeat, unless 0, is the time between two heartbeats on each
	// connection, from 100 ms; none with HTTP.
	Heartbeat time.Duration
	// Admin, if set, is a host:port on which package admin shows Go's memory
	// and how many connections are open; not with HTTP.
	Admin string
	// AdminListening, if set, is called with the address that Admin became, from
	// a goroutine of its own.
	AdminListening func(net.Addr)
}

// minHeartbeat is the shortest time between two heartbeats.
const minHeartbeat = 100 * time.Millisecond

// Check returns a ScenarioError when the options make no sense.
func (o PlainOptions) Check() error {
	o.fill()
	if o.Buffer < MinPlainBuffer || o.Buffer > MaxPlainBuffer {
		return wrong("a buffer of %d bytes; expected %d to %d", o.Buffer, MinPlainBuffer, MaxPlainBuffer)
	}
	if o.Heartbeat != 0 && (o.Heartbeat < minHeartbeat || o.Heartbeat > maxDuration) {
		return wrong("a heartbeat every %v; expected 0 for none, or %v to %v", o.Heartbeat, minHeartbeat, maxDuration)
	}
	if o.App == HTTP && o.Admin != "" {
		return wrong("an address for metrics with %s; expected it with another app", HTTP)
	}
	if o.App == HTTP && o.Heartbeat != 0 {
		return wrong("heartbeats with %s; expected them with another app", HTTP)
	}
	if o.App != Echo && o.App != Sink && o.App != HTTP && plainAnswers[o.App] == nil {
		return wrong("app %q; expected %s", o.App, appList)
	}
	if o.Flush != FlushEach && o.Flush != FlushTenth {
		return wrong("flush %q; expected %s or %s", o.Flush, FlushEach, FlushTenth)
	}
	if o.Flush == FlushTenth && plainAnswers[o.App] == nil {
		return wrong("a flush at every tenth answer with %s; expected %s or another app that answers lines", o.App, Lines)
	}
	return o.checkDesign()
}

// checkDesign is the part of Check that depends on the design.
func (o PlainOptions) checkDesign() error {
	if !slices.Contains(plainDesigns, o.Design) {
		return wrong("design %q; expected %s", o.Design, strings.Join(plainDesigns, ", "))
	}
	if (o.Design == Prefork) != (o.Prefork != nil) {
		return wrong("options of %s for the design %s; expected them for %s, and for that only", Prefork, o.Design, Prefork)
	}
	if o.Design == PerConn {
		return nil
	}
	if !canEpoll {
		return wrong("design %s on this system; expected %s, or Linux", o.Design, PerConn)
	}
	if o.App == Sink || o.App == HTTP {
		return wrong("design %s with %s; expected %s, or another app", o.Design, o.App, PerConn)
	}
	if o.Flush != FlushEach || o.TLS != nil || o.Heartbeat != 0 || o.Admin != "" {
		return wrong("design %s with TLS, heartbeats, metrics or a flush at every tenth answer; expected them with %s", o.Design, PerConn)
	}
	if o.Prefork != nil {
		return o.Prefork.check()
	}
	return nil
}

// fill sets the defaults.
func (o *PlainOptions) fill() {
	if o.Buffer == 0 {
		o.Buffer = PlainBuffer
	}
	if o.Flush == "" {
		o.Flush = FlushEach
	}
	if o.Design == "" {
		o.Design = PerConn
	}
}

// Listen listens on a host:port as the design needs it: Prefork shares the port.
func (o PlainOptions) Listen(ctx context.Context, addr string) (net.Listener, error) {
	if o.Design == Prefork {
		return listenShared(ctx, addr)
	}
	return new(net.ListenConfig).Listen(ctx, "tcp", addr)
}

// Plain serves an app on ln as most people write a server on package net: an
// accept loop, a goroutine for each connection, a buffer of that many bytes, one
// Write for each Read or for each line; and HTTP with package net/http, which has
// buffers of its own. With TLS the same stands on crypto/tls, and heartbeats are
// a ticker for each connection. It is the baseline of every comparison, so it
// counts nothing and limits nothing. A line that is longer than the buffer ends
// its connection. Other designs that have been published are options; for Prefork
// ln comes from Listen.
//
// It returns when ctx has ended, with nil, or when ln fails. By then ln and
// every connection are closed and every goroutine has ended. Options that make no
// sense are a ScenarioError.
func Plain(ctx context.Context, ln net.Listener, o PlainOptions) error {
	if err := o.Check(); err != nil {
		return err
	}
	o.fill()
	if o.TLS != nil {
		ln = tls.NewListener(ln, o.TLS)
	}
	switch {
	case o.App == HTTP:
		return plainHTTP(ctx, ln)
	case o.Prefork != nil:
		return plainPrefork(ctx, ln, *o.Prefork)
	}
	p := plain{conns: make(map[net.Conn]struct{})}
	defer p.wait.Wait()
	inner, stop := context.WithCancel(ctx)
	defer stop()
	p.wait.Go(func() {
		<-inner.Done()
		ln.Close()
		p.closeAll()
	})
	if o.Admin != "" {
		endAdmin, err := p.showOn(ctx, o.Admin, o.AdminListening)
		if err != nil {
			return err
		}
		defer endAdmin()
	}
	take, err := p.design(inner, o)
	if err != nil {
		return err
	}
	for {
		conn, err := ln.Accept()
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return nil
		}
		if err != nil {
			return err
		}
		if p.keep(conn) {
			take(conn)
		}
	}
}

// design starts what a design has, and returns what is done with each connection
// that is accepted. Whatever it starts ends with ctx.
func (p *plain) design(ctx context.Context, o PlainOptions) (take func(net.Conn), err error) {
	if o.Design != PerConn {
		return p.polled(ctx, o)
	}
	handle := plainHandler(o)
	if o.Heartbeat > 0 {
		handle = beating(handle, o.Heartbeat)
	}
	return func(conn net.Conn) {
		p.wait.Go(func() {
			defer p.end(conn)
			handle(conn, o.Buffer)
		})
	}, nil
}

// plain is what Plain needs to end its connections.
type plain struct {
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
	wait   sync.WaitGroup
}

// keep has a connection closed in the end. It is false when that was already; then
// the connection is closed.
func (p *plain) keep(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		conn.Close()
		return false
	}
	p.conns[conn] = struct{}{}
	return true
}

func (p *plain) end(conn net.Conn) {
	conn.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, conn)
}

func (p *plain) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for conn := range p.conns {
		conn.Close()
	}
}
