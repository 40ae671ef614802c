package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/admin"
	"github.com/myriad-go/myriad/metrics"
	"github.com/myriad-go/myriad/tune"
)

// beside is what runs beside the server: the admin server, and the flight
// recorder.
type beside struct {
	srv    *myriad.Server
	flags  *serveFlags
	flight *admin.Flight
	cancel context.CancelFunc
	wait   sync.WaitGroup
}

// start starts what is asked for. With worker processes their supervisor shows the
// sum of all, and each of them records itself.
func (b *beside) start(cmd *cobra.Command) (err error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(cmd.Context()))
	b.cancel = cancel
	_, worker := myriad.WorkerProcess()
	token := "" // workers have no admin server
	if !worker {
		if token, err = b.flags.admin.token(cmd.OutOrStdout()); err != nil {
			return err
		}
	}
	if b.flags.flights != "" && worker == (b.srv.Processes > 1) {
		if b.flight, err = admin.StartFlight(admin.FlightConfig{Source: b.srv, Dir: b.flags.flights, Lag: b.flags.flightLag}); err != nil {
			return usagef("--flight-dir: %w", err)
		}
	}
	if b.flags.admin.addr == "" || worker {
		return nil
	}
	gatherer, err := b.gatherer()
	if err != nil {
		return err
	}
	ready := make(chan error, 1)
	b.wait.Go(func() {
		ready <- admin.Serve(ctx, b.flags.admin.addr, admin.Config{Source: b.srv, Flight: b.flight, Gatherer: gatherer, Token: token}, func(addr net.Addr) {
			fmt.Fprintf(cmd.OutOrStdout(), "myriad: the page of this server, metrics, health and profiles on http://%s/\n", addr)
			ready <- nil
		})
	})
	if err := <-ready; err != nil {
		b.stop()
		return fmt.Errorf("--admin: %w", err)
	}
	return nil
}

// gatherer is where the metrics come from when there are those of a pool, too; nil
// is what the admin package has by itself.
func (b *beside) gatherer() (prometheus.Gatherer, error) {
	if b.flags.workers.pool == nil {
		return nil, nil
	}
	r := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{metrics.NewServerCollector(b.srv, nil), metrics.NewPoolCollector(b.flags.workers.pool, nil)} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("--admin: %w", err)
		}
	}
	return r, metrics.RegisterProcess(r)
}

// stop ends it and waits. ready has room for what Serve returns then.
func (b *beside) stop() {
	b.cancel()
	b.wait.Wait()
	if b.flight != nil {
		b.flight.Stop()
	}
}

// tuneMemory sets Go's limits, if that is asked for, and says what it has set.
func (f *serveFlags) tuneMemory(cmd *cobra.Command) error {
	if f.memory == "" && f.gogc == 0 {
		return nil
	}
	options := tune.Options{GOGC: f.gogc, Processes: max(f.srv.Processes, 1)}
	switch text, isPercent := strings.CutSuffix(f.memory, "%"); {
	case f.memory == "auto", f.memory == "" && f.gogc != 0:
	case isPercent:
		percent, err := strconv.Atoi(text)
		if err != nil || percent < 1 || percent > 100 {
			return usagef("--memory-limit is %q; expected auto or 1%% to 100%%", f.memory)
		}
		options.Percent = percent
	default:
		return usagef("--memory-limit is %q; expected auto or a per cent such as 75%%", f.memory)
	}
	set, err := tune.Memory(options)
	if err != nil {
		return usagef("%w; see --memory-limit and --gogc", err)
	}
	if _, worker := myriad.WorkerProcess(); !worker {
		fmt.Fprintf(cmd.OutOrStdout(), "myriad: %s\n", set)
	}
	return nil
}
