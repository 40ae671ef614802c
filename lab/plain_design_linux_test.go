package lab

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// startDesign serves until the test ends it.
func startDesign(t *testing.T, o PlainOptions) (addr string, end func() error) {
	t.Helper()
	ln, err := o.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Plain(ctx, ln, o) }()
	end = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { end() })
	return ln.Addr().String(), end
}

// reach connects to a server that may not listen yet. What is done with the connection
// has a minute, and not what is left of the time to reach it.
func reach(t *testing.T, addr, app string) net.Conn {
	t.Helper()
	srv := &server{addr: addr, process: &process{done: make(chan struct{})}}
	conn, err := srv.awaitReady(t.Context(), app, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// TestDesigns asks every design for every app, and then ends it.
func TestDesigns(t *testing.T) {
	self := children(t).Self
	for _, design := range plainDesigns {
		for _, app := range []string{Echo, Lines, Wait, Pow, Sha} {
			t.Run(design+"/"+app, func(t *testing.T) {
				o := PlainOptions{App: app, Design: design}
				if design == Prefork {
					o.Prefork = &PreforkOptions{Processes: 2, Command: []string{self, "worker", app}}
				}
				addr, end := startDesign(t, o)
				conn := reach(t, addr, app)
				for range 3 { // on a connection that it knows
					if err := askSlow(conn, app); err != nil {
						t.Fatal(err)
					}
				}
				reach(t, addr, app)
				if err := end(); err != nil {
					t.Errorf("got %v, want nil", err)
				}
				if n, err := conn.Read(make([]byte, 1)); err == nil {
					t.Errorf("got %d bytes, want the connection closed", n)
				}
			})
		}
	}
}

// TestPolledPieces has answers come in order, once each, whatever the pieces are that
// the lines come in, on several connections at a time.
func TestPolledPieces(t *testing.T) {
	for _, design := range []string{OneEpoll, Epolls, Reactor} {
		addr, end := startDesign(t, PlainOptions{App: Lines, Design: design})
		var text strings.Builder
		for i := range 500 {
			fmt.Fprintf(&text, "line %d\n", i)
		}
		var wait sync.WaitGroup
		for i := range 20 {
			conn := reach(t, addr, Lines)
			wait.Go(func() {
				for rest := text.String(); rest != ""; {
					piece := rest[:min(len(rest), 1+(i*7+len(rest))%30)]
					io.WriteString(conn, piece)
					rest = rest[len(piece):]
				}
			})
			wait.Go(func() {
				got := make([]byte, text.Len())
				if _, err := io.ReadFull(conn, got); err != nil || string(got) != text.String() {
					t.Errorf("%s: got %q, %v", design, got, err)
				}
			})
		}
		wait.Wait()
		if err := end(); err != nil {
			t.Errorf("%s: got %v, want nil", design, err)
		}
	}
}

// TestPolledRemoves has connections end, also for a line that is too long, and others
// come after them.
func TestPolledRemoves(t *testing.T) {
	for _, design := range []string{OneEpoll, Reactor} {
		addr, _ := startDesign(t, PlainOptions{App: Lines, Design: design, Buffer: MinPlainBuffer})
		long := reach(t, addr, Lines)
		send(t, long, strings.Repeat("x", MinPlainBuffer))
		if n, err := long.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: got %d bytes for a line that is too long, want the connection closed", design, n)
		}
		for range 50 {
			conn := reach(t, addr, Lines)
			send(t, conn, "half a li")
			conn.Close()
		}
		conn := reach(t, addr, Lines)
		send(t, conn, "one\n")
		want(t, conn, "one\n")
	}
}

// TestReactorFull has more connections that want an answer than workers and places in
// their queue: all of them get it.
func TestReactorFull(t *testing.T) {
	addr, end := startDesign(t, PlainOptions{App: Lines, Design: Reactor})
	conns := make([]net.Conn, reactorQueue+5*reactorWorkers)
	for i := range conns {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns[i] = conn
	}
	for range 3 {
		for _, conn := range conns {
			send(t, conn, "ping\n")
		}
		for _, conn := range conns {
			want(t, conn, "ping\n")
		}
	}
	if err := end(); err != nil {
		t.Errorf("got %v, want nil", err)
	}
}

// TestPreforkFails has processes that can't start, or end.
func TestPreforkFails(t *testing.T) {
	self := children(t).Self
	for command, wanted := range map[string]string{"/does/not/exist": "no such file", self: "this server fails"} {
		o := PlainOptions{App: Echo, Design: Prefork, Prefork: &PreforkOptions{Processes: 3, Command: []string{command, "fail"}}}
		ln, err := o.Listen(t.Context(), "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		err = Plain(t.Context(), ln, o)
		if err == nil || !strings.Contains(err.Error(), wanted) {
			t.Errorf("%s: got %v, want %q", command, err, wanted)
		}
	}
}

// TestPreforkParentDies kills the parent: its processes end. Each of them has a
// connection to the test as long as it lives.
func TestPreforkParentDies(t *testing.T) {
	o := children(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	t.Setenv(envReport, ln.Addr().String())
	parent := exec.Command(o.Self, "prefork", "127.0.0.1:0", Echo)
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	defer parent.Wait()
	defer parent.Process.Kill()
	workers := 0
	var all []io.Reader
	for range 3 {
		conn, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		in := bufio.NewReader(conn)
		if line, err := in.ReadString('\n'); err != nil {
			t.Fatal(err)
		} else if strings.HasPrefix(line, "worker") {
			workers++
		}
		all = append(all, in)
	}
	if workers != 2 {
		t.Errorf("%d processes, want 2", workers)
	}
	parent.Process.Kill()
	for _, in := range all {
		io.ReadAll(in) // until the process is gone
	}
}

// TestPreforkPortTaken has a listener that does not share its port.
func TestPreforkPortTaken(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	o := PlainOptions{App: Echo, Design: Prefork, Prefork: &PreforkOptions{Processes: 2, Command: []string{"server"}}}
	if err := Plain(t.Context(), ln, o); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("got %v, want that the port is taken", err)
	}
	if conn, err := net.Dial("tcp", addr); err == nil {
		conn.Close()
		t.Error("the listener is open after the end")
	}
}
