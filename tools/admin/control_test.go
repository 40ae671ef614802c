package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

const testToken = "a token of 26 characters.."

// fakeController is a server that notes what it is told.
type fakeController struct {
	*fakeSource
	mu     sync.Mutex
	told   []string
	err    error
	drains chan struct{} // a drain ends when it is closed
	closes int64         // connections of a peer
}

func newFakeController() *fakeController {
	return &fakeController{fakeSource: newFakeSource(tcp.Stats{Model: "epoll"}), drains: make(chan struct{}), closes: 1}
}

func (o *fakeController) recordCall(what string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.told = append(o.told, what)
	return o.err
}

func (o *fakeController) recordedCalls() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.told, " ")
}

func (o *fakeController) PauseAccepting() error  { return o.recordCall("pause") }
func (o *fakeController) ResumeAccepting() error { return o.recordCall("resume") }
func (o *fakeController) CloseConns(a netip.AddrPort) error {
	err := o.recordCall("close " + a.String())
	s := o.Stats()
	s.Closed.Operator += o.closes
	o.stats.Store(&s)
	return err
}
func (o *fakeController) Drain() error {
	err := o.recordCall("drain")
	<-o.drains
	return err
}

// newControlRequest is a request as the page sends it, changed.
func newControlRequest(target string, changes ...func(*http.Request)) *http.Request {
	r := httptest.NewRequest("POST", target, nil)
	r.Header.Set(ActionHeader, "1")
	r.Header.Set(TokenHeader, testToken)
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	for _, change := range changes {
		change(r)
	}
	return r
}

func serveRequest(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestGuard gives orders as nobody may: none is carried out, and the first is logged.
func TestGuard(t *testing.T) {
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	method := func(name string) func(*http.Request) { return func(r *http.Request) { r.Method = name } }
	for name, c := range map[string]struct {
		change func(*http.Request)
		status int
	}{
		"no token":           {func(r *http.Request) { r.Header.Del(TokenHeader) }, 401},
		"wrong token":        {header(TokenHeader, "a token of 26 characters,,"), 401},
		"part of the token":  {header(TokenHeader, testToken[:20]), 401},
		"no header":          {func(r *http.Request) { r.Header.Del(ActionHeader) }, 403},
		"another site":       {header("Sec-Fetch-Site", "cross-site"), 403},
		"another port":       {header("Sec-Fetch-Site", "same-site"), 403},
		"old browser's form": {func(r *http.Request) { r.Header.Del("Sec-Fetch-Site"); r.Header.Set("Origin", "http://evil.example") }, 403},
		"GET":                {method("GET"), 405},
		"HEAD":               {method("HEAD"), 405},
		"PUT":                {method("PUT"), 405},
	} {
		o := newFakeController()
		var log bytes.Buffer
		h := Handler(Config{Source: o, Token: testToken, Log: slog.New(slog.NewTextHandler(&log, nil))})
		for _, what := range []string{"pause", "resume", "drain", "close?remote=192.0.2.1:80"} {
			w := serveRequest(h, newControlRequest("/control/"+what, c.change))
			if w.Code != c.status {
				t.Errorf("%s: %s got %d, %q; want %d", name, what, w.Code, w.Body, c.status)
			}
		}
		if got := o.recordedCalls(); got != "" {
			t.Errorf("%s: the server was told %s", name, got)
		}
		if strings.Contains(log.String(), testToken) || c.status != 405 && strings.Count(log.String(), "request rejected") != 1 {
			t.Errorf("%s: this was logged: %s", name, log.String())
		}
	}
}

// Wrong tokens are bounded, and forgiven in time; the right one always passes. No token at
// all is no wrong one. The log has a line of them now and then.
func TestWrongTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newFakeController()
		var log bytes.Buffer
		h := Handler(Config{Source: o, Token: testToken, Log: slog.New(slog.NewTextHandler(&log, nil))})
		wrong := func(r *http.Request) { r.Header.Set(TokenHeader, "wrong") }
		none := func(r *http.Request) { r.Header.Del(TokenHeader) }
		want := func(status int, changes ...func(*http.Request)) {
			t.Helper()
			if w := serveRequest(h, newControlRequest("/control/pause", changes...)); w.Code != status {
				t.Errorf("got %d, %q; want %d", w.Code, w.Body, status)
			}
		}
		for range 3 * maxWrongTokens {
			want(401, none)
		}
		for range maxWrongTokens {
			want(401, wrong)
		}
		for range 1000 {
			want(429, wrong)
		}
		want(200)
		want(429, wrong)
		if n := strings.Count(log.String(), "request rejected"); n != 1 {
			t.Errorf("%d refusals were logged at once, want one: %s", n, log.String())
		}
		time.Sleep(wrongTokenForgiven)
		want(401, wrong)
		want(429, wrong)
		want(200)
		if got := o.recordedCalls(); got != "pause pause" {
			t.Errorf("the server was told %s", got)
		}
		more := fmt.Sprint("suppressed=", 3*maxWrongTokens-1+maxWrongTokens+1000+1)
		if n := strings.Count(log.String(), "request rejected"); n != 2 || !strings.Contains(log.String(), more) {
			t.Errorf("%d refusals were logged after %v, want two, and %s: %s", n, wrongTokenForgiven, more, log.String())
		}
	})
}

