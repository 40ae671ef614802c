package lab

import (
	"bufio"
	"context"
	"net"
	"sync"
)

// PlainBuffer is the buffer of a connection that most people choose, in bytes:
// that of bufio. MinPlainBuffer and MaxPlainBuffer are the bounds.
const (
	PlainBuffer    = 4096
	MinPlainBuffer = 512
	MaxPlainBuffer = 1 << 20
)

// Plain serves an app on ln as most people write a server on package net: an
// accept loop, a goroutine for each connection, a buffer of that many bytes, one
// Write for each Read or for each line; and HTTP with package net/http, which has
// buffers of its own. It is the baseline of every comparison, so it counts
// nothing and limits nothing. A line that is longer than the buffer ends its
// connection.
//
// It returns when ctx has ended, with nil, or when ln fails. By then ln and
// every connection are closed and every goroutine has ended. An unknown app or
// a buffer out of bounds is a ScenarioError.
func Plain(ctx context.Context, ln net.Listener, app string, buffer int) error {
	if buffer < MinPlainBuffer || buffer > MaxPlainBuffer {
		return wrong("a buffer of %d bytes; expected %d to %d", buffer, MinPlainBuffer, MaxPlainBuffer)
	}
	var handle func(conn net.Conn, buffer int)
	switch app {
	case Echo:
		handle = plainEcho
	case Lines:
		handle = plainLines
	case HTTP:
		return plainHTTP(ctx, ln)
	default:
		return wrong("app %q; expected %s, %s or %s", app, Echo, Lines, HTTP)
	}
	p := plain{conns: make(map[net.Conn]struct{})}
	defer p.wait.Wait()
	stop := make(chan struct{})
	defer close(stop)
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
		p.start(conn, func() { handle(conn, buffer) })
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
