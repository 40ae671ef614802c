package admin

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime/trace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeSource is a server whose Stats a test sets.
type fakeSource struct{ stats atomic.Pointer[tcp.Stats] }

func newFakeSource(s tcp.Stats) *fakeSource {
	var src fakeSource
	src.stats.Store(&s)
	return &src
}

func (s *fakeSource) Stats() tcp.Stats { return *s.stats.Load() }

// request sends a request to a handler without a network.
func request(h http.Handler, method, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, target, nil))
	return w
}

func requestAndExpect(t *testing.T, h http.Handler, method, target string, status int, contains string) *httptest.ResponseRecorder {
	t.Helper()
	w := request(h, method, target)
	if w.Code != status || !strings.Contains(w.Body.String(), contains) {
		t.Errorf("%s %s: got %d, %.300q; want %d with %q in it", method, target, w.Code, w.Body.String(), status, contains)
	}
	return w
}

func TestPages(t *testing.T) {
	src := newFakeSource(tcp.Stats{Model: "epoll", Open: 123})
	h := Handler(Config{Source: src, Pages: []Page{{"/more", "of the application", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "more of it")
	})}}})
	for _, c := range []struct {
		target   string
		status   int
		contains string
	}{
		{"/", 200, `href="/metrics"`},
		{"/", 200, `href="/more"`},
		{"/more", 200, "more of it"},
		{"/metrics", 200, "\nmyriad_connections 123\n"},
		{"/metrics", 200, "\ngo_goroutines "},
		{"/healthz", 200, "ok\n"},
		{"/readyz", 200, "ok\n"},
		{"/stats", 200, `"Open": 123`},
		{"/debug/pprof/", 200, `formaction="heap?debug=1"`},
		{"/debug/pprof/goroutine?debug=2", 200, "admin.TestPages"},
		{"/debug/pprof/heap?debug=1&gc=1", 200, "heap profile"},
		{"/debug/pprof/heap?debug=3", 400, "expected 0"},
		{"/debug/pprof/heap?debug=x", 400, "expected 0"},
		{"/debug/pprof/heap?seconds=3", 400, "-diff_base"},
		{"/debug/pprof/none", 404, "/debug/pprof/ lists them"},
		{"/debug/pprof/cmdline", 200, os.Args[0]},
		{"/debug/pprof/profile?seconds=0", 400, "expected 1 to 60"},
		{"/debug/trace?seconds=61", 400, "expected 1 to 60"},
		{"/debug/trace?seconds=x", 400, "expected 1 to 60"},
		{"/debug/flight", 404, ""},
		{"/none", 404, ""},
	} {
		w := requestAndExpect(t, h, "GET", c.target, c.status, c.contains)
		if w.Header().Get("X-Content-Type-Options") != "nosniff" || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: headers %v", c.target, w.Header())
		}
	}
	w := request(h, "GET", "/debug/pprof/heap")
	if _, err := gzip.NewReader(w.Body); err != nil || w.Code != 200 {
		t.Errorf("heap profile: %d, %v; want 200 and what go tool pprof reads", w.Code, err)
	}
}

func TestMethods(t *testing.T) {
	h := Handler(Config{Source: newFakeSource(tcp.Stats{}), Flight: startFlight(t, FlightConfig{})})
	recorded := []string{"/debug/pprof/heap", "/debug/pprof/profile?seconds=60", "/debug/trace?seconds=60", "/debug/flight"}
	for allow, targets := range map[string][]string{
		"GET, HEAD":       {"/", "/metrics", "/healthz", "/readyz", "/stats", "/debug/pprof/"},
		"GET, HEAD, POST": recorded,
	} {
		for _, target := range targets {
			for _, method := range []string{"PUT", "OPTIONS"} {
				if w := request(h, method, target); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != allow {
					t.Errorf("%s %s: got %d, Allow %q; want 405 and %s", method, target, w.Code, w.Header().Get("Allow"), allow)
				}
			}
		}
	}
	requestAndExpect(t, h, "POST", "/debug/pprof/cmdline", 404, "no profile")
	began := time.Now()
	for _, target := range recorded {
		if w := request(h, "HEAD", target); w.Code != 200 || w.Body.Len() != 0 {
			t.Errorf("HEAD %s: got %d and %d bytes; want 200 and none", target, w.Code, w.Body.Len())
		}
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("HEAD took %v; want nothing recorded for it", took)
	}
}

