package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/admin"
	"github.com/myriad-go/myriad/tools/metrics"
)

func (f *serverFlags) serveUntilSignal(cmd *cobra.Command, name string) error {
	srv := &f.srv
	f.warnAboutServerLimits(cmd)
	listener, err := f.systemdListenerIfRequested()
	if err != nil {
		return err
	}
	if err := f.setGoMemoryLimitIfRequested(cmd); err != nil {
		return err
	}
	if err := f.workers.createPoolUnlessSupervisor(srv); err != nil {
		return err
	}
	defer f.workers.closePool()
	stop, err := f.startAdminAndFlightIfRequested(cmd)
	if err != nil {
		return err
	}
	defer stop()
	listening := 0
	srv.Listening = func(addr net.Addr) {
		secured := srv.TLSConfig
		if listening > 0 {
			secured = srv.Listeners[listening-1].TLSConfig
		}
		f.raiseGOMAXPROCSAndPrintServing(cmd, name, addr, secured != nil)
		if listening++; listening > len(srv.Listeners) {
			notifyServiceManager(cmd, "READY=1")
		}
	}
	srv.Stopping = func() { notifyServiceManager(cmd, "STOPPING=1") }
	ctx, ended := f.startSignalAndUpgradeHandling(cmd)
	if listener != nil {
		err = srv.Serve(ctx, listener)
	} else {
		err = srv.ListenAndServe(ctx)
	}
	cut := ended()
	switch {
	case cut > 0:
		return fmt.Errorf("stopped before all connections were drained; %d were cut off", cut)
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w; another program or --admin listens on %s: stop the program, or choose another address with --addr", err, srv.Addr)
	case srv.Network == "unix" && errors.Is(err, fs.ErrNotExist):
		return usagef("--addr is %q, whose directory does not exist; expected a path in an existing directory", srv.Addr)
	case errors.Is(err, tcp.ErrBadConfig):
		return usagef("%s", f.replaceFieldsWithFlags(err.Error()))
	}
	return err
}

func (f *serverFlags) raiseGOMAXPROCSAndPrintServing(cmd *cobra.Command, name string, addr net.Addr, secured bool) {
	srv := &f.srv
	s := srv.Stats()
	raiseGOMAXPROCSUnlessSet(s.Loops, f.workers.hasWorkers() || srv.Model == "" || srv.Model == tcp.Auto)
	more := ""
	if s.Loops > 0 {
		more = fmt.Sprintf(", loops %d", s.Loops)
	}
	if s.Processes > 0 {
		more += fmt.Sprintf(", processes %d", s.Processes)
	}
	if secured {
		more += ", TLS"
	}
	fmt.Fprintf(cmd.OutOrStdout(), "myriad: serving %s on %s (model %s%s, at most %d connections)\n",
		name, addr, s.Model, more, s.MaxConns)
}

func notifyServiceManager(cmd *cobra.Command, state string) {
	if _, err := tcp.Notify(state); err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "myriad: cannot notify the service manager of %s: %v\n", state, err)
	}
}

