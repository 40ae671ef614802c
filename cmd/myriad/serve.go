package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/admin"
	"github.com/myriad-go/myriad/metrics"
)

func newServe() *cobra.Command {
	f := &serveFlags{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve one of the example applications under an I/O model",
		Long: "Serve one of the example applications under an I/O model.\n\n" +
			"SIGINT or SIGTERM stops accepting and drains; a second one stops at once. SIGHUP reloads\n" +
			"the certificate of --tls-cert; without TLS it drains, too, unless it is ignored (nohup):\n" +
			"a terminal that is closed sends it.\n\n" +
			"Applications:\n" + describeApps(),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.serve(cmd) },
	}
	f.add(cmd)
	return cmd
}

// spareProcessors sees to it that Go has enough processors beside those that
// loops hold, also while they wait for a moment. With none to spare the scheduler
// takes the processor of such a loop and has to give it back: at one connection
// that was a quarter of the server's work, 37 µs a message against 28, in
// interleaved runs. With 56 loops on two CPUs, opening 200,000 connections took both
// sides 9.5 s of processor time instead of 16 when the generator's had enough, too, and
// woke fewer loops at a time. Where workers may call the handlers, each CPU is to have
// one for them: with two for two CPUs and a loop, handlers that compute got 1.4 of the
// CPUs.
func spareProcessors(loops int, workers bool) {
	need := loops + 1
	if workers {
		need = loops + runtime.NumCPU()
	}
	if os.Getenv("GOMAXPROCS") == "" && loops > 0 && need > runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(need)
	}
}

// serve runs the server until a signal has ended it.
func (f *serveFlags) serve(cmd *cobra.Command) error {
	srv, err := f.server(cmd)
	if err != nil {
		return err
	}
	f.warn(cmd)
	listener, err := f.listener()
	if err != nil {
		return err
	}
	if err := f.tuneMemory(cmd); err != nil {
		return err
	}
	if err := f.workers.start(srv); err != nil {
		return err
	}
	defer f.workers.stop()
	stop, err := f.serveAdmin(cmd)
	if err != nil {
		return err
	}
	defer stop()
	srv.Listening = func(addr net.Addr) {
		f.announce(cmd, addr)
		notify(cmd, "READY=1")
	}
	srv.Stopping = func() { notify(cmd, "STOPPING=1") }
	ctx, ended := f.handleSignals(cmd)
	if listener != nil {
		err = srv.Serve(ctx, listener)
	} else {
		err = srv.ListenAndServe(ctx)
	}
	cut := ended()
	switch {
	case cut > 0:
		return fmt.Errorf("stopped at once; %d connections were closed before they had finished", cut)
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w; another program, or --admin, listens on %s: end it, or choose another address with --addr", err, srv.Addr)
	case srv.Network == "unix" && errors.Is(err, fs.ErrNotExist):
		return usagef("--addr is %q, whose directory is not there; expected the path of a socket", srv.Addr)
	case errors.Is(err, myriad.ErrBadConfig):
		return usagef("%s", f.asFlags(err.Error()))
	}
	return err
}

// announce says that the server serves.
func (f *serveFlags) announce(cmd *cobra.Command, addr net.Addr) {
	srv := &f.srv
	s := srv.Stats()
	spareProcessors(s.Loops, f.workers.some() || srv.Model == "" || srv.Model == myriad.Auto)
	more := ""
	if s.Loops > 0 {
		more = fmt.Sprintf(", loops %d", s.Loops)
	}
	if s.Processes > 0 {
		more += fmt.Sprintf(", processes %d", s.Processes)
	}
	if srv.TLSConfig != nil {
		more += ", TLS"
	}
	fmt.Fprintf(cmd.OutOrStdout(), "myriad: serving %s on %s (model %s%s, at most %d connections)\n",
		f.app.name, addr, s.Model, more, s.MaxConns)
}

