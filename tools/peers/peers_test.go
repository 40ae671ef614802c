package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

const patience = 2 * time.Minute

// running is a command that serves.
type running struct {
	addr   string
	cancel context.CancelFunc
	code   chan int
	stderr bytes.Buffer // to be read when code has come
}

// launch runs the command on a free port until the test ends it or ends.
func launch(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel: cancel, code: make(chan int, 1)}
	out, in := io.Pipe()
	go func() {
		r.code <- run(ctx, append(args, "--addr", "127.0.0.1:0"), in, &r.stderr)
		in.Close()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%q: no ready line: exit code %d, %s", args, <-r.code, r.stderr.String())
	}
	_, r.addr, _ = strings.Cut(strings.TrimSpace(line), " on ")
	t.Cleanup(func() { r.end(t) })
	return r
}

// end ends the command, which has to succeed.
func (r *running) end(t *testing.T) {
	if r.code == nil {
		return
	}
	r.cancel()
	if code := <-r.code; code != 0 {
		t.Errorf("exit code %d: %s", code, r.stderr.String())
	}
	r.code = nil
}

func (r *running) dial(t *testing.T) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c.(*net.TCPConn)
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

func want(t *testing.T, c io.Reader, text string) {
	t.Helper()
	got := make([]byte, len(text))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("got %.60q, %v, want %.60q", got[:n], err, text)
	}
}

// loops are the servers that have every app.
var loops = []string{"netpoll", "gnet", "nbio"}

// TestEcho exchanges small and large messages, and ends with a connection open.
func TestEcho(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", 1<<16)
	for _, server := range loops {
		t.Run(server, func(t *testing.T) {
			r := launch(t, "--server", server, "--app", "echo")
			c := r.dial(t)
			for _, text := range []string{"a", "b\nc", strings.Repeat("x", 16<<10)} {
				send(t, c, text)
				want(t, c, text)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				io.WriteString(c, large)
			}()
			want(t, c, large)
			<-done
			r.end(t)
			if n, err := c.Read(make([]byte, 1)); err == nil {
				t.Errorf("got %d bytes behind the end", n)
			}
		})
	}
}

// TestLines cuts lines into pieces.
func TestLines(t *testing.T) {
	for _, server := range loops {
		t.Run(server, func(t *testing.T) {
			c := launch(t, "--server", server, "--app", "lines").dial(t)
			send(t, c, "one\ntwo\nthr")
			want(t, c, "one\ntwo\n")
			send(t, c, "ee\n\n")
			want(t, c, "three\n\n")
			many := strings.Repeat("0123456789abcde\n", 1000)
			send(t, c, many)
			want(t, c, many)
		})
	}
}

// TestTooLong ends a connection that sends a line or a head without an end.
func TestTooLong(t *testing.T) {
	for _, server := range loops {
		for _, app := range []string{"lines", "http"} {
			c := launch(t, "--server", server, "--app", app).dial(t)
			// The server may close while the rest is sent.
			io.WriteString(c, strings.Repeat("x", maxPending+1))
			if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
				t.Errorf("%s, %s: got %d bytes, want the connection closed", server, app, n)
			}
		}
	}
}

// TestHTTP pipelines requests and cuts them into pieces.
func TestHTTP(t *testing.T) {
	const get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	for _, server := range append([]string{"fasthttp"}, loops...) {
		t.Run(server, func(t *testing.T) {
			r := launch(t, "--server", server, "--app", "http")
			c := r.dial(t)
			in := bufio.NewReader(c)
			send(t, c, get)
			wantHello(t, in)
			send(t, c, strings.Repeat(get, 16)+get[:10])
			for range 16 {
				wantHello(t, in)
			}
			send(t, c, get[10:len(get)-1])
			send(t, c, get[len(get)-1:])
			wantHello(t, in)
			r.end(t)
			if _, err := in.ReadByte(); err == nil {
				t.Error("the connection is open behind the end")
			}
		})
	}
}

func wantHello(t *testing.T, in *bufio.Reader) {
	t.Helper()
	r, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != 200 || string(text) != hello || r.Close || r.ContentLength != int64(len(hello)) {
		t.Fatalf("got %+v, %q, %v", r, text, err)
	}
	date, err := http.ParseTime(r.Header.Get("Date"))
	if off := time.Since(date).Abs(); err != nil || off > patience || r.Header.Get("Content-Type") != "text/plain" {
		t.Fatalf("head %v: date is off by %v, %v", r.Header, off, err)
	}
}

func TestWrongUse(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--server", "apache"}, 2, "expected one of netpoll, gnet, nbio, fasthttp"},
		{[]string{"--server", "fasthttp"}, 2, "what fasthttp has: http"},
		{[]string{"--addr", "9000"}, 2, "expected HOST:PORT"},
		{[]string{"--nonsense"}, 2, "nonsense"},
		{[]string{"extra"}, 2, `"extra"`},
		{[]string{"--addr", ln.Addr().String()}, 1, "in use"},
		{[]string{"--help"}, 0, "netpoll"},
	} {
		var out bytes.Buffer
		if code := run(t.Context(), c.args, &out, &out); code != c.code || !strings.Contains(out.String(), c.says) {
			t.Errorf("%q: exit code %d, %q; want %d and %q", c.args, code, out.String(), c.code, c.says)
		}
	}
}
