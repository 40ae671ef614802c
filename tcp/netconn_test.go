package tcp

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// forEachSetup runs a test under every model, also with workers and with shards.
func forEachSetup(t *testing.T, test func(t *testing.T, srv *Server)) {
	for i, model := range Models() {
		t.Run(model, func(t *testing.T) { test(t, &Server{Model: model}) })
		if i > 0 {
			t.Run(model+" with workers", func(t *testing.T) {
				test(t, &Server{Model: model, Workers: newPool(t, plainPoolConfig(4, 1024))})
			})
		}
	}
	t.Run("auto", func(t *testing.T) { test(t, &Server{}) })
	if shardConns > 0 {
		t.Run("shards", func(t *testing.T) { test(t, &Server{Model: Epoll, Limits: Limits{MaxConns: shardConns}}) })
	}
}

// shardConns is the number of connections that makes loops shards, or 0 if there are no shards.
var shardConns int

func serveOneLine(n *NetConn) error {
	var line []byte
	for one := make([]byte, 1); one[0] != '\n'; line = append(line, one...) {
		if _, err := n.Read(one); err != nil {
			return err
		}
	}
	switch string(line) {
	case "panic\n":
		panic("as told")
	case "exit\n":
		runtime.Goexit()
	}
	_, err := n.Write(line)
	return err
}

func callCounts(b *Blocking) (running, waiting int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.running, len(b.waiting)
}

// newBlocking returns a handler that sends close reasons to ends.
func newBlocking(ends chan<- error, serve func(*NetConn) error) *Blocking {
	return &Blocking{Serve: serve, End: func(_ *NetConn, why error) { ends <- why }}
}

func waitNoCalls(t *testing.T, b *Blocking) {
	t.Helper()
	waitFor(t, "goroutines are left", func() bool { under, _ := callCounts(b); return under == 0 })
}

// TestBlocking checks that at most MaxCalls callbacks run and others wait in order; that pipelined requests are
// answered; that End gets the reason; and that an idle connection has no goroutine and only keeps its value.
func TestBlocking(t *testing.T) {
	forEachSetup(t, func(t *testing.T, srv *Server) {
		gate := make(chan struct{})
		var now, most atomic.Int64
		ends := make(chan error, 10)
		refs := make(chan Ref, 100)
		b := newBlocking(ends, func(n *NetConn) error {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			<-gate
			if n.Value() == nil {
				n.SetValue("kept")
			}
			refs <- n.Ref()
			return serveOneLine(n)
		})
		b.MaxCalls = 2
		srv.Handler = b
		s := startServer(t, srv)
		var conns []*testkit.Conn
		for i := range 6 {
			c := dial(t, s.addr)
			c.Send(fmt.Sprintf("%d\n%[1]d again\n", i)) // the second is pipelined
			conns = append(conns, c)
		}
		waitFor(t, "not 2 calls, and 4 that wait", func() bool { under, waiting := callCounts(b); return under == 2 && waiting == 4 })
		close(gate)
		for i, c := range conns {
			c.Expect(fmt.Sprintf("%d\n%[1]d again\n", i))
		}
		if most.Load() > 2 {
			t.Errorf("%d calls at a time; want at most 2", most.Load())
		}
		waitNoCalls(t, b)
		_, err := s.Broadcast(Broadcast{All: true, Message: []byte("b\n")}) // they get it while they are idle
		requireNoError(t, err)
		for _, c := range conns {
			c.Expect("b\n")
		}
		value := make(chan any, 1)
		requireNoError(t, (<-refs).Do(func(c *Conn) { value <- c.Value() }))
		if n, ok := (<-value).(*NetConn); !ok || n.Value() != "kept" {
			t.Errorf("the value is not kept: %v", n)
		}
		for _, c := range conns {
			c.CloseWrite()
			c.ExpectEOF("")
			expectReason(t, "End", ends, io.EOF)
		}
		waitNoCalls(t, b)
	})
}

// TestBlockingEnds checks that a panic, Goexit or error of Serve closes the connection with that
// reason for End, after output of Begin and Serve.
func TestBlockingEnds(t *testing.T) {
	t.Parallel() // mostly waits
	forEachSetup(t, func(t *testing.T, srv *Server) {
		wrong := errors.New("wrong")
		ended := make(chan error, 10)
		b := newBlocking(ended, func(n *NetConn) error { return cmp.Or(serveOneLine(n), wrong) })
		b.MaxCalls, b.Begin = 1, func(n *NetConn) error { return errorOf(io.WriteString(n, "hello\n")) }
		srv.Handler = b
		s := startServer(t, srv)
		for say, want := range map[string]any{"panic": "as told", "exit": ErrGoexit} {
			c := dial(t, s.addr)
			c.Expect("hello\n") // a panic drops output that has not been sent
			c.Send(say + "\n")
			var panicked *PanicError
			if why := testkit.Receive(t, ended, "End"); !errors.As(why, &panicked) || panicked.Value != want || !bytes.Contains(panicked.Stack, []byte("serveOneLine")) {
				t.Errorf("End(%v); want %v with its stack", why, want)
			}
			c.ExpectClosed()
		}
		expectEqual(t, "panics counted", s.Stats().Panics, 2)
		c := dial(t, s.addr) // served by the one goroutine there may be
		c.Send("last words\n")
		c.ExpectEOF("hello\nlast words\n")
		expectReason(t, "End", ended, wrong)
	})
}

