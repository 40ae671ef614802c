package tcp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/testkit"
)

// underAll runs a test under every model, with handlers on workers, and on shards.
func underAll(t *testing.T, test func(t *testing.T, srv *Server)) {
	for _, m := range models.All() {
		t.Run(m.Name, func(t *testing.T) {
			if err := m.Available(); err != nil {
				t.Skip(err)
			}
			test(t, &Server{Model: m.Name})
		})
		if !m.Loops || m.Available() != nil {
			continue
		}
		t.Run(m.Name+" with workers", func(t *testing.T) {
			test(t, &Server{Model: m.Name, Workers: newPool(t, noRules(4, 1024))})
		})
	}
	t.Run("auto", func(t *testing.T) { test(t, &Server{}) })
	if shardConns > 0 {
		t.Run("shards", func(t *testing.T) {
			test(t, &Server{Model: Epoll, Limits: Limits{MaxConns: shardConns}})
		})
	}
}

// shardConns is how many connections make loops shards; 0 where there are none.
var shardConns int

// lineServer answers each line once, and keeps no goroutine in between.
func lineServer(n *NetConn) error {
	var line []byte
	for one := make([]byte, 1); ; {
		if _, err := n.Read(one); err != nil {
			return err
		}
		line = append(line, one...)
		if one[0] == '\n' {
			break
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

func callsOf(b *Blocking) (under, waiting int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls, len(b.waiting)
}

func TestBlockingServesRequests(t *testing.T) {
	underAll(t, func(t *testing.T, srv *Server) {
		var ends atomic.Int64
		b := &Blocking{Serve: lineServer, End: func(_ *NetConn, why error) {
			if why != io.EOF {
				t.Errorf("End(%v); want io.EOF", why)
			}
			ends.Add(1)
		}}
		srv.Handler = b
		s := start(t, srv)
		const conns = 20
		var all sync.WaitGroup
		for i := range conns {
			all.Go(func() {
				c, err := net.Dial("tcp", s.addr)
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				r := bufio.NewReader(c)
				for k := range 20 {
					line := fmt.Sprintf("%d %d\n", i, k)
					io.WriteString(c, line+line) // the second is pipelined
					for range 2 {
						if got, err := r.ReadString('\n'); got != line || err != nil {
							t.Errorf("got %q, %v; want %q", got, err, line)
							return
						}
					}
				}
				c.(*net.TCPConn).CloseWrite()
				if rest, err := io.ReadAll(r); len(rest) > 0 || err != nil {
					t.Errorf("behind the last answer: %q, %v", rest, err)
				}
			})
		}
		all.Wait()
		eventually(t, func() bool { return ends.Load() == conns }, func() string { return fmt.Sprint(ends.Load(), " calls of End") })
		eventually(t, func() bool { under, _ := callsOf(b); return under == 0 }, func() string { return "goroutines are left" })
	})
}

// While it is idle, a connection has neither a goroutine nor anything else of ours.
func TestBlockingIdle(t *testing.T) {
	underAll(t, func(t *testing.T, srv *Server) {
		b := &Blocking{Serve: lineServer}
		srv.Handler = b
		s := start(t, srv)
		c := dial(t, s.addr)
		ask(t, c, "hello")
		value := make(chan any, 1)
		eventually(t, func() bool { under, _ := callsOf(b); return under == 0 }, func() string { return "the call goes on" })
		var ref Ref
		if _, err := s.Broadcast(Broadcast{All: true, Message: []byte("b\n")}); err != nil { // it gets them while it is idle
			t.Fatal(err)
		}
		expect(t, c, "b\n")
		b.mu.Lock()
		b.Serve = func(n *NetConn) error {
			ref = n.Ref()
			n.SetValue("kept")
			return lineServer(n)
		}
		b.mu.Unlock()
		ask(t, c, "again")
		eventually(t, func() bool { under, _ := callsOf(b); return under == 0 }, func() string { return "the call goes on" })
		must(t, ref.Do(func(c *Conn) { value <- c.Value() }))
		if n, ok := (<-value).(*NetConn); !ok || n.Value() != "kept" {
			t.Errorf("the value is not kept: %v", n)
		}
	})
}

// No more calls are under way than MaxCalls; further connections wait, in order.
func TestBlockingMaxCalls(t *testing.T) {
	underAll(t, func(t *testing.T, srv *Server) {
		gate := make(chan struct{})
		var now, most atomic.Int64
		b := &Blocking{MaxCalls: 2, Serve: func(n *NetConn) error {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			<-gate
			return lineServer(n)
		}}
		srv.Handler = b
		s := start(t, srv)
		var conns []net.Conn
		for i := range 6 {
			c := dial(t, s.addr)
			fmt.Fprintf(c, "%d\n", i)
			conns = append(conns, c)
		}
		eventually(t, func() bool { under, waiting := callsOf(b); return under == 2 && waiting == 4 },
			func() string { return "not 2 calls, and 4 that wait" })
		close(gate)
		for i, c := range conns {
			expect(t, c, fmt.Sprintf("%d\n", i))
		}
		if most.Load() > 2 {
			t.Errorf("%d calls at a time; want at most 2", most.Load())
		}
	})
}

func TestBlockingPanic(t *testing.T) {
	underAll(t, func(t *testing.T, srv *Server) {
		ended := make(chan error, 1)
		srv.Handler = &Blocking{MaxCalls: 1, Serve: lineServer, End: func(_ *NetConn, why error) {
			if why != io.EOF && why != ErrServerClosed {
				ended <- why
			}
		}}
		s := start(t, srv)
		c := dial(t, s.addr)
		io.WriteString(c, "panic\n")
		var panicked *PanicError
		if why := <-ended; !errors.As(why, &panicked) || panicked.Value != "as told" || !bytes.Contains(panicked.Stack, []byte("lineServer")) {
			t.Errorf("End(%v); want the panic with its stack", why)
		}
		io.WriteString(dial(t, s.addr), "exit\n")
		if why := testkit.Receive(t, ended, "End"); !errors.As(why, &panicked) || panicked.Value != any(ErrGoexit) {
			t.Errorf("End(%v); want ErrGoexit", why)
		}
		if n := s.Stats(); n.Panics != 2 {
			t.Errorf("%d panics counted; want 2", n.Panics)
		}
		ask(t, dial(t, s.addr), "served on by the one goroutine there may be")
	})
}

func TestBlockingBeginAndError(t *testing.T) {
	underAll(t, func(t *testing.T, srv *Server) {
		wrong := errors.New("wrong")
		ended := make(chan error, 1)
		srv.Handler = &Blocking{
			Begin: func(n *NetConn) error { _, err := io.WriteString(n, "hello\n"); return err },
			Serve: func(n *NetConn) error {
				io.WriteString(n, "last words\n")
				return wrong
			},
			End: func(_ *NetConn, why error) { ended <- why },
		}
		s := start(t, srv)
		c := dial(t, s.addr)
		expect(t, c, "hello\n")
		io.WriteString(c, "x")
		expect(t, c, "last words\n")
		if rest, err := io.ReadAll(c); len(rest) > 0 || err != nil {
			t.Errorf("then %q, %v; want the end", rest, err)
		}
		c.Close()
		if why := <-ended; why != wrong {
			t.Errorf("End(%v); want %v", why, wrong)
		}
	})
}

// A Serve that reads nothing is not called again before there is more, and not for ever.
func TestBlockingReadsNothing(t *testing.T) {
	underAll(t, func(t *testing.T, srv *Server) {
		var calls atomic.Int64
		ended := make(chan error, 1)
		srv.Handler = &Blocking{
			Serve: func(*NetConn) error { calls.Add(1); return nil },
			End:   func(_ *NetConn, why error) { ended <- why },
		}
		s := start(t, srv)
		c := dial(t, s.addr)
		c.Write(make([]byte, 4*maxUnread))
		if why := <-ended; why != ErrMessageTooLong {
			t.Errorf("End(%v); want ErrMessageTooLong", why)
		}
		if n := calls.Load(); n == 0 || n > 4*maxUnread {
			t.Errorf("%d calls", n)
		}
	})
}

// A request that has begun is answered in a drain, and by then a peer may have ended.
func TestBlockingDrain(t *testing.T) {
	underAll(t, func(t *testing.T, srv *Server) {
		entered, gate := make(chan bool), make(chan bool)
		srv.Handler = &Blocking{Serve: func(n *NetConn) error {
			entered <- true
			<-gate
			return lineServer(n)
		}}
		s := start(t, srv)
		c, ends := dial(t, s.addr), dial(t, s.addr)
		idle := dial(t, s.addr)
		for _, c := range []net.Conn{c, ends} {
			io.WriteString(c, "late\n")
			<-entered
		}
		ends.(*net.TCPConn).CloseWrite()
		eventually(t, func() bool { return s.Stats().Open == 3 }, func() string { return "a drain would reset who has not been accepted" })
		done := make(chan error, 1)
		go func() { done <- s.Shutdown(context.Background()) }()
		if rest, err := io.ReadAll(idle); len(rest) > 0 || err != nil {
			t.Errorf("an idle connection: %q, %v", rest, err)
		}
		close(gate)
		for _, c := range []net.Conn{c, ends} {
			if got, err := io.ReadAll(c); string(got) != "late\n" || err != nil {
				t.Errorf("got %q, %v; want the answer, and the end", got, err)
			}
			c.Close()
		}
		ok(t, <-done)
	})
}

// Closing the server ends calls that wait in Read or Write, with the reason.
func TestBlockingIsCutOff(t *testing.T) {
	underAll(t, func(t *testing.T, srv *Server) {
		errs, entered := make(chan error, 2), make(chan bool, 2)
		srv.Handler = &Blocking{Serve: func(n *NetConn) error {
			kind := make([]byte, 1)
			n.Read(kind)
			entered <- true
			var err error
			for err == nil {
				if kind[0] == 'r' {
					_, err = n.Read(kind)
				} else {
					_, err = n.Write(make([]byte, 100<<10))
				}
			}
			errs <- err
			return err
		}}
		s := start(t, srv)
		for _, kind := range []string{"r", "w"} {
			io.WriteString(dial(t, s.addr), kind)
		}
		<-entered
		<-entered
		s.Close()
		for range 2 {
			if err := <-errs; !errors.Is(err, ErrServerClosed) {
				t.Errorf("%v; want ErrServerClosed", err)
			}
		}
		s.result(t)
	})
}

// Write waits while much is owed, so that what a slow peer costs is bounded, and the
// connection is not closed for that; Read leaves to the kernel what nobody reads.
func TestNetConnBackpressure(t *testing.T) {
	underAll(t, func(t *testing.T, srv *Server) {
		l := NewNetListener()
		srv.Handler = l
		srv.Limits.HighWater, srv.Limits.MaxUnsent = 64<<10, 256<<10
		srv.Socket = Socket{SendBuffer: 64 << 10, ReceiveBuffer: 64 << 10}
		s := start(t, srv)
		c := dial(t, s.addr)
		n, err := l.Accept()
		must(t, err)
		const size = 8 << 20
		sent := make(chan error, 2)
		go func() {
			_, err := n.Write(make([]byte, size))
			sent <- err
		}()
		go func() {
			_, err := c.Write(make([]byte, size))
			sent <- err
		}()
		nc := n.(*NetConn)
		var pending atomic.Int64
		eventually(t, func() bool { // both wait
			nc.ref.Do(func(c *Conn) { pending.Store(int64(c.Pending())) })
			nc.mu.Lock()
			defer nc.mu.Unlock()
			return nc.unblock != nil && nc.paused
		}, func() string { return "neither direction waits" })
		nc.mu.Lock()
		if unread := len(nc.in) - nc.off; unread > 2*maxUnread {
			t.Errorf("%d bytes unread; want at most %d", unread, 2*maxUnread)
		}
		nc.mu.Unlock()
		if p := pending.Load(); p > 2*64<<10 {
			t.Errorf("%d bytes pending; want at most the low water and a message, both encrypted", p)
		}
		for _, r := range []io.Reader{c, n} {
			if _, err := io.ReadFull(r, make([]byte, size)); err != nil {
				t.Error(err)
			}
		}
		for range 2 {
			ok(t, <-sent)
		}
	})
}

func TestNetConnEnds(t *testing.T) {
	underAll(t, func(t *testing.T, srv *Server) {
		l := NewNetListener()
		srv.Handler = l
		s := start(t, srv)
		if l.Addr().String() != s.addr {
			t.Errorf("Addr is %v; want %v", l.Addr(), s.addr)
		}
		c := dial(t, s.addr)
		n, _ := l.Accept()
		if n.LocalAddr().String() != s.addr || n.RemoteAddr().String() != c.LocalAddr().String() {
			t.Errorf("%v to %v; want %v to %v", n.LocalAddr(), n.RemoteAddr(), s.addr, c.LocalAddr())
		}
		// half-close, and the other half after it
		n.(*NetConn).CloseWrite()
		if got, err := io.ReadAll(c); len(got) > 0 || err != nil {
			t.Errorf("after CloseWrite: %q, %v", got, err)
		}
		if _, err := n.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("Write after CloseWrite: %v; want EPIPE", err)
		}
		io.WriteString(c, "still here")
		c.(*net.TCPConn).CloseWrite()
		if got, err := io.ReadAll(n); string(got) != "still here" || err != nil {
			t.Errorf("read %q, %v", got, err)
		}
		n.Close()
		if _, err := n.Read(nil); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Read after Close: %v; want net.ErrClosed", err)
		}
		if err := n.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("second Close: %v; want net.ErrClosed", err)
		}
		if err := n.SetDeadline(time.Now()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("SetDeadline after Close: %v; want net.ErrClosed", err)
		}
		// a peer that resets
		c = dial(t, s.addr)
		n, _ = l.Accept()
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
		if _, err := n.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("Read after a reset: %v; want ECONNRESET", err)
		}
		// closed before anybody accepts
		c = dial(t, s.addr)
		eventually(t, func() bool { return s.Stats().Open >= 1 }, func() string { return "it does not come" })
		l.Close()
		if got, err := io.ReadAll(c); len(got) > 0 || err != nil {
			t.Errorf("never accepted: %q, %v", got, err)
		}
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept after Close: %v; want net.ErrClosed", err)
		}
	})
}

