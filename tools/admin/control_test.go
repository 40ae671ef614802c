package admin

import (
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

// newControlHandler returns a handler that controls a fake server, and what it logs.
func newControlHandler() (h http.Handler, o *fakeController, log *testkit.Buffer) {
	o, log = newFakeController(), new(testkit.Buffer)
	return Handler(Config{Source: o, Token: testToken, Log: slog.New(slog.NewTextHandler(log, nil))}), o, log
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

// orderAndExpect gives an order and checks the answer.
func orderAndExpect(t *testing.T, h http.Handler, order string, status int, contains string, changes ...func(*http.Request)) {
	t.Helper()
	w := serveRequest(h, newControlRequest("/control/"+order, changes...))
	if w.Code != status || !strings.Contains(w.Body.String(), contains) {
		t.Errorf("%s: %d, %q; want %d with %q in it", order, w.Code, w.Body, status, contains)
	}
}

func setHeader(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// TestGuard gives orders as nobody may: none is carried out, and the first is logged.
func TestGuard(t *testing.T) {
	method := func(name string) func(*http.Request) { return func(r *http.Request) { r.Method = name } }
	for name, c := range map[string]struct {
		change func(*http.Request)
		status int
	}{
		"no token":           {setHeader(TokenHeader, ""), 401},
		"wrong token":        {setHeader(TokenHeader, "a token of 26 characters,,"), 401},
		"part of the token":  {setHeader(TokenHeader, testToken[:20]), 401},
		"no header":          {setHeader(ActionHeader, ""), 403},
		"another site":       {setHeader("Sec-Fetch-Site", "cross-site"), 403},
		"old browser's form": {func(r *http.Request) { r.Header.Del("Sec-Fetch-Site"); r.Header.Set("Origin", "http://evil.example") }, 403},
		"GET":                {method("GET"), 405},
		"PUT":                {method("PUT"), 405},
	} {
		t.Run(name, func(t *testing.T) {
			h, o, log := newControlHandler()
			for _, what := range []string{"pause", "resume", "drain", "close?remote=192.0.2.1:80"} {
				orderAndExpect(t, h, what, c.status, "", c.change)
			}
			if got := o.recordedCalls(); got != "" {
				t.Errorf("the server was told %s", got)
			}
			if text := log.String(); strings.Contains(text, testToken) || c.status != 405 && strings.Count(text, "request rejected") != 1 {
				t.Errorf("this was logged: %s", text)
			}
		})
	}
}

// Wrong tokens are bounded, and forgiven in time; the right one always passes. No token at
// all is no wrong one. The log has a line of them now and then.
func TestWrongTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, o, log := newControlHandler()
		wrong, none := setHeader(TokenHeader, "wrong"), setHeader(TokenHeader, "")
		want := func(n, status int, changes ...func(*http.Request)) {
			t.Helper()
			for range n {
				orderAndExpect(t, h, "pause", status, "", changes...)
			}
		}
		want(3*maxWrongTokens, 401, none)
		want(maxWrongTokens, 401, wrong)
		want(1000, 429, wrong)
		want(1, 200)
		want(1, 429, wrong)
		if n := strings.Count(log.String(), "request rejected"); n != 1 {
			t.Errorf("%d refusals were logged at once, want one: %s", n, log)
		}
		time.Sleep(wrongTokenForgiven)
		want(1, 401, wrong)
		want(1, 429, wrong)
		want(1, 200)
		if got := o.recordedCalls(); got != "pause pause" {
			t.Errorf("the server was told %s", got)
		}
		more := fmt.Sprint("suppressed=", 3*maxWrongTokens-1+maxWrongTokens+1000+1)
		if n := strings.Count(log.String(), "request rejected"); n != 2 || !strings.Contains(log.String(), more) {
			t.Errorf("%d refusals were logged after %v, want two, and %s: %s", n, wrongTokenForgiven, more, log)
		}
	})
}

func TestOrders(t *testing.T) {
	h, o, log := newControlHandler()
	orderAndExpect(t, h, "pause", 200, "paused")
	orderAndExpect(t, h, "resume", 200, "goes on")
	orderAndExpect(t, h, "close?remote=[2001:db8::1]:80", 200, "[2001:db8::1]:80")
	orderAndExpect(t, h, "close?remote=192.0.2.1", 400, "expected an address and a port")
	if got, want := o.recordedCalls(), "pause resume close [2001:db8::1]:80"; got != want {
		t.Errorf("the server was told %s, want %s", got, want)
	}
	if n := strings.Count(log.String(), "from="); n != 4 {
		t.Errorf("%d orders were logged, want 4: %s", n, log)
	}
	o.err = tcp.ErrServerClosed
	orderAndExpect(t, h, "pause", 409, "shutting down")
	orderAndExpect(t, h, "nothing", 404, "")
}

// A connection that is not there is told of after a bounded wait.
func TestCloseNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, o, _ := newControlHandler()
		o.closes = 0
		began := time.Now()
		orderAndExpect(t, h, "close?remote=192.0.2.1:80", 409, "no connection")
		if took := time.Since(began); took != closeTimeout {
			t.Errorf("it took %v", took)
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
		orderAndExpect(t, h, "close?remote=192.0.2.1:80", 200, "")
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
	h, o, log := newControlHandler()
	o.err = context.DeadlineExceeded
	s := httptest.NewServer(h)
	if answer, text := postControl(t, s.URL+"/control/drain"); answer.StatusCode != 200 || text != "the server is draining\n" {
		t.Errorf("%d, %q", answer.StatusCode, text)
	}
	if answer, text := postControl(t, s.URL+"/control/drain"); answer.StatusCode != 409 || !strings.Contains(text, "already") {
		t.Errorf("the second drain: %d, %q; want 409", answer.StatusCode, text)
	}
	close(o.drains)
	s.Close() // waits for the first
	if o.recordedCalls() != "drain" || !strings.Contains(log.String(), "drain ended early") {
		t.Errorf("the server was told %s, and this was logged: %s", o.recordedCalls(), log)
	}
}

// An upgrade is answered though the server of the page ends meanwhile; where nobody can be
// answered in this way none is made.
func TestUpgradeAnswers(t *testing.T) {
	var s *httptest.Server
	var upgrading sync.WaitGroup
	var result error
	h := Handler(Config{Source: newFakeController(), Token: testToken, Log: slog.New(slog.DiscardHandler),
		Upgrade: func(done func(tcp.Upgraded, error)) {
			upgrading.Go(func() {
				_ = s.Listener.Close()
				_ = s.Config.Shutdown(t.Context())
				_ = s.Config.Close()
				done(tcp.Upgraded{PID: 7, Moved: 3, Lost: 1, Took: 20 * time.Millisecond, Done: result == nil}, result)
			})
		}})
	for text, status := range map[string]int{"process 7 has taken over with 3 connections in 20ms; 1 are lost": 200, "no start": 409} {
		if result = nil; status == 409 {
			result = errors.New(text)
		}
		s = httptest.NewServer(h)
		answer, said := postControl(t, s.URL+"/control/upgrade")
		if answer.StatusCode != status || said != text+"\n" || answer.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%d, %v, %q; want %d and %q", answer.StatusCode, answer.Header, said, status, text)
		}
		upgrading.Wait()
		s.Close()
	}
	orderAndExpect(t, h, "upgrade", 409, "expected HTTP/1.1") // of a request that has no connection
	requestAndExpect(t, h, "GET", "/", 200, `data-post="control/upgrade"`)
	h, _, _ = newControlHandler() // without Config.Upgrade
	orderAndExpect(t, h, "upgrade", 404, "")
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
