package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/pprof"
	"runtime/trace"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/metrics"
)

// Source provides the statistics of a server: a *tcp.Server.
type Source interface {
	// Stats must be safe for concurrent use.
	Stats() tcp.Stats
}

// Config configures a Handler.
type Config struct {
	// Source is the server. It is required.
	Source Source
	// Gatherer provides /metrics. The default is a registry with metrics.NewServerCollector of
	// Source and metrics.RegisterProcess.
	Gatherer prometheus.Gatherer
	// Token, if set, lets its holders pause accepting, close connections, drain the server, and
	// with Upgrade upgrade it, from the page or by POST, see Handler. It is a secret of at least
	// MinToken bytes, and Source must be a Controller. The default disables control.
	Token string
	// Upgrade, if set together with Token, upgrades the server at a request from the page, like
	// Server.Upgrade. It must return at once and call done once when the upgrade has ended, on any
	// goroutine; done sends the answer within 5 s. It may end the page's server in the meantime, so
	// that the new process can use its address: the request's connection no longer belongs to that
	// server. The default disables upgrades from the page.
	Upgrade func(done func(tcp.Upgraded, error))
	// Flight is dumped at /debug/flight, which does not exist without it.
	Flight *Flight
	// Pages are additional pages of the application, linked on the main page.
	Pages []Page
	// Log receives errors and the messages of Serve. The default is slog.Default().
	Log *slog.Logger
}

// Page is an additional page of an application.
type Page struct {
	// Path is its path, such as "/hub", which must not be used by this package. Text describes it.
	Path, Text string
	// Handler serves requests with the method GET or HEAD.
	Handler http.Handler
}

// maxScrapes is how many requests for /metrics are served at a time; further ones get 503.
const maxScrapes = 8

// Handler serves, for GET and HEAD:
//
//	/                         the page of the server, which follows it
//	/live                     the part of that page that changes
//	/metrics                  metrics for Prometheus
//	/healthz                  200 while the process works
//	/readyz                   200 while the server serves; 503 before its start and once it drains, and why
//	/stats                    tcp.Stats as JSON, with durations in nanoseconds
//	/debug/pprof/             profiles for go tool pprof, and their list
//	/debug/pprof/profile      what the CPU does for ?seconds=, 1 to 60; the default is 30
//	/debug/trace              what the scheduler does, for go tool trace, for ?seconds=, 1 to 60; the default is 1
//	/debug/flight             the flight recorder's last seconds, for go tool trace
//
// Of each of the last three one is made at a time: a second request gets 409. These and
// all profiles are served for POST, too, and to browsers for nothing else (403); ?gc=1 of
// /debug/pprof/heap collects garbage before. With Config.Token there is, for POST with
// the header Myriad-Action and the token in the header Myriad-Token:
//
//	/control/pause            accept nothing, as Server.PauseAccepting
//	/control/resume           accept again
//	/control/drain            drain, as Server.Drain; the answer does not wait for the end
//	/control/close?remote=    close the connections from an address and port, as Server.CloseConns
//	/control/upgrade          have a new process take over, with Config.Upgrade; the answer, which
//	                          needs HTTP/1.1, says what has come of it
//
// What another site has a browser ask for, by a link, too, gets 403 but at /healthz:
// requests with a Sec-Fetch-Site that is neither same-origin nor none or, without
// that, with an Origin that is not the Host. A browser is what sends one of these
// headers, or a User-Agent that begins with Mozilla/.
//
// After 10 wrong tokens further wrong ones get 429, but for one every 6 s; the right one
// always passes. Each order is logged, and of orders and other sites' requests that are
// refused at most one a second, with the number of those since the line before.
//
// The page shows the last 10 minutes as far as somebody has looked at it, at most one
// point a second; with Serve there is a point every second. It panics if Config.Source
// is nil, or where Token asks for what can't be. It does not ask who is there but for
// orders: see Serve.
func Handler(cfg Config) http.Handler {
	h, _ := newHandlerAndPageState(cfg)
	return h
}

// newHandlerAndPageState returns a Handler and the state from which it builds the page.
func newHandlerAndPageState(cfg Config) (http.Handler, *pageState) {
	if err := validateConfigAndSetLog(&cfg); err != nil {
		panic(err.Error())
	}
	known := &pageState{source: cfg.Source, hasControl: cfg.Token != "", canUpgrade: cfg.Upgrade != nil, links: slices.Clone(defaultLinks)}
	if cfg.Gatherer == nil {
		cfg.Gatherer = newDefaultRegistry(cfg.Source)
	}
	refused := newRateLimitedRejectionLog(cfg.Log)
	mux := http.NewServeMux()
	for pattern, handler := range newRouteHandlers(&cfg, known, refused) {
		mux.Handle(pattern, handler)
	}
	own := rejectCrossSite(mux, refused)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("X-Frame-Options", "DENY")
		w.Header().Set("Cache-Control", "no-store")
		own.ServeHTTP(w, r)
	}), known
}

// routeHandlers are handlers by their http.ServeMux patterns.
type routeHandlers map[string]http.HandlerFunc