func TestReady(t *testing.T) {
	src := newFakeSource(tcp.Stats{})
	h := Handler(Config{Source: src})
	requestAndExpect(t, h, "GET", "/readyz", 503, "not started")
	src.stats.Store(&tcp.Stats{Model: "epoll"})
	requestAndExpect(t, h, "GET", "/readyz", 200, "ok")
	src.stats.Store(&tcp.Stats{Model: "epoll", Draining: true})
	requestAndExpect(t, h, "GET", "/readyz", 503, "draining")
	requestAndExpect(t, h, "GET", "/healthz", 200, "ok")
}

func TestGatherer(t *testing.T) {
	r := prometheus.NewRegistry()
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "mine"}, func() float64 { return 1 }))
	w := requestAndExpect(t, Handler(Config{Source: newFakeSource(tcp.Stats{}), Gatherer: r}), "GET", "/metrics", 200, "mine 1")
	if strings.Contains(w.Body.String(), "myriad_") {
		t.Error("a Gatherer was given, and there is more than what it has")
	}
}

// failingWriter is a ResponseWriter whose peer has gone away.
type failingWriter struct{ *httptest.ResponseRecorder }

func (failingWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestTraceEnds checks that a trace ends if the peer reads nothing, and that none begins if the program itself traces.
func TestTraceEnds(t *testing.T) {
	h := Handler(Config{Source: newFakeSource(tcp.Stats{})})
	began := time.Now()
	h.ServeHTTP(failingWriter{httptest.NewRecorder()}, httptest.NewRequest("GET", "/debug/trace?seconds=60", nil))
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("ended after %v; want it to end when it can't be sent", took)
	}
	testkit.RequireNoError(t, trace.Start(io.Discard))
	defer trace.Stop()
	w := requestAndExpect(t, h, "GET", "/debug/trace", 409, "no trace can be recorded now")
	if w.Header().Get("Content-Disposition") != "" {
		t.Error("an error is sent as a file")
	}
}

// TestCPUProfile records for the shortest time there is.
func TestCPUProfile(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a second")
	}
	h := Handler(Config{Source: newFakeSource(tcp.Stats{})})
	w := request(h, "GET", "/debug/pprof/profile?seconds=1")
	if _, err := gzip.NewReader(w.Body); err != nil {
		t.Errorf("CPU profile: %v; want what go tool pprof reads", err)
	}
}

// blockingGatherer is a Gatherer that waits.
type blockingGatherer struct{ inside, leave chan struct{} }

func (s blockingGatherer) Gather() ([]*dto.MetricFamily, error) {
	s.inside <- struct{}{}
	<-s.leave
	return nil, nil
}

func TestScrapesAreBounded(t *testing.T) {
	s := blockingGatherer{make(chan struct{}), make(chan struct{})}
	h := Handler(Config{Source: newFakeSource(tcp.Stats{}), Gatherer: s})
	var wg sync.WaitGroup
	for range maxScrapes {
		wg.Go(func() { request(h, "GET", "/metrics") })
		<-s.inside
	}
	requestAndExpect(t, h, "GET", "/metrics", 503, "Limit of concurrent requests")
	close(s.leave)
	wg.Wait()
}

// deadlineRecorder is a ResponseWriter that keeps the deadline it was given.
type deadlineRecorder struct {
	*httptest.ResponseRecorder
	last time.Time
}

func (d *deadlineRecorder) SetWriteDeadline(t time.Time) error {
	d.last = t
	return nil
}

// TestSendTimeIsBounded has each piece of a recording begin the time anew.
func TestSendTimeIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
		s := &abortingRecordingWriter{to: w, control: http.NewResponseController(w), failed: make(chan struct{})}
		for range 3 {
			time.Sleep(time.Minute)
			if _, err := s.Write([]byte("x")); err != nil || w.last != time.Now().Add(5*time.Second) {
				t.Errorf("%v, deadline %v from now; want 5 s", err, time.Until(w.last))
			}
		}
	})
}
