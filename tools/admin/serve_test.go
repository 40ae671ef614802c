package admin

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

// testServe is a Serve that runs.
type testServe struct {
	addr string
	log  testkit.Buffer
	end  context.CancelFunc
	err  chan error
}

func startServe(t *testing.T, addr string) *testServe {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &testServe{end: cancel, err: make(chan error, 1)}
	listening := make(chan net.Addr, 1)
	cfg := Config{Source: newFakeSource(tcp.Stats{Model: "epoll"}), Log: slog.New(slog.NewTextHandler(&s.log, nil))}
	go func() { s.err <- Serve(ctx, addr, cfg, func(a net.Addr) { listening <- a }) }()
	select {
	case a := <-listening:
		s.addr = a.String()
	case err := <-s.err:
		t.Fatal(err)
	}
	return s
}

// stop ends it and wants it to end in order.
func (s *testServe) stop(t *testing.T) {
	t.Helper()
	s.end()
	if err := <-s.err; err != nil {
		t.Errorf("Serve returned %v; want nil", err)
	}
}

// httpGet asks without keeping the connection.
func (s *testServe) httpGet(t *testing.T, path, host string) (status int, body string) {
	t.Helper()
	r, err := http.NewRequest("GET", "http://"+s.addr+path, nil)
	testkit.RequireNoError(t, err)
	r.Close, r.Host = true, host
	answer, err := http.DefaultClient.Do(r)
	testkit.RequireNoError(t, err)
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	testkit.RequireNoError(t, err)
	return answer.StatusCode, string(b)
}

func TestServeOnLoopback(t *testing.T) {
	s := startServe(t, ":0")
	defer s.stop(t)
	if !strings.HasPrefix(s.addr, "127.0.0.1:") {
		t.Errorf("listens on %s; want 127.0.0.1 where no host is named", s.addr)
	}
	_, port, _ := net.SplitHostPort(s.addr)
	for host, want := range map[string]int{
		"":                       200, // the address itself
		"localhost":              200,
		"LocalHost:" + port:      200,
		"127.0.0.1":              200,
		"[::1]:" + port:          200,
		"[::1]":                  200,
		"10.1.2.3:80":            200,
		"evil.example":           403,
		"evil.example:" + port:   403,
		"localhost.evil.example": 403,
		"127.0.0.1.evil.example": 403,
	} {
		if got, body := s.httpGet(t, "/healthz", host); got != want {
			t.Errorf("Host %q: got %d, %q; want %d", host, got, body, want)
		}
	}
	if log := s.log.String(); log != "" {
		t.Errorf("logged %q; want nothing", log)
	}
}

// TestNoHost is a request as health checks with HTTP/1.0 send it.
func TestNoHost(t *testing.T) {
	s := startServe(t, "localhost:0")
	defer s.stop(t)
	c := testkit.Dial(t, s.addr)
	c.Send("GET /healthz HTTP/1.0\r\n\r\n")
	if b, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(b), "HTTP/1.0 200") {
		t.Errorf("got %q, %v; want 200", b, err)
	}
}

func TestServeElsewhereWarns(t *testing.T) {
	s := startServe(t, "0.0.0.0:0")
	defer s.stop(t)
	if log := s.log.String(); !strings.Contains(log, "level=WARN") || !strings.Contains(log, "readable by anyone") {
		t.Errorf("logged %q; want a warning", log)
	}
	_, port, _ := net.SplitHostPort(s.addr)
	s.addr = "127.0.0.1:" + port
	if got, _ := s.httpGet(t, "/healthz", "myriad.example"); got != 200 {
		t.Errorf("got %d; want 200: elsewhere than on loopback it has names", got)
	}
}

func TestServeRefuses(t *testing.T) {
	src := newFakeSource(tcp.Stats{})
	taken := startServe(t, ":0")
	defer taken.stop(t)
	for _, c := range []struct {
		addr, contains string
		cfg            Config
	}{
		{":0", "Config.Source is nil", Config{}},
		{"9090", "expected host:port", Config{Source: src}},
		{taken.addr, "in use", Config{Source: src}},
	} {
		err := Serve(t.Context(), c.addr, c.cfg, nil)
		if err == nil || !strings.HasPrefix(err.Error(), "admin: ") {
			t.Errorf("%q: got %v; want an error of admin", c.addr, err)
		}
		if err != nil && c.contains != "in use" && !strings.Contains(err.Error(), c.contains) { // systems word that in their own way
			t.Errorf("%q: got %v; want %q in it", c.addr, err, c.contains)
		}
	}
}

// TestRecordingEndsWithServe has a trace of a minute under way at the end.
func TestRecordingEndsWithServe(t *testing.T) {
	s := startServe(t, ":0")
	r, err := http.Get("http://" + s.addr + "/debug/trace?seconds=60")
	testkit.RequireNoError(t, err)
	defer r.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	began := time.Now()
	s.stop(t)
	if b, err := io.ReadAll(r.Body); err != nil || !bytes.HasPrefix(b, []byte("go 1.")) {
		t.Errorf("got %.20q, %v; want a trace that ends in order", b, err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("ended after %v; want it to end the recording", took)
	}
}

// TestEndWaitsForHandlers has an answer that goes on after it was cut off.
func TestEndWaitsForHandlers(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.RequireNoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	inside, leave, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- serveUntilContextEnds(ctx, ln, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			close(inside)
			<-leave
			close(left)
		}), time.Millisecond, slog.New(slog.DiscardHandler))
	}()
	client := make(chan struct{})
	go func() {
		defer close(client)
		if r, err := http.Get("http://" + ln.Addr().String()); err == nil {
			r.Body.Close()
		}
		http.DefaultClient.CloseIdleConnections()
	}()
	<-inside
	cancel()
	select {
	case err := <-done:
		done <- err
		t.Error("serve returned while a handler runs")
	case <-time.After(50 * time.Millisecond): // it can't be waited for that nothing happens
	}
	close(leave)
	testkit.ExpectNoError(t, <-done)
	select {
	case <-left:
	default:
		t.Error("serve returned before the handler")
	}
	<-client
}
