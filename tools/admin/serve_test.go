package admin

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/trace"
	"strings"
	"sync/atomic"
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
		"LocalHost:" + port:      200,
		"127.0.0.1":              200,
		"[::1]:" + port:          200,
		"10.1.2.3:80":            200,
		"evil.example:" + port:   403,
		"localhost.evil.example": 403,
		"127.0.0.1.evil.example": 403,
	} {
		if got, body := s.httpGet(t, "/healthz", host); got != want {
			t.Errorf("Host %q: got %d, %q; want %d", host, got, body, want)
		}
	}
	c := testkit.Dial(t, s.addr) // HTTP/1.0 without a host, as of some health checks
	c.Send("GET /healthz HTTP/1.0\r\n\r\n")
	if res, _ := c.ReadResponse(); res.StatusCode != 200 {
		t.Errorf("without a host: %s", res.Status)
	}
	if log := s.log.String(); log != "" {
		t.Errorf("logged %q; want nothing", log)
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
	taken := startServe(t, ":0")
	defer taken.stop(t)
	cfg := Config{Source: newFakeSource(tcp.Stats{})}
	for addr, begin := range map[string]string{
		"9090":     `admin: address "9090"`,
		taken.addr: "admin: ", // systems word that in their own way
	} {
		if err := Serve(t.Context(), addr, cfg, nil); err == nil || !strings.HasPrefix(err.Error(), begin) {
			t.Errorf("%q: got %v; want an error that begins with %q", addr, err, begin)
		}
	}
}

// TestRecordingEndsWithServe has a trace of a minute under way at the end. There is one at a time.
func TestRecordingEndsWithServe(t *testing.T) {
	s := startServe(t, ":0")
	r, err := http.Get("http://" + s.addr + "/debug/trace?seconds=60")
	testkit.RequireNoError(t, err)
	defer r.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	if status, text := s.httpGet(t, "/debug/trace?seconds=1", ""); status != 409 || !strings.Contains(text, "another trace is in progress") {
		t.Errorf("a second one: %d, %q", status, text)
	}
	began := time.Now()
	s.stop(t)
	if b, err := io.ReadAll(r.Body); err != nil || !isTrace(b) {
		t.Errorf("got %.20q, %v; want a trace that ends in order", b, err)
	}
	if took := time.Since(began); took > 30*time.Second || trace.IsEnabled() {
		t.Errorf("ended after %v; want it to end the recording", took)
	}
}

// TestEndWaitsForHandlers has an answer that goes on after it was cut off.
func TestEndWaitsForHandlers(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.RequireNoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	inside, leave, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var left atomic.Bool
	go func() {
		done <- serveUntilContextEnds(ctx, ln, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			close(inside)
			<-leave
			left.Store(true)
		}), time.Millisecond, slog.New(slog.DiscardHandler))
	}()
	c := testkit.Dial(t, ln.Addr().String())
	c.Send("GET / HTTP/1.0\r\n\r\n")
	<-inside
	cancel()
	c.ExpectClosed()
	if len(done) > 0 {
		t.Error("serve returned while a handler runs")
	}
	close(leave)
	testkit.ExpectNoError(t, <-done)
	if !left.Load() {
		t.Error("serve returned before the handler")
	}
}
