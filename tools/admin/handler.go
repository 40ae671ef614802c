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

// Source provides the statistics of a server. A *tcp.Server is a Source.
type Source interface {
	// Stats must be safe for concurrent use.
	Stats() tcp.Stats
}

type Config struct {
	// Source is the server whose statistics are shown. It is required.
	Source Source
	// Gatherer provides the metrics for /metrics. The default covers Source and the process; see
	// metrics.NewServerCollector and metrics.RegisterProcess.
	Gatherer prometheus.Gatherer
	// Token is the secret that authorizes control commands, such as commands to pause accepting, close connections or
	// drain the server. It must have at least MinToken bytes, and Source must be a Controller. Commands are sent by
	// buttons of the page or as POST requests; see Handler. The default, "", disables control.
	Token string
	// Upgrade starts an upgrade of the server when an operator requests it. It requires a Token. Upgrade must return
	// immediately. When the upgrade has ended, call done once with the outcome, on any goroutine. The function done
	// sends the outcome to the operator, which takes at most 5 s. The default, nil, disables upgrades from the page.
	//
	// Upgrade may end the page's HTTP server during the upgrade, to free the address for the new process. The function
	// done still works, because it uses a separate connection.
	Upgrade func(done func(tcp.Upgraded, error))
	// Flight is the recorder for /debug/flight. Without a recorder, this path does not exist.
	Flight *Flight
	// Pages are additional pages of the application. The main page links to them.
	Pages []Page
	// Log receives errors and the messages of Serve. The default is slog.Default().
	Log *slog.Logger
}

// Page is an additional page of an application.
type Page struct {
	// Path, such as "/hub", must differ from the paths of this package. Text describes the page.
	Path, Text string
	// Handler receives the GET and HEAD requests for Path.
	Handler http.Handler
}

// maxScrapes is the maximum number of concurrent requests for /metrics.
const maxScrapes = 8

// Handler returns an HTTP handler for observing and controlling a server. It accepts GET and HEAD requests for these
// paths:
//
//	/                         the live page of the server
//	/live                     the changing part of the page
//	/metrics                  metrics for Prometheus
//	/healthz                  200 while the process works
//	/readyz                   200 while the server serves; before and after that 503 with the reason
//	/stats                    tcp.Stats as JSON, with durations in nanoseconds
//	/debug/pprof/             the list of profiles for go tool pprof, and the profiles
//	/debug/pprof/profile      a CPU profile of ?seconds=, 1 to 60; default 30
//	/debug/trace              an execution trace of ?seconds=, 1 to 60, for go tool trace; default 1
//	/debug/flight             the flight recorder's last seconds, for go tool trace
//
// Profiles, traces and flight recordings may also be requested with POST. A browser must use POST for them; its GET
// requests get 403. While a CPU profile is made, another request for a CPU profile gets 409. The same applies to traces
// and to flight recordings. With ?gc=1, /debug/pprof/heap first collects garbage.
//
// If Config.Token is set, the handler also accepts control requests. A control request is a POST with the header
// Myriad-Action, and with the token in the header Myriad-Token:
//
//	/control/pause            stop accepting, as Server.PauseAccepting
//	/control/resume           accept again
//	/control/drain            start to drain, as Server.Drain
//	/control/close?remote=    close the connections from an address and port, as Server.CloseConns
//	/control/upgrade          start a new process that takes over, with Config.Upgrade; the answer
//	                          contains the outcome and needs HTTP/1.1
//
// Requests that another site has caused, for example with a link, get 403. Only /healthz accepts such requests. The
// handler recognizes such a request by the header Sec-Fetch-Site, if its value is neither same-origin nor none. If the
// request lacks this header, the handler compares the header Origin with the header Host. The handler assumes that a
// request comes from a browser if it has the header Sec-Fetch-Site or Origin, or a User-Agent that begins with
// Mozilla/.
//
// A request with a wrong token gets 401. After 10 wrong tokens, the handler answers only one wrong token every 6 s with
// 401, and further wrong tokens with 429. The right token is always accepted. Each executed command is logged.
// Rejections are logged at most once a second, with the number of rejections since the last line.
//
// The page shows the last 10 minutes, with at most one point per second. Serve records a point every second. Without
// Serve, points are recorded only while somebody views the page.
//
// Handler panics if Config.Source is nil or the control settings are invalid. Only control requests need a token; see
// Serve.
func Handler(cfg Config) http.Handler {
	h, _ := mustNewHandlerAndPageState(cfg)
	return h
}

func mustNewHandlerAndPageState(cfg Config) (http.Handler, *pageState) {
	if err := validateConfigAndSetLog(&cfg); err != nil {
		panic(err.Error())
	}
	known := &pageState{source: cfg.Source, hasControl: cfg.Token != "", canUpgrade: cfg.Upgrade != nil, links: slices.Clone(defaultLinks)}
	if cfg.Gatherer == nil {
		cfg.Gatherer = newDefaultRegistry(cfg.Source)
	}
	refused := newRateLimitedRejectionLog(cfg.Log)
	mux := http.NewServeMux()
	for pattern, handler := range newRouteHandlersLinkingPages(&cfg, known, refused) {
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

type routeHandlers map[string]http.HandlerFunc

func newRouteHandlersLinkingPages(cfg *Config, state *pageState, rejectionLog *rateLimitedRejectionLog) routeHandlers {
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

// addForNonBrowserGETAndPOST registers h for GET and POST requests of a path. GET requests from browsers are rejected.
func (all routeHandlers) addForNonBrowserGETAndPOST(path string, h http.Handler) {
	all["GET "+path], all["POST "+path] = rejectBrowsers(h), h.ServeHTTP
}

func validateConfigAndSetLog(cfg *Config) error {
	if cfg.Source == nil {
		return errors.New("admin: Config.Source is nil; expected a *tcp.Server")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return validateTokenIfSet(cfg)
}

func (l *pageState) renderPageTo(w http.ResponseWriter, render func(*page.Page, io.Writer) error, log *slog.Logger) {
	var text bytes.Buffer
	if err := render(l.refreshIfDueAndBuildPage(time.Now()), &text); err != nil {
		log.Error("admin: cannot render the page", "error", err)
		replyText(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = text.WriteTo(w) // the peer may have disconnected
}

func newDefaultRegistry(source Source) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(metrics.NewServerCollector(source, nil))
	if err := metrics.RegisterProcess(r); err != nil {
		panic(err) // a new registry has no conflicts
	}
	return r
}

type promLog struct{ log *slog.Logger }

func (l promLog) Println(v ...any) {
	l.log.Error("admin: cannot collect metrics", "error", fmt.Sprint(v...))
}

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

func replyText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n") // the peer may have disconnected
}

func replyStatsJSON(w http.ResponseWriter, s tcp.Stats) {
	w.Header().Set("Content-Type", "application/json")
	to := json.NewEncoder(w)
	to.SetIndent("", "  ")
	_ = to.Encode(s) // the peer may have disconnected
}

var defaultLinks = []page.Link{
	{URL: "/metrics", Text: "for Prometheus"},
	{URL: "/healthz", Text: "the process works"},
	{URL: "/readyz", Text: "the server serves"},
	{URL: "/stats", Text: "counters as JSON"},
	{URL: "/debug/pprof/", Text: "profiles, a trace, and the flight recorder's last seconds"},
}

func setAttachmentHeader(w http.ResponseWriter, name string) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name+time.Now().UTC().Format("-20060102T150405Z")))
}
