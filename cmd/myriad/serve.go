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
	"time"

	"github.com/myriad-go/myriad"
	"github.com/spf13/cobra"
)

func newServe() *cobra.Command {
	f := &serveFlags{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve one of the example applications under an I/O model",
		Long: "Serve one of the example applications under an I/O model.\n\n" +
			"SIGINT or SIGTERM stops accepting and drains; a second one stops at once. SIGHUP has\n" +
			"the certificate of --tls-cert read again; without TLS it drains, too, unless it is\n" +
			"ignored (nohup): a terminal that is closed sends it.\n\n" +
			"Applications:\n" + describeApps(),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd, f) },
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
func serve(cmd *cobra.Command, f *serveFlags) error {
	srv, err := f.server(cmd)
	if err != nil {
		return err
	}
	if err := f.checkAddresses(); err != nil {
		return err
	}
	defer f.tls.reloadAtHangup(cmd)()
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
	side := &beside{srv: srv, flags: f}
	if err := side.start(cmd); err != nil {
		return err
	}
	defer side.stop()
	srv.Listening = func(addr net.Addr) {
		announce(cmd, f, addr)
		notify(cmd, "READY=1")
	}
	srv.Stopping = func() { notify(cmd, "STOPPING=1") }
	ctx, ended := drainOnSignal(cmd, srv)
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
		return fmt.Errorf("%w; another program listens on %s: end it, or choose another address with --addr", err, srv.Addr)
	case f.srv.Network == "unix" && errors.Is(err, fs.ErrNotExist):
		return usagef("--addr is %q, whose directory is not there; expected the path of a socket", f.srv.Addr)
	case errors.Is(err, myriad.ErrBadConfig):
		return usagef("%s", f.asFlags(err.Error()))
	}
	return err
}

// announce says that the server serves.
func announce(cmd *cobra.Command, f *serveFlags, addr net.Addr) {
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

// another is what ends a drain that a signal has begun.
func another(sig os.Signal) string {
	if sig == syscall.SIGHUP {
		return "SIGTERM"
	}
	return "once more"
}

// drainOnSignal gives a context that ends at the first signal, and closes the
// server at the second. ended gives the signals back and says how many
// connections the second has cut off.
func drainOnSignal(cmd *cobra.Command, srv *myriad.Server) (ctx context.Context, ended func() (cut int64)) {
	if _, ok := myriad.WorkerProcess(); ok {
		return cmd.Context(), func() int64 { return 0 } // the first process decides
	}
	ctx, drain := context.WithCancel(cmd.Context())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if srv.TLSConfig == nil && !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	done, finished := make(chan struct{}), make(chan struct{})
	var cut int64 // the goroutine's until it has finished
	go func() {
		defer close(finished)
		select {
		case sig := <-signals:
			signal.Ignore(syscall.SIGPIPE) // the signal may have ended whoever reads this
			fmt.Fprintf(cmd.ErrOrStderr(), "myriad: %v: draining %d connections; %s stops at once\n", sig, srv.Stats().Open, another(sig))
			drain()
		case <-done:
			return
		}
		for {
			select {
			case sig := <-signals:
				if sig == syscall.SIGHUP {
					continue // a shell and the kernel send one each
				}
				cut = srv.Stats().Open
				fmt.Fprintf(cmd.ErrOrStderr(), "myriad: %v again: stopping at once\n", sig)
				srv.Close()
			case <-done:
			}
			return
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

// reloadAtHangup has the certificate read again at each SIGHUP, until it is ended. With
// worker processes the first one tells of it; they, too, read it when the signal was for
// all of the group, and otherwise when a handshake finds that it has changed.
func (f *serverTLS) reloadAtHangup(cmd *cobra.Command) (end func()) {
	if f.pair == nil {
		return func() {}
	}
	hangups, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(hangups, syscall.SIGHUP)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case sig := <-hangups:
				f.reload(cmd, sig)
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(hangups)
		close(done)
		<-ended
	}
}

func (f *serverTLS) reload(cmd *cobra.Command, sig os.Signal) {
	expires, err := f.pair.Again()
	_, worker := myriad.WorkerProcess()
	switch {
	case worker: // the first process has said it
	case err != nil:
		fmt.Fprintf(cmd.ErrOrStderr(), "myriad: %v: the certificate can't be reloaded, the old one stays in use: %v\n", sig, err)
	default:
		fmt.Fprintf(cmd.ErrOrStderr(), "myriad: %v: certificate %s reloaded, it expires %s\n", sig, f.cert, expires.Format(time.RFC3339))
	}
}