// TestBlockingReadsNothing checks that a Serve that reads nothing is called again only for more
// input, and not forever.
func TestBlockingReadsNothing(t *testing.T) {
	t.Parallel() // mostly waits
	forEachSetup(t, func(t *testing.T, srv *Server) {
		var calls atomic.Int64
		ended := make(chan error, 1)
		srv.Handler = newBlocking(ended, func(*NetConn) error { calls.Add(1); return nil })
		dial(t, startServer(t, srv).addr).Write(make([]byte, 4*maxUnreadInput))
		expectReason(t, "End", ended, ErrMessageTooLong)
		if n := calls.Load(); n == 0 || n > 4*maxUnreadInput {
			t.Errorf("%d calls", n)
		}
	})
}

// TestBlockingDrain checks that a drain answers a request that has begun, also after the peer has ended.
func TestBlockingDrain(t *testing.T) {
	t.Parallel() // mostly waits
	forEachSetup(t, func(t *testing.T, srv *Server) {
		entered, gate := make(chan bool), make(chan bool)
		srv.Handler = &Blocking{Serve: func(n *NetConn) error {
			entered <- true
			<-gate
			return serveOneLine(n)
		}}
		s := startServer(t, srv)
		c, ends, idle := dial(t, s.addr), dial(t, s.addr), dial(t, s.addr)
		for _, c := range []*testkit.Conn{c, ends} {
			c.Send("late\n")
			<-entered
		}
		ends.CloseWrite()
		s.waitOpen(t, 3) // a drain would reset who has not been accepted
		done := make(chan error, 1)
		go func() { done <- s.Shutdown(context.Background()) }()
		idle.ExpectEOF("")
		close(gate)
		for _, c := range []*testkit.Conn{c, ends} {
			c.ExpectEOF("late\n")
			c.Close()
		}
		expectNoError(t, <-done)
	})
}

// startNetListener starts a server with a NetListener. accept dials it and accepts the connection.
func startNetListener(t *testing.T, srv *Server) (s *started, l *NetListener, accept func() (*testkit.Conn, *NetConn)) {
	l = NewNetListener()
	srv.Handler = l
	s = startServer(t, srv)
	return s, l, func() (*testkit.Conn, *NetConn) {
		c := dial(t, s.addr)
		n, err := l.Accept()
		requireNoError(t, err)
		return c, n.(*NetConn)
	}
}

// TestNetConnBackpressure checks that Write blocks while much is unsent, so that a slow peer
// takes limited memory and is not closed, and that unread input stays in the kernel.
func TestNetConnBackpressure(t *testing.T) {
	t.Parallel() // mostly waits
	forEachSetup(t, func(t *testing.T, srv *Server) {
		srv.Limits.HighWater, srv.Limits.MaxUnsent = 64<<10, 256<<10
		srv.Socket = Socket{SendBuffer: 64 << 10, ReceiveBuffer: 64 << 10}
		_, _, accept := startNetListener(t, srv)
		c, n := accept()
		const size = 8 << 20
		sent := make(chan error, 2)
		for _, w := range []io.Writer{n, c} {
			go func() {
				_, err := w.Write(make([]byte, size))
				sent <- err
			}()
		}
		waitFor(t, "neither direction waits", func() bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.cancelWait != nil && n.paused
		})
		n.mu.Lock()
		unread := len(n.in) - n.readOffset
		n.mu.Unlock()
		pending := make(chan int, 1)
		requireNoError(t, n.ref.Do(func(c *Conn) { pending <- c.Pending() }))
		if p := <-pending; unread > 2*maxUnreadInput || p > 2*64<<10 {
			t.Errorf("%d bytes unread, %d pending; want at most %d, %d", unread, p, 2*maxUnreadInput, 2*64<<10)
		}
		for _, r := range []io.Reader{c, n} {
			_, err := io.ReadFull(r, make([]byte, size))
			expectNoError(t, err)
		}
		expectNoError(t, <-sent)
		expectNoError(t, <-sent)
	})
}

