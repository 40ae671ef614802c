package admin

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/metrics"
)

// Source is the server that is looked at: a *myriad.Server.
type Source interface {
	// Stats may be called from any goroutine at any time.
	Stats() myriad.Stats
}

// Config says what a Handler shows.
type Config struct {
	// Source is the server. It is required.
	Source Source
	// Gatherer is where /metrics comes from. The default is a registry with
	// metrics.NewServerCollector of Source and metrics.RegisterProcess.
	Gatherer prometheus.Gatherer
	// Flight is dumped at /debug/flight, which is not found without it.
	Flight *Flight
	// Log gets what fails, and what Serve has to say. The default is
	// slog.Default().
	Log *slog.Logger
}

// scrapes is how many requests for /metrics are answered at a time; further ones
// get 503.
const scrapes = 8

// Handler serves, for GET and HEAD:
//
//	/                         what there is
//	/metrics                  metrics for Prometheus
//	/healthz                  200 while the process works
//	/readyz                   200 while the server serves; 503 before its start and once it drains, and why
//	/stats                    myriad.Stats as JSON, with durations in nanoseconds
//	/debug/pprof/             profiles for go tool pprof, and their list
//	/debug/pprof/profile      what the CPU does for ?seconds=, 1 to 60; the default is 30
//	/debug/trace              what the scheduler does, for go tool trace, for ?seconds=, 1 to 60; the default is 1
//	/debug/flight             the flight recorder's last seconds, for go tool trace
//
// Of each of the last three one is made at a time: a second request gets 409. It
// panics if Config.Source is nil. It does not ask who is there: see Serve.
func Handler(cfg Config) http.Handler {
	if cfg.Source == nil {
		panic("admin: Config.Source is nil; expected the *myriad.Server to look at")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Gatherer == nil {
		cfg.Gatherer = registry(cfg.Source)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", index)
	mux.Handle("GET /metrics", promhttp.HandlerFor(cfg.Gatherer, promhttp.HandlerOpts{
		ErrorLog: promLog{cfg.Log}, ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: scrapes,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { showReady(w, cfg.Source.Stats()) })
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) { showStats(w, cfg.Source.Stats()) })
	mux.HandleFunc("GET /debug/pprof/{$}", listProfiles)
	mux.HandleFunc("GET /debug/pprof/{name}", showProfile)
	mux.HandleFunc("GET /debug/pprof/cmdline", showCommand)
	mux.Handle("GET /debug/pprof/profile", &recording{what: "CPU profile", standard: 30, file: "profile", start: startProfile})
	mux.Handle("GET /debug/trace", &recording{what: "trace", standard: 1, file: "trace", start: startTrace})
	if cfg.Flight != nil {
		mux.Handle("GET /debug/flight", &flightDump{flight: cfg.Flight})
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		mux.ServeHTTP(w, r)
	})
}

// registry has what is shown without a Gatherer.
func registry(source Source) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(metrics.NewServerCollector(source, nil))
	if err := metrics.RegisterProcess(r); err != nil {
		panic(err) // in a new registry nothing is in the way
	}
	return r
}

// promLog is the log of promhttp.
type promLog struct{ log *slog.Logger }

func (l promLog) Println(v ...any) { l.log.Error("admin: metrics", "error", fmt.Sprint(v...)) }

func showReady(w http.ResponseWriter, s myriad.Stats) {
	switch {
	case s.Draining:
		say(w, http.StatusServiceUnavailable, "draining: the server shuts down, or has")
	case s.Model == "":
		say(w, http.StatusServiceUnavailable, "not started")
	default:
		say(w, http.StatusOK, "ok")
	}
}

// say answers with a line of text.
func say(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n") // the peer may have gone
}

func showStats(w http.ResponseWriter, s myriad.Stats) {
	w.Header().Set("Content-Type", "application/json")
	to := json.NewEncoder(w)
	to.SetIndent("", "  ")
	_ = to.Encode(s) // the peer may have gone
}

const page = `<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Myriad</title></head><body>
<h1>Myriad</h1>
<ul>
<li><a href="/metrics">/metrics</a> for Prometheus</li>
<li><a href="/healthz">/healthz</a> the process works</li>
<li><a href="/readyz">/readyz</a> the server serves</li>
<li><a href="/stats">/stats</a> counters as JSON</li>
<li><a href="/debug/pprof/">/debug/pprof/</a> profiles, for go tool pprof</li>
<li><a href="/debug/trace?seconds=1">/debug/trace?seconds=1</a> a trace, for go tool trace</li>
<li><a href="/debug/flight">/debug/flight</a> the flight recorder's last seconds, for go tool trace, if there is one</li>
</ul>
</body></html>
`

func index(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = io.WriteString(w, page)
}

// attach says that what follows is a file.
func attach(w http.ResponseWriter, name string) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name+time.Now().UTC().Format("-20060102T150405Z")))
}
