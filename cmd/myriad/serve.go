package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad"
)

func newServe() *cobra.Command {
	var app appFlags
	srv := &myriad.Server{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve one of the example applications under an I/O model",
		Long: "Serve one of the example applications under an I/O model.\n\n" +
			"SIGINT or SIGTERM stops accepting and drains; a second one stops at once.\n\n" +
			"Applications:\n" + describeApps(),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd, srv, app) },
	}
	flags := cmd.Flags()
	flags.StringVar(&srv.Addr, "addr", "127.0.0.1:9000", "address to listen on; port 0 takes a free one")
	flags.StringVar(&srv.Model, "model", "", "I/O model: auto, "+strings.Join(myriad.Models(), ", ")+" (default auto: the last of these, with workers for slow handlers)")
	flags.IntVar(&srv.Loops, "loops", 0, "event loops, for a model that has them (default: half of the processors, more if --max-conns takes more)")
	app.add(cmd)
	flags.DurationVar(&srv.Spin, "spin", 0, "have a loop without work look for some so long before it blocks; costs a CPU for each loop (default: not at all)")
	flags.IntVar(&srv.Workers, "workers", 0, "run the application on so many workers, off the event loops (default: on the loops)")
	flags.IntVar(&srv.Processes, "processes", 0, "worker processes, each with --loops event loops, 1 by default (default: none, this process serves)")
	flags.IntVar(&srv.Limits.MaxConns, "max-conns", 0, "most connections at a time; above the limit of descriptors event loops get a table each (default: what that limit allows)")
	flags.IntVar(&srv.Limits.MaxMessage, "max-message", 0, "most bytes of a message (default 65536)")
	flags.DurationVar(&srv.Limits.ShutdownTimeout, "drain", 0, "most time to drain (default 30s)")
	return cmd
}

// spareProcessors sees to it that Go has enough processors beside those that
// loops hold, also while they wait for a moment. With none to spare the scheduler
// takes the processor of such a loop and has to give it back: at one connection
// that was a quarter of the server's work, 37 µs a message against 28, in
// interleaved runs. Where workers may call the handlers, each CPU is to have one
// for them: with two for two CPUs and a loop, handlers that compute got 1.4 of
// the CPUs.
func spareProcessors(loops int, workers bool) {
	need := loops + 1
	if workers {
		need = loops + runtime.NumCPU()
	}
	if os.Getenv("GOMAXPROCS") == "" && loops > 0 && need > runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(need)
	}
}

// asFlags names flags instead of the fields that they set.
var asFlags = strings.NewReplacer("Server.Addr", "--addr", "Server.Model", "--model", "Server.Loops", "--loops",
	"Server.Workers", "--workers", "Server.Spin", "--spin", "Server.Processes", "--processes", "Limits.MaxConns", "--max-conns",
	"Limits.MaxMessage", "--max-message", "Limits.ShutdownTimeout", "--drain")

// serve runs the server until a signal has ended it.
func serve(cmd *cobra.Command, srv *myriad.Server, app appFlags) error {
	handler, err := app.handler(cmd)
	if err != nil {
		return err
	}
	srv.Handler = handler
	srv.Listening = func(addr net.Addr) {
		s := srv.Stats()
		spareProcessors(s.Loops, srv.Workers > 0 || srv.Model == "" || srv.Model == myriad.Auto)
		loops := ""
		if s.Loops > 0 {
			loops = fmt.Sprintf(", loops %d", s.Loops)
		}
		if s.Processes > 0 {
			loops += fmt.Sprintf(", processes %d", s.Processes)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "myriad: serving %s on %s (model %s%s, at most %d connections)\n",
			app.name, addr, s.Model, loops, s.MaxConns)
	}
	ctx, ended := drainOnSignal(cmd, srv)
	err = srv.ListenAndServe(ctx)
	cut := ended()
	switch {
	case cut > 0:
		return fmt.Errorf("stopped at once; %d connections were closed before they had finished", cut)
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w; another program listens on %s: end it, or choose another address with --addr", err, srv.Addr)
	case errors.Is(err, myriad.ErrBadConfig):
		return usagef("%s", asFlags.Replace(err.Error()))
	}
	return err
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
	done, finished := make(chan struct{}), make(chan struct{})
	var cut int64 // the goroutine's until it has finished
	go func() {
		defer close(finished)
		select {
		case sig := <-signals:
			fmt.Fprintf(cmd.ErrOrStderr(), "myriad: %v: draining %d connections; once more stops at once\n", sig, srv.Stats().Open)
			drain()
		case <-done:
			return
		}
		select {
		case sig := <-signals:
			cut = srv.Stats().Open
			fmt.Fprintf(cmd.ErrOrStderr(), "myriad: %v again: stopping at once\n", sig)
			srv.Close()
		case <-done:
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
