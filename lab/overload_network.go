package lab

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"github.com/myriad-go/myriad/internal/offer"
	"github.com/myriad-go/myriad/internal/procfs"
)

// What is asked of a server, and over how many connections.
const (
	networkConns = 1000
	networkDepth = 16 // lines in flight on each
	networkWait  = 20 * time.Millisecond
	networkCPU   = time.Millisecond
	// networkFixed is the fixed number of workers for each CPU: enough to keep it
	// busy. As many connections may wait.
	networkFixed = 32
	// networkClosed is how many connections for each CPU, with a line in flight
	// each, measure the capacity.
	networkClosed = 48
	// warmDrain is how long a server may take to answer what it has at the end of
	// the warm-up: 16,000 lines at most.
	warmDrain = 4 * offerDrain
)

// networkSides are servers of the same application: with workers that adapt, with a
// fixed number, and with a goroutine for each connection.
func networkSides() []OverloadSide {
	serve := func(flags ...string) []string {
		command := []string{
			"{self}", "serve", "--addr", "{addr}", "--app", "work",
			"--work-wait", networkWait.String(), "--work-cpu", networkCPU.String(),
		}
		return append(command, flags...)
	}
	fixed := strconv.Itoa(networkFixed * runtime.NumCPU())
	return []OverloadSide{
		{Name: "serve-goroutine", Command: serve("--model", "goroutine"), Network: true},
		{Name: "serve-fixed", Command: serve("--model", "epoll", "--workers", fixed), Network: true},
		{Name: "serve-adaptive", Command: serve("--model", "epoll", "--workers", "adaptive"), Network: true, Own: true},
	}
}

// serve runs a server and offers lines to it.
func (o *overload) serve(ctx context.Context, run *OverloadRun, side OverloadSide) {
	loop := &openLoop{
		conns: networkConns, depth: networkDepth, rate: run.Rate,
		duration: run.Window, drain: offerDrain, deadline: run.Deadline,
	}
	var before, after procfs.Stat // the window
	err := o.withServer(ctx, run, side, func(ctx context.Context, srv *server) error {
		loop.addr = srv.addr
		if err := loop.warm(ctx, run.Warmup); err != nil {
			return err
		}
		before, _ = procfs.ReadStat(srv.process.pid()) // not on every system
		err := loop.run(ctx)
		after, _ = procfs.ReadStat(srv.process.pid()) // a server may be at lines still that nobody waits for
		if loop.sent.Load() > 0 {
			run.Result = &offer.Result{Pool: side.Name, Work: run.Shape}
			loop.result(run.Result)
		}
		return err
	})
	if run.Result != nil {
		if after.CPU() > 0 {
			run.Result.CPUUser, run.Result.CPUSystem = after.User, after.System
		}
		run.Result.CPUUser -= before.User
		run.Result.CPUSystem -= before.System
	}
	run.endedWarming()
	loop.marks(run)
	if err != nil && run.Ended == nil {
		run.Error = err.Error()
	}
}

// warm is a run under the same load of which nothing is counted. Its lines are
// answered, and its connections closed, when it returns: so it waits longer than the
// run that counts, or a server that sheds nothing would be at those lines in the window
// still, with nobody there to take the answers.
func (l *openLoop) warm(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return nil
	}
	same := &openLoop{addr: l.addr, conns: l.conns, depth: l.depth, rate: l.rate, duration: d, drain: warmDrain, deadline: l.deadline}
	return same.run(ctx)
}

// marks names the rules that only a client sees broken.
func (l *openLoop) marks(run *OverloadRun) {
	add := func(rule, format string, args ...any) {
		run.Marks = append(run.Marks, Mark{rule, fmt.Sprintf(format, args...)})
	}
	if l.wrong > 0 {
		add(RuleMismatch, "%d answers were wrong; first: %v", l.wrong, l.first)
	}
	if n := l.lost.Load(); n > 0 && run.Ended == nil {
		add(RuleLost, "%d of %d connections ended early", n, l.conns)
	}
}

// withServer starts a server with a watchdog, calls do when it answers, and ends it.
// The context of do ends with the server.
func (o *overload) withServer(ctx context.Context, run *OverloadRun, side OverloadSide, do func(context.Context, *server) error) error {
	run.Started = time.Now()
	bound := run.Warmup + warmDrain + run.Window + offerDrain + o.slack
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("the run took longer than %v", bound))
	defer cancel()
	addr, err := freeAddr()
	if err != nil {
		return err
	}
	run.Command = append(Subject{Command: side.Command}.fill(place{self: o.self, addr: addr}), side.More...)
	foreign := watchForeign()
	srv, err := (&runner{self: o.self, launcher: o.launcher}).startServer(ctx, run.Command, addr, nil)
	if err != nil {
		return err
	}
	defer func() {
		srv.process.end()
		run.Took = time.Since(run.Started)
		run.Foreign = foreign(srv.process)
		if state := srv.process.cmd.ProcessState; run.Result != nil {
			run.Result.CPUUser, run.Result.CPUSystem = state.UserTime(), state.SystemTime()
		}
	}()
	defer o.guard(run, srv.process)()
	ctx, stop := srv.watch(ctx)
	defer stop()
	conn, err := srv.awaitReady(ctx, Lines, nil)
	if err != nil {
		return err
	}
	conn.Close()
	return do(ctx, srv)
}

// calibrateServer measures how many lines a second each server answers in a closed
// loop. One that sheds there has no say.
func (o *overload) calibrateServer(ctx context.Context, s shape, c *Capacity) {
	for _, side := range networkSides() {
		if ctx.Err() != nil {
			return
		}
		t := Tried{Side: side.Name}
		run := OverloadRun{Warmup: o.Warmup, Window: o.calibrating(), Shape: s.name}
		err := o.withServer(ctx, &run, side, func(ctx context.Context, srv *server) error {
			w := Workload{Kind: Throughput, App: Lines, Connections: networkClosed * runtime.NumCPU(), Size: 16, Pipeline: 1, WarmUp: run.Warmup, Duration: run.Window}
			m := &measurement{runner: &runner{self: o.self, launcher: o.launcher}, server: srv, workload: w}
			result, err := m.generate(ctx, m.loadCommand(w.loadFlags(srv.addr)), nil)
			if err != nil {
				return err
			}
			if t.PerSecond = result.Rate(); result.Mismatched > 0 {
				t.PerSecond = 0
				return fmt.Errorf("%d answers were not the line", result.Mismatched)
			}
			return nil
		})
		if run.Ended != nil {
			t.Why = run.Ended.String()
		} else if err != nil {
			t.Why = err.Error()
		}
		c.add(t)
	}
}
