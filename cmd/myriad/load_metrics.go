package main

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/admin"
	"github.com/myriad-go/myriad/load"
	"github.com/myriad-go/myriad/metrics"
)

// serveLoadMetrics serves what a run of the load generator tells of itself on addr,
// as --admin of serve does for a server, until stop is called: /metrics with
// metrics.NewLoadCollector and those of this process, and its profiles. observe is
// for load.Config.Observe. listening is called with the address, from another
// goroutine, before this returns; it may be nil. stop waits until all has ended.
func serveLoadMetrics(addr string, listening func(net.Addr)) (observe func(load.Event), stop func(), err error) {
	collector := metrics.NewLoadCollector(nil)
	registry := prometheus.NewRegistry()
	if err := registry.Register(collector); err != nil {
		return nil, nil, fmt.Errorf("--metrics: %w", err)
	}
	if err := metrics.RegisterProcess(registry); err != nil {
		return nil, nil, fmt.Errorf("--metrics: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var served sync.WaitGroup
	source := &loadSource{}
	ready := make(chan error, 2) // has room for what Serve returns in the end
	served.Go(func() {
		ready <- admin.Serve(ctx, addr, admin.Config{Source: source, Gatherer: registry}, func(at net.Addr) {
			if listening != nil {
				listening(at)
			}
			ready <- nil
		})
	})
	stop = func() {
		cancel()
		served.Wait()
	}
	if err := <-ready; err != nil {
		stop()
		return nil, nil, fmt.Errorf("--metrics: %w", err)
	}
	return func(e load.Event) {
		collector.Observe(e)
		source.observe(e)
	}, stop, nil
}

// loadSource is what /readyz and /stats show of a generator: its model and its open
// connections. It is ready from the beginning of its run to the end.
type loadSource struct{ stats atomic.Pointer[myriad.Stats] }

// Stats is for package admin.
func (s *loadSource) Stats() myriad.Stats {
	if stats := s.stats.Load(); stats != nil {
		return *stats
	}
	return myriad.Stats{}
}

// observe takes an event; calls don't overlap.
func (s *loadSource) observe(e load.Event) {
	stats := s.Stats()
	stats.Open, stats.Draining = e.Snapshot.Open, e.Phase == load.Done
	if e.Plan != nil {
		stats.Model, stats.Loops, stats.MaxConns = e.Plan.Model, e.Plan.Loops, e.Plan.Connections
	}
	s.stats.Store(&stats)
}
