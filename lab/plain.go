package lab

import (
	"bufio"
	"context"
	"net"
	"sync"
)

// Plain serves an app, Echo or Lines, on ln as most people write a server on
// package net: an accept loop, a goroutine for each connection, a buffer of
// 4 KB, one Write for each Read or for each line. It is the baseline of every
// comparison, so it counts nothing and limits nothing. A line of more than
// 4,096 bytes ends its connection.
//
// It returns when ctx has ended, with nil, or when ln fails. By then ln and
// every connection are closed and every goroutine has ended. An unknown app is
// a ScenarioError.
func Plain(ctx context.Context, ln net.Listener, app string) error {
	var handle func(net.Conn)
	switch app {
	case Echo:
		handle = plainEcho
	case Lines:
		handle = plainLines
	default:
		return wrong("app %q; expected %s or %s", app, Echo, Lines)
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
		p.start(conn, handle)
	}
}

// plain is what Plain needs to end its connections.
type plain struct {
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
	wait   sync.WaitGroup
}

func (p *plain) start(conn net.Conn, handle func(net.Conn)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		conn.Close()
		return
	}
	p.conns[conn] = struct{}{}
	p.wait.Go(func() {
		defer p.end(conn)
		handle(conn)
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

func plainEcho(conn net.Conn) {
	buf := make([]byte, 4096)
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

func plainLines(conn net.Conn) {
	in := bufio.NewReader(conn)
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
