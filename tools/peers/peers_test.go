package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	lab "github.com/myriad-go/myriad/tools/internal/lab/app"
)

type testCommand struct {
	addr   string
	cancel context.CancelFunc
	code   chan int
	stderr bytes.Buffer // read after code has been received
}

// startCommand runs the command on a free port until stop is called or the test ends.
func startCommand(t *testing.T, args ...string) *testCommand {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &testCommand{cancel: cancel, code: make(chan int, 1)}
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
	t.Cleanup(func() { r.stop(t) })
	return r
}

// stop ends the command, which must succeed.
func (r *testCommand) stop(t *testing.T) {
	if r.code == nil {
		return
	}
	r.cancel()
	if code := <-r.code; code != 0 {
		t.Errorf("exit code %d: %s", code, r.stderr.String())
	}
	r.code = nil
}

var fullServers = []string{"netpoll", "gnet", "nbio"}

// TestEcho echoes more than buffers hold, and stops with an open connection.
func TestEcho(t *testing.T) {
	for _, server := range fullServers {
		t.Run(server, func(t *testing.T) {
			r := startCommand(t, "--server", server, "--app", "echo")
			c := testkit.Dial(t, r.addr)
			large := strings.Repeat("0123456789abcdef", 1<<16)
			done := make(chan error, 1)
			go func() {
				_, err := io.WriteString(c.Conn, large)
				done <- err
			}()
			c.Expect(large)
			testkit.ExpectNoError(t, <-done)
			r.stop(t)
			if got := c.ExpectClosed(); got != "" {
				t.Errorf("got %q behind the end", got)
			}
		})
	}
}

// TestApps checks each app as a bench does before it measures, and lines that come in pieces or many at once.
func TestApps(t *testing.T) {
	for app, servers := range map[string][]string{lab.Echo: fullServers, lab.Lines: fullServers, lab.WebSocket: {"gobwas"}} {
		for _, server := range servers {
			r := startCommand(t, "--server", server, "--app", app)
			if err := lab.CheckServerSpeaksApp(testkit.Dial(t, r.addr).Conn, app); err != nil {
				t.Errorf("%s, %s: %v", server, app, err)
			}
			if app == lab.Lines {
				c, many := testkit.Dial(t, r.addr), strings.Repeat("0123456789abcde\n", 1000)
				c.Send("one\ntwo\nthr")
				c.Expect("one\ntwo\n")
				c.Send("ee\n\n" + many)
				c.Expect("three\n\n" + many)
			}
		}
	}
}

// TestWeb checks that fasthttp answers as the app web does.
func TestWeb(t *testing.T) {
	dir := t.TempDir()
	testkit.RequireNoError(t, os.WriteFile(filepath.Join(dir, "page.css"), lab.Large, 0o600))
	c := testkit.Dial(t, startCommand(t, "--server", "fasthttp", "--app", "web", "--files", dir).addr)
	for _, row := range []struct{ head, body, want string }{
		{"GET /", "", hello}, {"GET /pipeline", "", "ok"}, {"GET /wait", "", "ok"}, {"GET /compute", "", "ok"},
		{"GET /baseline11?a=13&b=42", "", "55"}, {"POST /baseline11?a=13&b=42", "20", "75"}, {"POST /upload", "12345", "5"},
		{"GET /json/2?m=3", "", string(lab.MarshalFirstItems(2, 3))}, {"GET /64k", "", string(lab.Large)}, {"GET /static/page.css", "", string(lab.Large)},
	} {
		c.Send(fmt.Sprintf("%s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", row.head, len(row.body), row.body))
		if res, text := c.ReadResponse(); res.StatusCode != 200 || text != row.want {
			t.Errorf("%s: got %s and %.100q, want %.100q", row.head, res.Status, text, row.want)
		}
	}
}