// notify tells the service manager, where there is one.
func notify(cmd *cobra.Command, state string) {
	if _, err := myriad.Notify(state); err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "myriad: cannot tell the service manager that %s: %v\n", state, err)
	}
}

// handleSignals gives a context that ends at the first signal, and closes the server at
// the second. With TLS, SIGHUP reloads the certificate instead. In a worker process it does
// only that: the first process decides about the rest. ended gives the signals back, waits
// for the goroutine that handles them, and says how many connections were cut off.
func (f *serveFlags) handleSignals(cmd *cobra.Command) (ctx context.Context, ended func() (cut int64)) {
	ctx, drain := context.WithCancel(cmd.Context())
	signals := make(chan os.Signal, 4)
	_, worker := myriad.WorkerProcess()
	if f.tls.pair != nil || !worker && !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	if !worker {
		signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	}
	done, finished := make(chan struct{}), make(chan struct{})
	var cut int64 // the goroutine's until it has finished
	go func() {
		defer close(finished)
		for {
			select {
			case sig := <-signals:
				cut += f.handleSignal(cmd, sig, ctx.Err() != nil, drain)
			case <-done:
				return
			}
		}
	}()
	return ctx, func() int64 {
		signal.Stop(signals)
		close(done)
		<-finished
		drain()
		return cut
	}
}

func (f *serveFlags) handleSignal(cmd *cobra.Command, sig os.Signal, draining bool, drain func()) (cut int64) {
	out := cmd.ErrOrStderr()
	switch hangup := sig == syscall.SIGHUP; {
	case hangup && f.tls.pair != nil:
		f.tls.reload(cmd, sig)
	case !draining:
		signal.Ignore(syscall.SIGPIPE) // the signal may have ended whoever reads this
		again := "once more"
		if hangup {
			again = "SIGTERM"
		}
		fmt.Fprintf(out, "myriad: %v: draining %d connections; %s stops at once\n", sig, f.srv.Stats().Open, again)
		drain()
	case hangup: // a shell and the kernel send one each
	default:
		cut = f.srv.Stats().Open
		fmt.Fprintf(out, "myriad: %v again: stopping at once\n", sig)
		f.srv.Close()
	}
	return cut
}

// serveAdmin starts the admin server and the flight recorder, as far as they are asked for.
// With worker processes their supervisor shows the sum of all, and each of them records
// itself. stop ends both and waits.
func (f *serveFlags) serveAdmin(cmd *cobra.Command) (stop func(), err error) {
	_, worker := myriad.WorkerProcess()
	token := ""
	if !worker {
		if token, err = f.admin.token(cmd.OutOrStdout()); err != nil {
			return nil, err
		}
	}
	var flight *admin.Flight
	stop = func() {}
	if f.flights != "" && worker == (f.srv.Processes > 1) {
		if flight, err = admin.StartFlight(admin.FlightConfig{Source: &f.srv, Dir: f.flights, Lag: f.flightLag}); err != nil {
			return nil, usagef("--flight-dir: %w", err)
		}
		stop = flight.Stop
	}
	if f.admin.addr == "" || worker {
		return stop, nil
	}
	cfg := admin.Config{Source: &f.srv, Flight: flight, Token: token}
	if f.workers.pool != nil {
		if cfg.Gatherer, err = gatherer(metrics.NewServerCollector(&f.srv, nil), metrics.NewPoolCollector(f.workers.pool, nil)); err != nil {
			stop()
			return nil, fmt.Errorf("--admin: %w", err)
		}
	}
	stopAdmin, err := startAdmin(f.admin.addr, cfg, func(addr net.Addr) {
		fmt.Fprintf(cmd.OutOrStdout(), "myriad: the page of this server, metrics, health and profiles on http://%s/\n", addr)
	})
	if err != nil {
		stop()
		return nil, fmt.Errorf("--admin: %w", err)
	}
	stopFlight := stop
	return func() {
		stopAdmin()
		stopFlight()
	}, nil
}