// Read and Write both name the limit that has closed the connection, and the reason of one that
// is about to close and still sends what it owes.
func TestNetConnNamesTheReason(t *testing.T) {
	want := func(t *testing.T, n net.Conn, why error) {
		t.Helper()
		if _, err := n.Write([]byte("x")); !errors.Is(err, why) {
			t.Errorf("Write: %v; want %v", err, why)
		}
		if _, err := n.Read(make([]byte, 1)); !errors.Is(err, why) {
			t.Errorf("Read: %v; want %v", err, why)
		}
	}
	onModels(t, func(t *testing.T, model string, loops int) {
		accept := func(limits Limits) (c net.Conn, n *NetConn) {
			l := NewNetListener()
			s := start(t, &Server{Model: model, Loops: loops, Handler: l, Socket: Socket{SendBuffer: 4096}, Limits: limits})
			c = dial(t, s.addr)
			nc, err := l.Accept()
			must(t, err)
			return c, nc.(*NetConn)
		}
		var err error
		_, n := accept(Limits{WriteTimeout: 50 * time.Millisecond})
		for p := make([]byte, 64<<10); err == nil; { // the client reads nothing
			_, err = n.Write(p)
		}
		if !errors.Is(err, ErrWriteTimeout) {
			t.Errorf("Write of much: %v; want ErrWriteTimeout", err)
		}
		want(t, n, ErrWriteTimeout)

		mine, closing := errors.New("mine"), make(chan struct{})
		c, n := accept(Limits{})
		must(t, n.Ref().Do(func(c *Conn) {
			c.Write(make([]byte, 1<<20))
			c.CloseWith(mine)
			close(closing)
		}))
		<-closing
		go io.Copy(io.Discard, c)
		want(t, n, mine)
	})
}

