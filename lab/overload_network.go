package lab

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/myriad-go/myriad/internal/offer"
	"github.com/myriad-go/myriad/internal/procfs"
)

const (
	// serverWorkers is the fixed number of workers of a server for each CPU: enough to
	// keep it busy. As many connections may wait.
	serverWorkers = 32
	// networkClosed is how many connections for each CPU, with a line in flight
	// each, measure the capacity.
	networkClosed = 48
	// warmDrain is how long a server may take to answer what it has at the end of
	// the warm-up.
	warmDrain = 4 * offerDrain
)

// serve runs a server and offers lines to it.
func (o *overload) serve(ctx context.Context, rec *RunRecord, side Subject) {
	run := rec.Overload
	loop := &openLoop{
		conns: o.workload.Connections, depth: o.workload.Pipeline, rate: run.Rate,
		duration: run.Window, drain: offerDrain, deadline: run.Deadline,
	}
	var before, after procfs.Stat // the window
	err := o.withServer(ctx, rec, side, func(ctx context.Context, srv *server) error {
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
	loop.marks(rec)
	if err != nil && run.Ended == nil {
		rec.Error = err.Error()
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
func (l *openLoop) marks(rec *RunRecord) {
	add := func(rule, format string, args ...any) {
		rec.Marks = append(rec.Marks, Mark{rule, fmt.Sprintf(format, args...)})
	}
	if l.wrong > 0 {
		add(RuleMismatch, "%d answers were wrong; first: %v", l.wrong, l.first)
	}
	if n := l.lost.Load(); n > 0 && rec.Overload.Ended == nil {
		add(RuleLost, "%d of %d connections ended early", n, l.conns)
	}
}

// withServer starts a server with a watchdog, calls do when it answers, and ends it.
// The context of do ends with the server.
func (o *overload) withServer(ctx context.Context, rec *RunRecord, side Subject, do func(context.Context, *server) error) error {
	run := rec.Overload
	bound := run.Warmup + warmDrain + run.Window + offerDrain + o.slack
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("the run took longer than %v", bound))
	defer cancel()
	addr, err := freeAddr()
	if err != nil {
		return err
	}
	rec.Command = side.fill(place{self: o.self, addr: addr, workers: serverWorkers * runtime.NumCPU()})
	srv, err := o.startServer(ctx, rec.Command, addr, nil)
	if err != nil {
		return err
	}
	defer func() {
		srv.process.end()
		if state := srv.process.cmd.ProcessState; run.Result != nil {
			run.Result.CPUUser, run.Result.CPUSystem = state.UserTime(), state.SystemTime()
		}
	}()
	defer o.guard(rec, srv.process)()
	ctx, stop := srv.watch(ctx)
	defer stop()
	conn, err := srv.awaitReady(ctx, Lines, nil)
	if err != nil {
		return err
	}
	conn.Close()
	return do(ctx, srv)
}

// tryServer measures how many lines a second a server answers in a closed loop. One that
// sheds there has no say.
func (o *overload) tryServer(ctx context.Context, c *Capacity, side Subject) {
	t := Tried{Side: side.Name}
	run := o.trying()
	err := o.withServer(ctx, run, side, func(ctx context.Context, srv *server) error {
		f := run.Overload
		w := Workload{Kind: Throughput, App: Lines, Connections: networkClosed * runtime.NumCPU(), Size: 16, Pipeline: 1, WarmUp: f.Warmup, Duration: f.Window}
		m := &measurement{runner: o.runner, server: srv, workload: w}
		result, err := m.generate(ctx, m.loadCommand(w.loadFlags(srv.addr)), nil)
		if err != nil {
			return err
		}
		if result.Mismatched > 0 {
			return fmt.Errorf("%d answers were not the line", result.Mismatched)
		}
		t.PerSecond = result.Rate()
		return nil
	})
	if err != nil {
		run.Error = err.Error()
	}
	t.Why = run.unfit()
	c.add(t)
}
