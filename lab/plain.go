package lab

import (
	"bufio"
	"context"
	"crypto/tls"
	"net"
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

// PlainOptions say what Plain serves, and how.
type PlainOptions struct {
	// App is Echo, Lines, Sink or HTTP.
	App string
	// Buffer is the size of a connection's buffer in bytes; 0 is
	// PlainBuffer.
	Buffer int
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
	_, err := o.handler()
	return err
}

// handler checks the options and gives what is done with a connection; nil for
// HTTP.
func (o *PlainOptions) handler() (func(conn net.Conn, buffer int), error) {
	if o.Buffer == 0 {
		o.Buffer = PlainBuffer
	}
	if o.Buffer < MinPlainBuffer || o.Buffer > MaxPlainBuffer {
		return nil, wrong("a buffer of %d bytes; expected %d to %d", o.Buffer, MinPlainBuffer, MaxPlainBuffer)
	}
	if o.Heartbeat != 0 && (o.Heartbeat < minHeartbeat || o.Heartbeat > maxDuration) {
		return nil, wrong("a heartbeat every %v; expected 0 for none, or %v to %v", o.Heartbeat, minHeartbeat, maxDuration)
	}
	if o.Admin != "" && o.App == HTTP {
		return nil, wrong("an address for metrics with %s; expected it with another app", HTTP)
	}
	switch o.App {
	case Echo:
		return plainEcho, nil
	case Lines:
		return plainLines, nil
	case Sink:
		return plainSink, nil
	case HTTP:
		if o.Heartbeat != 0 {
			return nil, wrong("heartbeats with %s; expected them with another app", HTTP)
		}
		return nil, nil
	}
	return nil, wrong("app %q; expected %s, %s, %s or %s", o.App, Echo, Lines, Sink, HTTP)
}

// Plain serves an app on ln as most people write a server on package net: an
// accept loop, a goroutine for each connection, a buffer of that many bytes, one
// Write for each Read or for each line; and HTTP with package net/http, which has
// buffers of its own. With TLS the same stands on crypto/tls, and heartbeats are
// a ticker for each connection. It is the baseline of every comparison, so it
// counts nothing and limits nothing. A line that is longer than the buffer ends
// its connection.
//
// It returns when ctx has ended, with nil, or when ln fails. By then ln and
// every connection are closed and every goroutine has ended. Options that make no
// sense are a ScenarioError.
func Plain(ctx context.Context, ln net.Listener, o PlainOptions) error {
	handle, err := o.handler()
	if err != nil {
		return err
	}
	if o.TLS != nil {
		ln = tls.NewListener(ln, o.TLS)
	}
	if handle == nil {
		return plainHTTP(ctx, ln)
	}
	if o.Heartbeat > 0 {
		handle = beating(handle, o.Heartbeat)
	}
	p := plain{conns: make(map[net.Conn]struct{})}
	defer p.wait.Wait()
	stop := make(chan struct{})
	defer close(stop)
	if o.Admin != "" {
		endAdmin, err := p.showOn(ctx, o.Admin, o.AdminListening)
		if err != nil {
			ln.Close()
			return err
		}
		defer endAdmin()
	}
	p.wait.Go(func() {
		select {
		case <-ctx.Done():
		case <-stop:
		}
		ln.Close()
		p.closeAll()
	})
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
		p.start(conn, func() { handle(conn, o.Buffer) })
	}
}

// plain is what Plain needs to end its connections.
type plain struct {
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
	wait   sync.WaitGroup
}

func (p *plain) start(conn net.Conn, handle func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		conn.Close()
		return
	}
	p.conns[conn] = struct{}{}
	p.wait.Go(func() {
		defer p.end(conn)
		handle()
	})
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

func plainEcho(conn net.Conn, buffer int) {
	buf := make([]byte, buffer)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		if _, err := conn.Write(buf[:n]); err != nil {
			return
		}
	}
}

func plainLines(conn net.Conn, buffer int) {
	in := bufio.NewReaderSize(conn, buffer)
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return
		}
		if _, err := conn.Write(line); err != nil {
			return
		}
	}
}

func plainSink(conn net.Conn, buffer int) {
	buf := make([]byte, buffer)
	for {
		if _, err := conn.Read(buf); err != nil {
			return
		}
	}
}
