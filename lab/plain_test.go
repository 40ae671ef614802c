package lab

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// startPlain serves an app until the test ends it, and returns a connection.
func startPlain(t *testing.T, app string) (conn net.Conn, end func() error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Plain(ctx, ln, PlainOptions{App: app, Buffer: MinPlainBuffer}) }()
	conn, err = net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn, func() error { cancel(); return <-done }
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

func want(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	got := make([]byte, len(text))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
		t.Fatalf("got %q, %v, want %q", got, err, text)
	}
}

func TestPlainEcho(t *testing.T) {
	conn, end := startPlain(t, Echo)
	send(t, conn, "ab")
	want(t, conn, "ab")
	send(t, conn, "c\nd")
	want(t, conn, "c\nd")
	if err := end(); err != nil {
		t.Errorf("got %v, want nil", err)
	}
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("got %d bytes, want the connection closed", n)
	}
}

func TestPlainLines(t *testing.T) {
	conn, end := startPlain(t, Lines)
	send(t, conn, "one\ntwo\nthr")
	want(t, conn, "one\ntwo\n")
	send(t, conn, "ee\n")
	want(t, conn, "three\n")
	longest := strings.Repeat("x", MinPlainBuffer-1) + "\n"
	send(t, conn, longest)
	want(t, conn, longest)
	send(t, conn, "x"+longest)
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("got %d bytes for a line that is too long, want the connection closed", n)
	}
	if err := end(); err != nil {
		t.Errorf("got %v, want nil", err)
	}
}

// askSlow is ask, of a server that may take as long as a busy machine has it.
func askSlow(conn net.Conn, app string) error {
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	return apps[app].ask(conn)
}

func TestPlainHTTP(t *testing.T) {
	conn, end := startPlain(t, HTTP)
	for range 2 {
		if err := askSlow(conn, HTTP); err != nil {
			t.Fatal(err)
		}
	}
	if err := end(); err != nil {
		t.Errorf("got %v, want nil", err)
	}
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("got %d bytes, want the connection closed", n)
	}
}

func TestPlainEnds(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wrong ScenarioError
	if err := Plain(t.Context(), ln, PlainOptions{App: "ftp"}); !errors.As(err, &wrong) {
		t.Errorf("unknown app: got %v, want a ScenarioError", err)
	}
	for _, buffer := range []int{MinPlainBuffer - 1, MaxPlainBuffer + 1} {
		if err := Plain(t.Context(), ln, PlainOptions{App: Echo, Buffer: buffer}); !errors.As(err, &wrong) {
			t.Errorf("buffer of %d bytes: got %v, want a ScenarioError", buffer, err)
		}
	}
	for _, o := range []PlainOptions{{App: Echo, Heartbeat: time.Millisecond}, {App: HTTP, Heartbeat: time.Second}} {
		if err := Plain(t.Context(), ln, o); !errors.As(err, &wrong) {
			t.Errorf("%+v: got %v, want a ScenarioError", o, err)
		}
	}
	ln.Close()
	for _, app := range []string{Echo, HTTP} {
		if err := Plain(t.Context(), ln, PlainOptions{App: app}); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s, closed listener: got %v, want net.ErrClosed", app, err)
		}
	}
}

// TestPlainTenth shows the fault of the published server: of 19 lines it does not answer
// the last nine, until another comes.
func TestPlainTenth(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		plainHandler(PlainOptions{App: Lines, Flush: FlushTenth})(server, PlainBuffer)
		server.Close()
	}()
	send(t, client, strings.Repeat("ping\n", 19))
	want(t, client, strings.Repeat("ping\n", 10))
	send(t, client, "pong\n") // taken, so the server had nothing more to write
	want(t, client, strings.Repeat("ping\n", 9)+"pong\n")
	client.Close()
	<-done
}

// TestPlainRefuses has options that make no sense together.
func TestPlainRefuses(t *testing.T) {
	prefork := &PreforkOptions{Processes: 1, Command: []string{"server"}}
	for _, o := range []PlainOptions{
		{App: "ftp"},
		{App: Lines, Flush: "often"},
		{App: Echo, Flush: FlushTenth},
		{App: Echo, Design: "threads"},
		{App: Echo, Design: Prefork},
		{App: Echo, Design: OneEpoll, Prefork: prefork},
		{App: HTTP, Design: OneEpoll},
		{App: Sink, Design: Reactor},
		{App: Lines, Design: Epolls, Flush: FlushTenth},
		{App: Lines, Design: OneEpoll, Admin: "127.0.0.1:0"},
		{App: Echo, Design: Prefork, Prefork: &PreforkOptions{Command: prefork.Command}},
		{App: Echo, Design: Prefork, Prefork: &PreforkOptions{Processes: maxPrefork + 1, Command: prefork.Command}},
		{App: Echo, Design: Prefork, Prefork: &PreforkOptions{Processes: 1}},
	} {
		var wrong ScenarioError
		if err := o.Check(); !errors.As(err, &wrong) {
			t.Errorf("%+v: got %v, want a ScenarioError", o, err)
		}
	}
}