// TestNetConnEnds checks that half-closes, Close, resets, the listener's end and addresses behave as in package net.
func TestNetConnEnds(t *testing.T) {
	forEachSetup(t, func(t *testing.T, srv *Server) {
		s, l, accept := startNetListener(t, srv)
		if err := s.ListenAndServe(t.Context()); err == nil || !strings.Contains(err.Error(), "is already serving") {
			t.Errorf("a second ListenAndServe: %v", err) // leaves the NetListener alone
		}
		expectEqual(t, "Addr", l.Addr().String(), s.addr)
		c, n := accept()
		if n.LocalAddr().String() != s.addr || n.RemoteAddr().String() != c.LocalAddr().String() {
			t.Errorf("%v to %v; want %v to %v", n.LocalAddr(), n.RemoteAddr(), s.addr, c.LocalAddr())
		}
		n.CloseWrite()
		c.ExpectEOF("")
		expectError(t, "Write after CloseWrite", errorOf(n.Write([]byte("x"))), syscall.EPIPE)
		c.Send("still here")
		c.CloseWrite()
		if got, err := io.ReadAll(n); string(got) != "still here" || err != nil {
			t.Errorf("read %q, %v", got, err)
		}
		n.Close()
		expectError(t, "Read after Close", errorOf(n.Read(nil)), net.ErrClosed)
		expectError(t, "a second Close", n.Close(), net.ErrClosed)
		expectError(t, "SetDeadline after Close", n.SetDeadline(time.Now()), net.ErrClosed)
		c, n = accept()
		c.Reset()
		expectError(t, "Read after a reset", errorOf(n.Read(make([]byte, 1))), syscall.ECONNRESET)
		c = dial(t, s.addr) // closed before anybody accepts
		waitFor(t, "it does not come", func() bool { return s.Stats().Open >= 1 })
		l.Close()
		c.ExpectEOF("")
		_, err := l.Accept()
		expectError(t, "Accept after Close", err, net.ErrClosed)
	})
}

// TestNetConnNamesTheReason checks that Read and Write return the limit that has closed the
// connection, and the reason of a connection that is closing.
func TestNetConnNamesTheReason(t *testing.T) {
	t.Parallel() // mostly waits
	want := func(t *testing.T, n net.Conn, why error) {
		t.Helper()
		expectError(t, "Write", errorOf(n.Write([]byte("x"))), why)
		expectError(t, "Read", errorOf(n.Read(make([]byte, 1))), why)
	}
	forEachModel(t, func(t *testing.T, model string, loops int) {
		srv := &Server{Model: model, Loops: loops, Socket: Socket{SendBuffer: 4096}, Limits: Limits{WriteTimeout: 50 * time.Millisecond}}
		_, _, accept := startNetListener(t, srv)
		_, n := accept()
		var err error
		for p := make([]byte, 64<<10); err == nil; { // the client reads nothing
			_, err = n.Write(p)
		}
		expectError(t, "Write of much", err, ErrWriteTimeout)
		want(t, n, ErrWriteTimeout)

		_, _, accept = startNetListener(t, &Server{Model: model, Loops: loops, Socket: Socket{SendBuffer: 4096}})
		mine, closing := errors.New("mine"), make(chan struct{})
		c, n := accept()
		requireNoError(t, n.Ref().Do(func(c *Conn) {
			c.Write(make([]byte, 1<<20))
			c.CloseWith(mine)
			close(closing)
		}))
		<-closing
		go io.Copy(io.Discard, c)
		want(t, n, mine)
	})
}

// TestNetConnWaitReadable checks that WaitReadable returns for input, which remains for Read, and
// for the errors of Read; several goroutines may wait.
func TestNetConnWaitReadable(t *testing.T) {
	forEachSetup(t, func(t *testing.T, srv *Server) {
		_, _, accept := startNetListener(t, srv)
		wait := func(n *NetConn) (both chan error) {
			both = make(chan error, 2)
			for range cap(both) {
				go func() { both <- n.WaitReadable() }()
			}
			return both
		}
		want := func(what string, both chan error, want error) {
			t.Helper()
			for range cap(both) {
				expectReason(t, what, both, want)
			}
		}
		c, n := accept()
		for range 2 { // the second time the buffer of the first is there
			both := wait(n)
			waitFor(t, "a connection that waits holds a buffer", func() bool {
				n.mu.Lock()
				defer n.mu.Unlock()
				return n.in == nil
			})
			c.Send("input")
			want("input", both, nil)
			p := make([]byte, 10)
			if m, err := n.Read(p); string(p[:m]) != "input" {
				t.Errorf("read %q, %v; want the input", p[:m], err)
			}
		}
		both := wait(n)
		n.SetReadDeadline(time.Now().Add(time.Millisecond))
		want("a deadline", both, os.ErrDeadlineExceeded)
		n.SetReadDeadline(time.Time{})
		both = wait(n)
		c.CloseWrite()
		want("the end", both, io.EOF)
		n.Close()
		want("Close", wait(n), net.ErrClosed)

		c, n = accept()
		both = wait(n)
		c.Reset()
		want("a reset", both, syscall.ECONNRESET)
	})
}

// TestNetConnDeadline checks that a moved deadline does not expire at the old time.
func TestNetConnDeadline(t *testing.T) {
	t.Parallel() // mostly waits
	_, _, accept := startNetListener(t, &Server{})
	c, n := accept()
	for _, after := range [][]time.Duration{{time.Millisecond}, {time.Hour, -time.Hour}} {
		for _, d := range after {
			n.SetReadDeadline(time.Now().Add(d))
		}
		expectError(t, "Read", errorOf(n.Read(make([]byte, 1))), os.ErrDeadlineExceeded)
	}
	n.SetReadDeadline(time.Time{})
	c.Send("x")
	expectNoError(t, errorOf(n.Read(make([]byte, 1))))
}