// WaitReadable ends with input, which stays for Read, and with what ends Read; several may wait.
func TestNetConnWaitReadable(t *testing.T) {
	underAll(t, func(t *testing.T, srv *Server) {
		l := NewNetListener()
		srv.Handler = l
		s := start(t, srv)
		accept := func() (c net.Conn, n *NetConn) {
			c = dial(t, s.addr)
			nc, err := l.Accept()
			must(t, err)
			return c, nc.(*NetConn)
		}
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
				if err := <-both; !errors.Is(err, want) {
					t.Errorf("%s: %v; want %v", what, err, want)
				}
			}
		}
		c, n := accept()
		for range 2 { // the second time the buffer of the first is there
			both := wait(n)
			eventually(t, func() bool {
				n.mu.Lock()
				defer n.mu.Unlock()
				return n.in == nil
			}, func() string { return "a connection that waits holds a buffer" })
			io.WriteString(c, "input")
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
		c.(*net.TCPConn).CloseWrite()
		want("the end", both, io.EOF)
		n.Close()
		want("Close", wait(n), net.ErrClosed)

		c, n = accept()
		both = wait(n)
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
		want("a reset", both, syscall.ECONNRESET)
	})
}

// A deadline that is moved does not end what waits when the old one would have.
func TestNetConnDeadline(t *testing.T) {
	l := NewNetListener()
	s := start(t, &Server{Handler: l})
	c := dial(t, s.addr)
	n, _ := l.Accept()
	n.SetReadDeadline(time.Now().Add(time.Millisecond))
	if _, err := n.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v; want os.ErrDeadlineExceeded", err)
	}
	n.SetReadDeadline(time.Now().Add(time.Hour))
	n.SetReadDeadline(time.Now().Add(-time.Hour))
	if _, err := n.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v; want os.ErrDeadlineExceeded", err)
	}
	n.SetReadDeadline(time.Time{})
	io.WriteString(c, "x")
	if _, err := n.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

func TestBlockingBadUse(t *testing.T) {
	for text, b := range map[string]*Blocking{"Serve is nil": {}, "MaxCalls is -1": {Serve: lineServer, MaxCalls: -1}} {
		err := (&Server{Addr: "127.0.0.1:0", Handler: b}).ListenAndServe(context.Background())
		if !errors.Is(err, ErrBadConfig) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v; want ErrBadConfig, %q", err, text)
		}
	}
	running := start(t, &Server{})
	if err := running.Dial(Dial{Addr: running.addr, Handler: new(Blocking)}); !errors.Is(err, ErrBadConfig) || !strings.Contains(err.Error(), "Dial.Handler: Blocking.Serve is nil") {
		t.Errorf("Dial with it: %v; want ErrBadConfig", err)
	}
	l := NewNetListener()
	if err := (&Server{Handler: l}).ListenAndServe(context.Background()); err == nil {
		t.Error("served without an address")
	}
}