func TestOrders(t *testing.T) {
	o := newFakeController()
	var log testkit.Buffer
	h := Handler(Config{Source: o, Token: testToken, Log: slog.New(slog.NewTextHandler(&log, nil))})
	for _, c := range []struct {
		order  string
		status int
		says   string
	}{
		{"pause", 200, "paused"},
		{"resume", 200, "goes on"},
		{"close?remote=192.0.2.1:80", 200, "192.0.2.1:80"},
		{"close?remote=[2001:db8::1]:80", 200, "[2001:db8::1]:80"},
		{"close?remote=192.0.2.1", 400, "expected an address and a port"},
		{"close", 400, "expected an address and a port"},
	} {
		if w := serveRequest(h, newControlRequest("/control/"+c.order)); w.Code != c.status || !strings.Contains(w.Body.String(), c.says) {
			t.Errorf("%s: %d, %q; want %d with %q in it", c.order, w.Code, w.Body, c.status, c.says)
		}
	}
	if got, want := o.recordedCalls(), "pause resume close 192.0.2.1:80 close [2001:db8::1]:80"; got != want {
		t.Errorf("the server was told %s, want %s", got, want)
	}
	if n := strings.Count(log.String(), "from="); n != 6 {
		t.Errorf("%d orders were logged, want 6: %s", n, log.String())
	}
	o.err = tcp.ErrServerClosed
	if w := serveRequest(h, newControlRequest("/control/pause")); w.Code != 409 || !strings.Contains(w.Body.String(), "shutting down") {
		t.Errorf("a server that has ended: %d, %q", w.Code, w.Body)
	}
	if w := serveRequest(h, newControlRequest("/control/nothing")); w.Code != 404 {
		t.Errorf("an order that there is not: %d", w.Code)
	}
}

// A connection that is not there is told of after a bounded wait.
func TestCloseNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newFakeController()
		o.closes = 0
		h := Handler(Config{Source: o, Token: testToken, Log: slog.New(slog.DiscardHandler)})
		began := time.Now()
		w := serveRequest(h, newControlRequest("/control/close?remote=192.0.2.1:80"))
		if w.Code != 409 || !strings.Contains(w.Body.String(), "no connection") || time.Since(began) != closeTimeout {
			t.Errorf("%d, %q after %v", w.Code, w.Body, time.Since(began))
		}
	})
}

// slowController is a server in a process that stands still for a while as it closes.
type slowController struct {
	*fakeController
	looks int
}

func (h *slowController) CloseConns(netip.AddrPort) error { return nil }

func (h *slowController) Stats() tcp.Stats {
	s := h.fakeController.Stats()
	switch h.looks++; h.looks {
	case 1: // before
	case 2:
		time.Sleep(2 * closeTimeout)
	default:
		s.Closed.Operator++
	}
	return s
}

// A connection that was closed while the process stood still is looked for once more.
func TestCloseHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := Handler(Config{Source: &slowController{fakeController: newFakeController()}, Token: testToken, Log: slog.New(slog.DiscardHandler)})
		if w := serveRequest(h, newControlRequest("/control/close?remote=192.0.2.1:80")); w.Code != 200 {
			t.Errorf("%d, %q", w.Code, w.Body)
		}
	})
}

func postControl(t *testing.T, url string) (answer *http.Response, text string) {
	t.Helper()
	r := newControlRequest(url)
	r.RequestURI = ""
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	testkit.RequireNoError(t, err)
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	testkit.ExpectNoError(t, err)
	return answer, string(all)
}

