package main

import (
	"bufio"
	"context"
	"net"
	"sync"
)

// bufferSize is what a connection reads and writes at once, and so the longest
// line: with less, messages of 16 KiB would take several calls.
const bufferSize = 16 << 10

// conns serves each connection with a function on a goroutine of its own.
func conns(handle func(conn net.Conn)) start {
	return func(ctx context.Context, ln net.Listener) error {
		g := group{open: make(map[net.Conn]struct{})}
		defer g.wait.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		g.wait.Go(func() {
			<-ctx.Done()
			ln.Close()
			g.closeAll()
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
			g.add(conn, func() { handle(conn) })
		}
	}
}

// group is the connections that are open.
type group struct {
	mu     sync.Mutex
	open   map[net.Conn]struct{}
	closed bool
	wait   sync.WaitGroup
}

// add runs handle on a goroutine, and closes the connection when it returns.
func (g *group) add(conn net.Conn, handle func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		conn.Close()
		return
	}
	g.open[conn] = struct{}{}
	g.wait.Go(func() {
		handle()
		conn.Close()
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.open, conn)
	})
}

func (g *group) closeAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for conn := range g.open {
		conn.Close()
	}
}

// echo sends back what it reads. io.Copy would have the kernel move the bytes,
// through a pipe: more calls for each message.
func echo(conn net.Conn) {
	buf := make([]byte, bufferSize)
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

// lines sends back every line, its end included: all those that came with one read in one
// write. What was written is sent before more is read, so never later than when all lines
// at hand are answered. A writer keeps its first error and tells it when it is flushed.
func lines(conn net.Conn) {
	out := bufio.NewWriterSize(conn, bufferSize)
	in := bufio.NewReaderSize(flushing{conn, out}, bufferSize)
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			out.Flush() // for answers before a line that is too long
			return
		}
		out.Write(line)
	}
}

// flushing reads from a connection when what is written to it has been sent.
type flushing struct {
	conn net.Conn
	out  *bufio.Writer
}

func (f flushing) Read(p []byte) (int, error) {
	if err := f.out.Flush(); err != nil {
		return 0, err
	}
	return f.conn.Read(p)
}
