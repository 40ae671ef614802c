package admin

import (
	"bytes"
	"cmp"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

// newFullConfig is a server's Config with all that can be served, and the patterns of that.
func newFullConfig(t *testing.T) (cfg Config, patterns []string) {
	t.Helper()
	server := newFakeController()
	close(server.drains)
	cfg = Config{Source: server, Token: testToken, Flight: startFlight(t, FlightConfig{}), Log: slog.New(slog.DiscardHandler)}
	cfg.Gatherer = newDefaultRegistry(server)
	return cfg, slices.Sorted(maps.Keys(newRouteHandlersLinkingPages(&cfg, &pageState{source: server}, newRateLimitedRejectionLog(cfg.Log))))
}

// requestFor is one that a pattern serves, and the query such that nothing is recorded.
func requestFor(pattern string, header map[string]string) *http.Request {
	method, path, _ := strings.Cut(pattern, " ")
	path = strings.NewReplacer("{$}", "", "{name}", "heap").Replace(path)
	r := httptest.NewRequest(method, path+"?seconds=0", nil)
	if strings.HasPrefix(path, "/control/") {
		r.Header.Set(ActionHeader, "1")
		r.Header.Set(TokenHeader, testToken)
	}
	for name, value := range header {
		r.Header.Set(name, value)
	}
	return r
}

// TestWhoMayAsk asks for all that there is as browsers and programs do.
func TestWhoMayAsk(t *testing.T) {
	cfg, patterns := newFullConfig(t)
	if len(patterns) < 10 {
		t.Fatalf("there is only %q", patterns)
	}
	h := Handler(cfg)
	const firefox = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
	for name, c := range map[string]struct {
		header       map[string]string
		foreign, get bool // it comes from another site; what is dear may be had by GET
	}{
		"another site":                {map[string]string{"Sec-Fetch-Site": "cross-site"}, true, false},
		"another site's link":         {map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, true, false},
		"another port":                {map[string]string{"Sec-Fetch-Site": "same-site"}, true, false},
		"a word that is new":          {map[string]string{"Sec-Fetch-Site": "new"}, true, false},
		"another origin":              {map[string]string{"Origin": "http://evil.example"}, true, false},
		"another origin's port":       {map[string]string{"Origin": "http://example.com:81"}, true, false},
		"an origin that is not told":  {map[string]string{"Origin": "null"}, true, false},
		"the page":                    {map[string]string{"Sec-Fetch-Site": "same-origin"}, false, false},
		"the address bar":             {map[string]string{"Sec-Fetch-Site": "none"}, false, false},
		"the page beyond loopback":    {map[string]string{"Origin": "http://example.com", "User-Agent": firefox}, false, false},
		"a browser beyond loopback":   {map[string]string{"User-Agent": firefox}, false, false},
		"curl":                        {map[string]string{"User-Agent": "curl/8.5.0"}, false, true},
		"go tool pprof":               {map[string]string{"User-Agent": "Go-http-client/1.1"}, false, true},
		"a program that says nothing": {nil, false, true},
	} {
		for _, pattern := range patterns {
			w := serveRequest(h, requestFor(pattern, c.header))
			method, path, _ := strings.Cut(pattern, " ")
			recorded := strings.HasPrefix(path, "/debug/") && path != "/debug/pprof/{$}" && path != "/debug/pprof/cmdline"
			want, says := "served", ""
			if c.foreign && path != healthPath {
				want, says = "rejected", "cross-origin"
			} else if recorded && method == "GET" && !c.get {
				want, says = "rejected", "expected POST"
			}
			got := map[int]string{403: "rejected", 404: "missing", 405: "missing"}[w.Code]
			if cmp.Or(got, "served") != want || !strings.Contains(w.Body.String(), says) {
				t.Errorf("%s, %s: got %d, %.100q; want it %s %s", name, pattern, w.Code, w.Body, want, says)
			}
		}
	}
}

// TestOtherSitesOfNothing has another site ask for what is not there. A line of bounded length is logged now and then.
func TestOtherSitesOfNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		h := Handler(Config{Source: newFakeSource(tcp.Stats{}), Log: slog.New(slog.NewTextHandler(&log, nil))})
		for _, pattern := range []string{"GET /" + strings.Repeat("x", 9000), "GET //healthz", "GET /healthz/", "OPTIONS /debug/trace", "PUT /"} {
			if w := serveRequest(h, requestFor(pattern, map[string]string{"Sec-Fetch-Site": "cross-site"})); w.Code != 403 {
				t.Errorf("%.20s: got %d, %q; want 403", pattern, w.Code, w.Body)
			}
		}
		if n := strings.Count(log.String(), "request rejected"); n != 1 || log.Len() > 500 || !strings.Contains(log.String(), "path=/xxx") {
			t.Errorf("%d lines were logged, want one that is short: %s", n, log.String())
		}
	})
}

// TestListHasButtons wants the list of profiles to send what browsers have to send.
func TestListHasButtons(t *testing.T) {
	cfg, _ := newFullConfig(t)
	h := Handler(cfg)
	w := requestAndExpect(t, h, "GET", "/debug/pprof/", 200, `<form method="post">`)
	base := httptest.NewRequest("GET", "/debug/pprof/", nil).URL
	buttons := strings.Split(w.Body.String(), ` formaction="`)[1:]
	if len(buttons) < 9 {
		t.Errorf("there are only the buttons %q", buttons)
	}
	for _, b := range buttons {
		action, _, _ := strings.Cut(b, `"`)
		to, err := base.Parse(action)
		testkit.RequireNoError(t, err)
		if strings.Contains(action, "seconds") {
			to.RawQuery = "seconds=0" // nothing is recorded, which is told with 400
		}
		r := httptest.NewRequest("POST", to.String(), nil)
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		if w := serveRequest(h, r); w.Code != 200 && (to.RawQuery != "seconds=0" || w.Code != 400) {
			t.Errorf("%s: got %d, %.100q", action, w.Code, w.Body)
		}
	}
}