// startSignalAndUpgradeHandling handles signals and upgrade requests on a new goroutine. The context ctx ends when the
// server must drain. The function stopHandling ends the goroutine and waits for a pending upgrade. It returns the
// number of connections that were still open when a repeated signal closed them.
func (f *serverFlags) startSignalAndUpgradeHandling(cmd *cobra.Command) (ctx context.Context, stopHandling func() (cut int64)) {
	ctx, drain := context.WithCancel(cmd.Context())
	signals := make(chan os.Signal, 4)
	_, worker := tcp.WorkerProcess()
	// A worker process handles only SIGHUP. Its supervisor handles all other signals.
	if len(f.reloads) > 0 || !worker && !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	if !worker {
		signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	}
	switch {
	case upgradeSignal != nil && worker: // a signal to the whole process group must not end this process
		signal.Notify(make(chan os.Signal, 1), upgradeSignal)
	case upgradeSignal != nil:
		signal.Notify(signals, upgradeSignal)
	}
	var upgrades sync.WaitGroup
	done, finished := make(chan struct{}), make(chan struct{})
	var cut int64 // owned by the goroutine until it has finished
	go func() {
		defer close(finished)
		for {
			select {
			case sig := <-signals:
				if f.relaysSignals.Load() { // the serving process has received it, too
					continue
				}
				if sig == upgradeSignal {
					upgrades.Go(func() { _, _ = f.upgradeToNewProcess(ctx, cmd, sig.String()) }) // it reports the outcome itself
					continue
				}
				cut += f.reloadDrainOrCloseOnSignal(cmd, sig, ctx.Err() != nil, drain)
			case tell := <-f.upgradeRequests:
				upgrades.Go(func() { tell(f.upgradeToNewProcess(ctx, cmd, "a request of the admin page")) })
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
		upgrades.Wait()
		select {
		case tell := <-f.upgradeRequests:
			tell(tcp.Upgraded{}, tcp.ErrServerClosed)
		default:
		}
		return cut
	}
}

// upgradeToNewProcess upgrades to a new process, which takes over the server and the address of --admin, and prints the
// outcome. If it fails, this process continues to serve.
func (f *serverFlags) upgradeToNewProcess(ctx context.Context, cmd *cobra.Command, cause string) (u tcp.Upgraded, err error) {
	out := cmd.ErrOrStderr()
	if f.upgradeRefusal != "" {
		err = errors.New(f.upgradeRefusal)
		fmt.Fprintf(out, "myriad: %s: %v\n", cause, err)
		return u, err
	}
	if !f.upgrading.CompareAndSwap(false, true) { // stays set if the upgrade succeeds
		err = errors.New("an upgrade is in progress or has already succeeded; wait for this process to exit")
		fmt.Fprintf(out, "myriad: %s: %v\n", cause, err)
		return u, err
	}
	fmt.Fprintf(out, "myriad: %s: upgrading\n", cause)
	if f.adminPage != nil {
		f.adminPage.stop()
	}
	for name, value := range f.successorEnv {
		_ = os.Setenv(name, value) // a valid name does not fail
		defer func() { _ = os.Unsetenv(name) }()
	}
	if u, err = f.srv.Upgrade(ctx); err != nil {
		if f.adminPage != nil {
			if e := f.adminPage.start(); e != nil {
				err = fmt.Errorf("%w, and %w", err, e)
			}
		}
		err = fmt.Errorf("%w; this process continues to serve", err)
		fmt.Fprintf(out, "%v\n", err)
		f.upgrading.Store(false)
		return u, err
	}
	f.relaysSignals.Store(u.Stays)
	fmt.Fprintf(out, "myriad: %v; draining %d\n", u, f.srv.Stats().Open)
	return u, nil
}

// queueOrRefuseUpgrade queues a request for an upgrade. After the upgrade, done is called with the outcome. If another
// request is already queued, queueOrRefuseUpgrade immediately calls done with an error.
func (f *serverFlags) queueOrRefuseUpgrade(done func(tcp.Upgraded, error)) {
	select {
	case f.upgradeRequests <- done:
	default:
		done(tcp.Upgraded{}, errors.New("an upgrade has already been requested; wait for it to finish"))
	}
}

func (f *serverFlags) reloadDrainOrCloseOnSignal(cmd *cobra.Command, sig os.Signal, draining bool, drain func()) (connsCutOff int64) {
	out := cmd.ErrOrStderr()
	switch hangup := sig == syscall.SIGHUP; {
	case hangup && len(f.reloads) > 0:
		for _, reload := range f.reloads {
			told := reload()
			if _, worker := tcp.WorkerProcess(); !worker { // the supervisor reports it
				fmt.Fprintf(out, "myriad: %v: %s\n", sig, told)
			}
		}
	case !draining:
		// The signal may also have ended the program that reads stderr. With Notify, a write to stderr then fails but
		// does not end this process. Ignore is no alternative: during its call, a SIGPIPE would end the process (Go
		// 1.26).
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
		again := "send the signal again"
		switch {
		case hangup:
			again = "send SIGTERM"
		case sig == os.Interrupt:
			again = "press Ctrl-C again"
		}
		fmt.Fprintf(out, "myriad: %v: shutting down; %s to stop at once\n", sig, again)
		drain()
	case hangup: // a closing terminal sends two: one from the shell, one from the kernel
	default:
		connsCutOff = f.srv.Stats().Open
		fmt.Fprintf(out, "myriad: %v again: stopping at once\n", sig)
		f.srv.Close()
	}
	return connsCutOff
}

func (f *serverFlags) startAdminAndFlightIfRequested(cmd *cobra.Command) (stop func(), err error) {
	_, worker := tcp.WorkerProcess()
	token := ""
	if !worker {
		if token, err = f.admin.loadOrGenerateToken(cmd.OutOrStdout()); err != nil {
			return nil, err
		}
	}
	var flight *admin.Flight
	stop = func() {}
	if f.flightDir != "" && worker == (f.srv.Processes > 1) {
		if flight, err = admin.StartFlight(admin.FlightConfig{Source: &f.srv, Dir: f.flightDir, Lag: f.flightLag}); err != nil {
			return nil, usagef("--flight-dir: %w", err)
		}
		stop = flight.Stop
	}
	if f.admin.addr == "" || worker {
		return stop, nil
	}
	cfg := admin.Config{Source: &f.srv, Flight: flight, Token: token, Pages: f.pages}
	if upgradeSignal != nil {
		cfg.Upgrade, f.upgradeRequests = f.queueOrRefuseUpgrade, make(chan func(tcp.Upgraded, error), 1)
	}
	if f.workers.pool != nil {
		f.collectors = append(f.collectors, metrics.NewPoolCollector(f.workers.pool, nil))
	}
	if len(f.collectors) > 0 {
		if cfg.Gatherer, err = newGathererWithProcessMetrics(append(f.collectors, metrics.NewServerCollector(&f.srv, nil))...); err != nil {
			stop()
			return nil, fmt.Errorf("--admin: %w", err)
		}
	}
	page := &adminServer{addr: f.admin.addr, cfg: cfg, out: cmd.OutOrStdout()}
	if err := page.start(); err != nil {
		stop()
		return nil, err
	}
	f.adminPage = page
	stopFlight := stop
	return func() {
		page.stop()
		stopFlight()
	}, nil
}
