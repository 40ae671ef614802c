package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/admin"
	"github.com/myriad-go/myriad/tools/load"
	"github.com/myriad-go/myriad/tools/load/loadmetrics"
	"github.com/myriad-go/myriad/tools/metrics"
)

type adminFlags struct {
	addr      string
	control   bool
	tokenFile string
}

func (f *adminFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.addr, "admin", "", "serve a live page, metrics, health, profiles and traces over HTTP on this address, on loopback if it has no host (default off)")
	flags.BoolVar(&f.control, "admin-control", false, "let holders of a token pause accepting, close connections, upgrade and drain on the admin page; the token is printed unless --admin-token-file is set (default off)")
	flags.StringVar(&f.tokenFile, "admin-token-file", "", fmt.Sprintf("file with the token for --admin-control, at least %d bytes (default: a random token)", admin.MinToken))
}

func (f *adminFlags) validate() error {
	switch {
	case f.control && f.addr == "":
		return usagef("--admin-control is given without --admin; expected both")
	case f.tokenFile != "" && !f.control:
		return usagef("--admin-token-file is given without --admin-control; expected both")
	case f.addr != "":
		return validateHostPort("admin", f.addr)
	}
	return nil
}

const maxTokenFileBytes = 4096

// loadOrGenerateToken returns the token for --admin-control. It reads the token from the file of --admin-token-file.
// Without a file, it generates a token and prints it. If --admin-control is not given, it returns "".
func (f *adminFlags) loadOrGenerateToken(out io.Writer) (tokenOrEmpty string, _ error) {
	if !f.control {
		return "", nil
	}
	if f.tokenFile == "" {
		token := rand.Text()
		fmt.Fprintf(out, "myriad: the token for --admin-control is %s\n", token)
		return token, nil
	}
	file, err := os.Open(f.tokenFile)
	if err != nil {
		return "", usagef("--admin-token-file: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxTokenFileBytes))
	if err != nil {
		return "", usagef("--admin-token-file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if len(token) < admin.MinToken {
		return "", usagef("the token in --admin-token-file %s has %d bytes; expected at least %d", f.tokenFile, len(token), admin.MinToken)
	}
	return token, nil
}

// startAdminServer starts an admin server on addr. Before it returns, it calls onListening on another goroutine. The
// function stop stops the server and waits until it has ended.
func startAdminServer(addr string, cfg admin.Config, onListening func(net.Addr)) (stop func(), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	var served sync.WaitGroup
	ready := make(chan error, 2) // has space for the final error of Serve
	served.Go(func() {
		ready <- admin.Serve(ctx, addr, cfg, func(at net.Addr) {
			onListening(at)
			ready <- nil
		})
	})
	stop = func() {
		cancel()
		served.Wait()
	}
	if err := <-ready; err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// adminServer is an admin server that can be restarted at the same address. It is not safe for concurrent use.
type adminServer struct {
	addr       string
	cfg        admin.Config
	out        io.Writer // receives a line with the address
	stopServer func()    // nil while the server is stopped
}

func (a *adminServer) start() (err error) {
	a.stopServer, err = startAdminServer(a.addr, a.cfg, func(at net.Addr) {
		a.addr = at.String()
		fmt.Fprintf(a.out, "myriad: the page of this server, metrics, health and profiles on http://%s/\n", at)
	})
	if err != nil {
		return fmt.Errorf("--admin: %w", err)
	}
	return nil
}

func (a *adminServer) stop() {
	if a.stopServer != nil {
		a.stopServer()
		a.stopServer = nil
	}
}

func newGathererWithProcessMetrics(collectors ...prometheus.Collector) (prometheus.Gatherer, error) {
	r := prometheus.NewRegistry()
	for _, c := range collectors {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return r, metrics.RegisterProcess(r)
}

// startLoadMetricsServer serves the metrics of a load run until the function stop is called. The caller must pass all
// events to the function observe.
func startLoadMetricsServer(addr string, onListening func(net.Addr)) (observe func(load.Event), stop func(), err error) {
	collector := loadmetrics.New(nil)
	gather, err := newGathererWithProcessMetrics(collector)
	if err != nil {
		return nil, nil, err
	}
	source := &loadStatsSource{}
	stop, err = startAdminServer(addr, admin.Config{Source: source, Gatherer: gather}, onListening)
	if err != nil {
		return nil, nil, err
	}
	return func(e load.Event) {
		collector.Observe(e)
		source.updateStatsFromEvent(e)
	}, stop, nil
}

// loadStatsSource is the admin.Source of a load run, for /readyz and /stats.
type loadStatsSource struct{ stats atomic.Pointer[tcp.Stats] }

func (s *loadStatsSource) Stats() tcp.Stats {
	if stats := s.stats.Load(); stats != nil {
		return *stats
	}
	return tcp.Stats{}
}

// updateStatsFromEvent stores the figures of an event. Only one goroutine may call it.
func (s *loadStatsSource) updateStatsFromEvent(e load.Event) {
	stats := s.Stats()
	stats.Open, stats.Draining = e.Snapshot.Open, e.Phase == load.Done
	if e.Plan != nil {
		stats.Model, stats.Loops, stats.MaxConns = e.Plan.Model, e.Plan.Loops, e.Plan.Connections
	}
	s.stats.Store(&stats)
}
