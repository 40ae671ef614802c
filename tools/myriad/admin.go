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

// adminFlags are those of the admin server.
type adminFlags struct {
	addr      string
	control   bool
	tokenFile string
}

func (f *adminFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.addr, "admin", "", "serve a page that follows this server, metrics, health, profiles and traces over HTTP on this address, on loopback if it has no host (default: not at all)")
	flags.BoolVar(&f.control, "admin-control", false, "let who knows the token pause accepting, close connections, upgrade and drain from there; the token is printed unless it is in --admin-token-file (default: nobody can)")
	flags.StringVar(&f.tokenFile, "admin-token-file", "", fmt.Sprintf("file with the token for --admin-control, %d bytes or more (default: a random one)", admin.MinToken))
}

// validate says what does not go together.
func (f *adminFlags) validate() error {
	switch {
	case f.control && f.addr == "":
		return usagef("--admin-control is for the page of --admin; expected it with --admin")
	case f.tokenFile != "" && !f.control:
		return usagef("--admin-token-file is for --admin-control; expected it with that")
	case f.addr != "":
		return validateListenAddr("admin", f.addr)
	}
	return nil
}

// maxTokenFileBytes bounds what is read of a file.
const maxTokenFileBytes = 4096

// loadOrGenerateToken is what lets somebody control the server, "" for nobody.
func (f *adminFlags) loadOrGenerateToken(out io.Writer) (string, error) {
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
		return "", usagef("--admin-token-file %s has %d bytes; expected a token of %d or more", f.tokenFile, len(token), admin.MinToken)
	}
	return token, nil
}

// startAdminServer starts an admin server on an address. listening is called with the address that
// it got, from another goroutine, before this returns. stop ends the server and waits.
func startAdminServer(addr string, cfg admin.Config, onListening func(net.Addr)) (stop func(), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	var served sync.WaitGroup
	ready := make(chan error, 2) // has room for what Serve returns in the end
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

// adminServer is one that can be stopped, and started again at the address that it had. Its
// methods are for one goroutine at a time.
type adminServer struct {
	addr       string
	cfg        admin.Config
	out        io.Writer // is told where it listens
	stopServer func()    // nil while it is stopped
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

// newMetricsGatherer gathers some metrics and those of this process.
func newMetricsGatherer(collectors ...prometheus.Collector) (prometheus.Gatherer, error) {
	r := prometheus.NewRegistry()
	for _, c := range collectors {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return r, metrics.RegisterProcess(r)
}

// startLoadMetricsServer serves what a run of the load generator tells of itself, as --admin of
// serve does for a server, until stop is called. observe is for load.Config.Observe.
func startLoadMetricsServer(addr string, onListening func(net.Addr)) (observe func(load.Event), stop func(), err error) {
	collector := loadmetrics.New(nil)
	gather, err := newMetricsGatherer(collector)
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
		source.updateStats(e)
	}, stop, nil
}

// loadStatsSource is what /readyz and /stats show of a generator: its model and its open
// connections. It is ready from the beginning of its run to the end.
type loadStatsSource struct{ stats atomic.Pointer[tcp.Stats] }

// Stats is for package admin.
func (s *loadStatsSource) Stats() tcp.Stats {
	if stats := s.stats.Load(); stats != nil {
		return *stats
	}
	return tcp.Stats{}
}

// updateStats takes an event; calls don't overlap.
func (s *loadStatsSource) updateStats(e load.Event) {
	stats := s.Stats()
	stats.Open, stats.Draining = e.Snapshot.Open, e.Phase == load.Done
	if e.Plan != nil {
		stats.Model, stats.Loops, stats.MaxConns = e.Plan.Model, e.Plan.Loops, e.Plan.Connections
	}
	s.stats.Store(&stats)
}
