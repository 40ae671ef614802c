package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
)

type workerFlags struct {
	workers string
	queue   int
	target  time.Duration

	cfg  pool.Config
	pool *pool.Pool // nil without workers
}

func (f *workerFlags) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.workers, "workers", "", "run the application on workers: a maximum `NUMBER`, MIN-MAX or adaptive; the last two adapt to the work and, with --shed, shed overload (default: off, but --model auto uses them)")
	flags.IntVar(&f.queue, "workers-queue", 0, "connections that may wait for a worker; -1 for none (default: the number of --workers, 1024 with adaptive and MIN-MAX)")
	flags.DurationVar(&f.target, "workers-target", 0, "wait from which the pool counts as overloaded, with adaptive and MIN-MAX (default 5ms)")
}

func (f *workerFlags) hasWorkers() bool { return f.workers != "" && f.workers != "0" }

// validateAndBuildPoolConfig validates the flags and sets f.cfg, the configuration of the pool. The pool sheds queued
// jobs only if shedElseKeepQueued is true and the number of workers is not fixed. Otherwise, it keeps all queued jobs
// and runs them in order.
func (f *workerFlags) validateAndBuildPoolConfig(cmd *cobra.Command, shedElseKeepQueued bool) (err error) {
	if !f.hasWorkers() {
		if f.queue != 0 || f.target != 0 {
			return usagef("--workers-queue or --workers-target is given without --workers; expected --workers, too")
		}
		return nil
	}
	cfg, adapts := &f.cfg, true
	minText, maxText, isRange := strings.Cut(f.workers, "-")
	switch {
	case f.workers == "adaptive":
	case isRange:
		cfg.Min, err = strconv.Atoi(minText)
		if err == nil {
			cfg.Max, err = strconv.Atoi(maxText)
		}
	default:
		adapts = false
		cfg.Max, err = strconv.Atoi(f.workers)
		cfg.Queue, cfg.FixedLimit, cfg.KeepQueued, cfg.FIFO = cfg.Max, true, true, true
	}
	switch {
	case err != nil || cfg.Max < 1 && f.workers != "adaptive":
		return usagef("--workers is %q; expected a number such as 128, MIN-MAX such as 2-1000, or adaptive", f.workers)
	case f.target != 0 && !adapts:
		return usagef("--workers-target is %v with --workers %s; expected --workers adaptive or MIN-MAX", f.target, f.workers)
	}
	if cmd.Flags().Changed("workers-queue") {
		cfg.Queue = f.queue
	}
	cfg.Target = f.target
	if adapts && !shedElseKeepQueued {
		cfg.KeepQueued, cfg.FIFO = true, true
	}
	return nil
}

func (f *workerFlags) createPoolUnlessSupervisor(srv *tcp.Server) error {
	if !f.hasWorkers() {
		return nil
	}
	p, err := pool.New(f.cfg)
	if err != nil {
		return usagef("--workers %s: %s", f.workers, poolFieldsToFlags.Replace(err.Error()))
	}
	if _, worker := tcp.WorkerProcess(); srv.Processes > 1 && !worker {
		_, err = p.Close(context.Background())
		return err
	}
	f.pool, srv.Workers = p, p
	return nil
}

var poolFieldsToFlags = strings.NewReplacer("pool: bad configuration: ", "", "Queue is", "--workers-queue is", "Target is", "--workers-target is")

// closePool closes the worker pool, if there is one. The server must have ended.
func (f *workerFlags) closePool() {
	if f.pool != nil {
		_, _ = f.pool.Close(context.Background()) // no connection uses it any more
	}
}