// TestTooLong checks that an endless line or head closes the connection.
func TestTooLong(t *testing.T) {
	for _, server := range fullServers {
		for _, app := range []string{"lines", "http"} {
			c := testkit.Dial(t, startCommand(t, "--server", server, "--app", app).addr)
			// The server may close before everything is sent.
			_, _ = io.WriteString(c.Conn, strings.Repeat("x", maxPending+1))
			if got := c.ExpectClosed(); got != "" {
				t.Errorf("%s, %s: got %q, want the connection closed", server, app, got)
			}
		}
	}
}

// TestHTTP sends pipelined and split requests.
func TestHTTP(t *testing.T) {
	const get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	for _, server := range append([]string{"fasthttp"}, fullServers...) {
		t.Run(server, func(t *testing.T) {
			r := startCommand(t, "--server", server, "--app", "http")
			c := testkit.Dial(t, r.addr)
			for _, send := range []struct {
				text    string
				answers int
			}{{get, 1}, {strings.Repeat(get, 16) + get[:10], 16}, {get[10 : len(get)-1], 0}, {get[len(get)-1:], 1}} {
				c.Send(send.text)
				for range send.answers {
					res, text := c.ReadResponse()
					if res.StatusCode != 200 || text != hello || res.Close || res.ContentLength != int64(len(hello)) {
						t.Fatalf("got %+v, %q", res, text)
					}
					date, err := http.ParseTime(res.Header.Get("Date"))
					if off := time.Since(date).Abs(); err != nil || off > testkit.Timeout || res.Header.Get("Content-Type") != "text/plain" {
						t.Fatalf("head %v: date is off by %v, %v", res.Header, off, err)
					}
				}
			}
			r.stop(t)
			c.ExpectClosed()
		})
	}
}

func TestWrongUse(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.RequireNoError(t, err)
	defer ln.Close()
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--server", "apache"}, 2, "expected one of netpoll, gnet, nbio, fasthttp, gobwas"},
		{[]string{"--server", "fasthttp"}, 2, "expected an app of fasthttp: http, web"},
		{[]string{"--addr", "9000"}, 2, "expected HOST:PORT"},
		{[]string{"--nonsense"}, 2, "nonsense"},
		{[]string{"extra"}, 2, `"extra"`},
		{[]string{"--addr", ln.Addr().String()}, 1, "in use"},
		{[]string{"--help"}, 0, "netpoll"},
		{[]string{"offer"}, 2, `--pool is ""; expected one of ants, conc, failsafe, pond`},
		{[]string{"offer", "--pool", "ours"}, 2, "expected one of ants, conc, failsafe, pond"},
		{[]string{"offer", "--pool", "ants", "--work", "none"}, 2, "expected one of cpu, limited, mixed, published, short-cpu, steps"},
		{[]string{"offer", "--pool", "ants", "--rate", "x"}, 2, "rate"},
		{[]string{"offer", "--pool", "ants", "extra"}, 2, `"extra"`},
		{[]string{"offer", "--help"}, 0, "-pool POOL"},
	} {
		var out bytes.Buffer
		if code := run(t.Context(), c.args, &out, &out); code != c.code || !strings.Contains(out.String(), c.says) {
			t.Errorf("%q: exit code %d, %q; want %d and %q", c.args, code, out.String(), c.code, c.says)
		}
	}
}

// TestTLS exchanges messages of several records with nbio's TLS server.
func TestTLS(t *testing.T) {
	cert, key := testkit.WriteCertificate(t)
	r := startCommand(t, "--server", "nbio", "--app", "echo", "--tls-cert", cert, "--tls-key", key)
	c, err := tls.Dial("tcp", r.addr, &tls.Config{InsecureSkipVerify: true})
	testkit.RequireNoError(t, err)
	defer c.Close()
	for _, text := range []string{"a", strings.Repeat("x", 40<<10)} {
		got := make([]byte, len(text))
		_, writeErr := io.WriteString(c, text)
		if _, err := io.ReadFull(c, got); writeErr != nil || err != nil || string(got) != text {
			t.Fatalf("%d bytes: %v, %v, equal %v", len(text), writeErr, err, string(got) == text)
		}
	}
}