// The answer to a drain comes before its end, and the second one is refused.
func TestDrainAnswers(t *testing.T) {
	o := newFakeController()
	o.err = context.DeadlineExceeded
	var log testkit.Buffer
	s := httptest.NewServer(Handler(Config{Source: o, Token: testToken, Log: slog.New(slog.NewTextHandler(&log, nil))}))
	drain := func() (int, string) {
		t.Helper()
		answer, text := postControl(t, s.URL+"/control/drain")
		return answer.StatusCode, text
	}
	if status, text := drain(); status != 200 || text != "the server is draining\n" {
		t.Errorf("%d, %q", status, text)
	}
	if status, text := drain(); status != 409 || !strings.Contains(text, "already") {
		t.Errorf("the second drain: %d, %q; want 409", status, text)
	}
	close(o.drains)
	s.Close() // waits for the first
	if o.recordedCalls() != "drain" || !strings.Contains(log.String(), "drain ended early") {
		t.Errorf("the server was told %s, and this was logged: %s", o.recordedCalls(), log.String())
	}
}

// An upgrade is answered though the server of the page ends meanwhile; where nobody can be
// answered in this way none is made.
func TestUpgradeAnswers(t *testing.T) {
	var s *httptest.Server
	results := map[string]error{"process 7 has taken over with 3 connections in 20ms; 1 are lost": nil, "no start": errors.New("no start")}
	for text, err := range results {
		var upgrading sync.WaitGroup
		s = httptest.NewUnstartedServer(Handler(Config{Source: newFakeController(), Token: testToken, Log: slog.New(slog.DiscardHandler),
			Upgrade: func(done func(tcp.Upgraded, error)) {
				upgrading.Go(func() {
					_ = s.Listener.Close()
					_ = s.Config.Shutdown(t.Context())
					_ = s.Config.Close()
					done(tcp.Upgraded{PID: 7, Moved: 3, Lost: 1, Took: 20 * time.Millisecond, Done: err == nil}, err)
				})
			}}))
		s.Start()
		answer, said := postControl(t, s.URL+"/control/upgrade")
		want := map[bool]int{true: 200, false: 409}[err == nil]
		if answer.StatusCode != want || said != text+"\n" || answer.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%d, %v, %q; want %d and %q", answer.StatusCode, answer.Header, said, want, text)
		}
		upgrading.Wait()
		s.Close()
	}
	h := Handler(Config{Source: newFakeController(), Token: testToken, Log: slog.New(slog.DiscardHandler), Upgrade: func(func(tcp.Upgraded, error)) { t.Error("an upgrade without an answer") }})
	if w := serveRequest(h, newControlRequest("/control/upgrade")); w.Code != 409 || !strings.Contains(w.Body.String(), "expected HTTP/1.1") {
		t.Errorf("%d, %q; want 409", w.Code, w.Body)
	}
	requestAndExpect(t, h, "GET", "/", 200, `data-post="control/upgrade"`)
	h = Handler(Config{Source: newFakeController(), Token: testToken})
	if w := serveRequest(h, newControlRequest("/control/upgrade")); w.Code != 404 {
		t.Errorf("without Config.Upgrade: %d, want 404", w.Code)
	}
	if w := request(h, "GET", "/"); strings.Contains(w.Body.String(), "control/upgrade") {
		t.Error("without Config.Upgrade there is a button")
	}
}

func TestControlConfig(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		says string
	}{
		{Config{Source: newFakeSource(tcp.Stats{}), Token: testToken}, "which has no control methods"},
		{Config{Source: newFakeController(), Token: "short"}, "at least 16"},
		{Config{}, "Config.Source is nil"},
	} {
		if err := Serve(t.Context(), "127.0.0.1:0", c.cfg, nil); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("Serve: %v, want %q", err, c.says)
		}
		func() {
			defer func() {
				if text, _ := recover().(string); !strings.Contains(text, c.says) {
					t.Errorf("Handler: %q, want a panic with %q", text, c.says)
				}
			}()
			Handler(c.cfg)
		}()
	}
}

// The page has buttons with a token only.
func TestButtons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newFakeController()
		h := Handler(Config{Source: o, Token: testToken})
		requestAndExpect(t, h, "GET", "/", 200, `data-post="control/pause"`)
		requestAndExpect(t, h, "GET", "/live", 200, `data-post="control/drain"`)
		o.stats.Store(&tcp.Stats{Model: "epoll", AcceptingPaused: true})
		time.Sleep(minSampleInterval)
		requestAndExpect(t, h, "GET", "/live", 200, `data-post="control/resume"`)
		if w := request(h, "GET", "/"); strings.Contains(w.Body.String(), testToken) {
			t.Error("the token is in the page")
		}
		if w := request(Handler(Config{Source: newFakeController()}), "GET", "/"); strings.Contains(w.Body.String(), `data-post="control`) {
			t.Error("there are buttons without a token")
		}
	})
}