func newRouteHandlers(cfg *Config, state *pageState, rejectionLog *rateLimitedRejectionLog) routeHandlers {
	all := routeHandlers{
		"GET /{$}":  func(w http.ResponseWriter, _ *http.Request) { state.renderPageTo(w, (*page.Page).WriteHTML, cfg.Log) },
		"GET /live": func(w http.ResponseWriter, _ *http.Request) { state.renderPageTo(w, (*page.Page).WriteUpdate, cfg.Log) },
		"GET /metrics": promhttp.HandlerFor(cfg.Gatherer, promhttp.HandlerOpts{
			ErrorLog: promLog{cfg.Log}, ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: maxScrapes,
		}).ServeHTTP,
		"GET " + healthPath:        func(w http.ResponseWriter, _ *http.Request) { replyText(w, http.StatusOK, "ok") },
		"GET /readyz":              func(w http.ResponseWriter, _ *http.Request) { replyReadiness(w, cfg.Source.Stats()) },
		"GET /stats":               func(w http.ResponseWriter, _ *http.Request) { replyStatsJSON(w, cfg.Source.Stats()) },
		"GET /debug/pprof/{$}":     replyProfileListPage,
		"GET /debug/pprof/cmdline": replyCommandLine,
	}
	all.addForNonBrowserGETAndPOST("/debug/pprof/{name}", http.HandlerFunc(replyProfile))
	all.addForNonBrowserGETAndPOST("/debug/pprof/profile", newRuntimeRecordingHandler("CPU profile", "profile", 30, pprof.StartCPUProfile, pprof.StopCPUProfile))
	all.addForNonBrowserGETAndPOST("/debug/trace", newRuntimeRecordingHandler("trace", "trace", 1, trace.Start, trace.Stop))
	if cfg.Flight != nil {
		all.addForNonBrowserGETAndPOST("/debug/flight", &oneAtATimeHandler{what: "dump", file: "flight", write: cfg.Flight.serveTraceDownload})
	}
	for _, p := range cfg.Pages {
		all["GET "+p.Path] = p.Handler.ServeHTTP
		state.links = append(state.links, page.Link{URL: p.Path, Text: p.Text})
	}
	if cfg.Token != "" {
		newControlAPI(cfg, rejectionLog).addControlRoutes(all)
	}
	return all
}

// addForNonBrowserGETAndPOST adds an expensive request, which browsers must send by POST.
func (all routeHandlers) addForNonBrowserGETAndPOST(path string, h http.Handler) {
	all["GET "+path], all["POST "+path] = rejectBrowserGET(h), h.ServeHTTP
}

// validateConfigAndSetLog validates cfg and sets its Log.
func validateConfigAndSetLog(cfg *Config) error {
	if cfg.Source == nil {
		return errors.New("admin: Config.Source is nil; expected the *tcp.Server to look at")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return validateControl(cfg)
}

// renderPageTo renders the page into w.
func (l *pageState) renderPageTo(w http.ResponseWriter, render func(*page.Page, io.Writer) error, log *slog.Logger) {
	var text bytes.Buffer
	if err := render(l.sampleAndBuildPage(time.Now()), &text); err != nil {
		log.Error("admin: the page", "error", err)
		replyText(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = text.WriteTo(w) // the peer may have gone
}

// newDefaultRegistry returns the registry used without a Gatherer.
func newDefaultRegistry(source Source) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(metrics.NewServerCollector(source, nil))
	if err := metrics.RegisterProcess(r); err != nil {
		panic(err) // can't conflict in a new registry
	}
	return r
}

// promLog adapts a logger for promhttp.
type promLog struct{ log *slog.Logger }

func (l promLog) Println(v ...any) { l.log.Error("admin: metrics", "error", fmt.Sprint(v...)) }

func replyReadiness(w http.ResponseWriter, s tcp.Stats) {
	switch {
	case s.Draining:
		replyText(w, http.StatusServiceUnavailable, "draining: the server is shutting down or has ended")
	case s.Model == "":
		replyText(w, http.StatusServiceUnavailable, "not started")
	default:
		replyText(w, http.StatusOK, "ok")
	}
}

// replyText answers with a line of text.
func replyText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n") // the peer may have gone
}

func replyStatsJSON(w http.ResponseWriter, s tcp.Stats) {
	w.Header().Set("Content-Type", "application/json")
	to := json.NewEncoder(w)
	to.SetIndent("", "  ")
	_ = to.Encode(s) // the peer may have gone
}

// defaultLinks are the links on the page.
var defaultLinks = []page.Link{
	{URL: "/metrics", Text: "for Prometheus"},
	{URL: "/healthz", Text: "the process works"},
	{URL: "/readyz", Text: "the server serves"},
	{URL: "/stats", Text: "counters as JSON"},
	{URL: "/debug/pprof/", Text: "profiles, a trace, and the flight recorder's last seconds"},
}

// setAttachmentHeader declares the response a file to download.
func setAttachmentHeader(w http.ResponseWriter, name string) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name+time.Now().UTC().Format("-20060102T150405Z")))
}
