package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/tools/internal/baseline"
	"github.com/myriad-go/myriad/tools/internal/lab/app"
)

type plainServerFlags struct {
	addr      string
	app       string
	buffer    int
	heartbeat time.Duration
	beatsBy   string
	deadline  time.Duration
	admin     string
	flush     string
	design    string
	loops     int
	processes int
	files     string
	worker    bool
	tls       serverTLSFlags
}

func newPlainCommand() *cobra.Command {
	var f plainServerFlags
	cmd := &cobra.Command{
		Use:   "plain",
		Short: "Serve with plain package net: the baseline of every comparison",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return f.validateAndServePlain(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.addr, "addr", "127.0.0.1:9000", "listen on this `HOST:PORT`; port 0 selects a free port")
	flags.StringVar(&f.app, "app", app.Echo, "serve this `APP`: echo, lines, wait, pow, sha, sink, http or web")
	flags.IntVar(&f.buffer, "buffer", baseline.DefaultBuffer, "buffer size of each connection in `BYTES`; longer messages need several reads")
	flags.DurationVar(&f.heartbeat, "heartbeat", 0, "send the heartbeat line \"ping\" at this interval, as --heartbeat-by says (default off)")
	flags.StringVar(&f.beatsBy, "heartbeat-by", baseline.HeartbeatTickers, "send heartbeats by tickers (one per connection), batches (64 tickers), or heap (one goroutine)")
	flags.DurationVar(&f.deadline, "deadline", 0, "set a deadline this far ahead before each read, for reads and writes (default none)")
	flags.StringVar(&f.admin, "admin", "", "serve Go's metrics and the number of connections over HTTP on this address (default off)")
	flags.StringVar(&f.flush, "flush", baseline.FlushEach, "flush `WHEN`: each (after each answer) or tenth (after every tenth; up to nine answers stay unsent)")
	flags.StringVar(&f.design, "design", baseline.PerConn, "goroutine (one per connection), or a published design (Linux): epoll (one loop), epolls, prefork, or reactor (with workers)")
	flags.IntVar(&f.loops, "loops", runtime.NumCPU(), "epoll loops of --design epolls, each with its own listener on the port")
	flags.IntVar(&f.processes, "processes", 0, "run `N` processes of the design, each with its own listener on the port (default 1, or one per CPU with --design prefork)")
	flags.StringVar(&f.files, "files", ".", "serve the files in this `DIR` at /static/ of the app web")
	flags.BoolVar(&f.worker, "worker", false, "run as one of several processes")
	flags.MarkHidden("worker") // fails only for an unknown flag
	f.tls.addFlags(flags)
	return cmd
}

func (f *plainServerFlags) validateAndServePlain(cmd *cobra.Command) error {
	if f.buffer < baseline.MinBuffer || f.buffer > baseline.MaxBuffer {
		return usagef("--buffer is %d; expected %d to %d", f.buffer, baseline.MinBuffer, baseline.MaxBuffer)
	}
	if err := validateHostPort("addr", f.addr); err != nil {
		return err
	}
	if f.loops < 1 || f.loops > baseline.MaxLoops {
		return usagef("--loops is %d; expected 1 to %d", f.loops, baseline.MaxLoops)
	}
	if f.admin != "" {
		if err := validateHostPort("admin", f.admin); err != nil {
			return err
		}
	}
	config, err := f.tls.newReloadingTLSConfigOrNil()
	if err != nil {
		return err
	}
	o := baseline.Options{App: f.app, Buffer: f.buffer, Flush: f.flush, Design: f.design, Loops: f.loops, TLS: config, Heartbeat: f.heartbeat, HeartbeatBy: f.beatsBy, Deadline: f.deadline, Admin: f.admin, Files: f.files}
	o.AdminListening = func(addr net.Addr) {
		fmt.Fprintf(cmd.OutOrStdout(), "myriad: metrics on http://%s/metrics\n", addr)
	}
	if f.design == baseline.Prefork || f.processes > 1 {
		o.Design = baseline.Prefork
		if o.Prefork, err = f.newPreforkOptions(); err != nil {
			return err
		}
	}
	if err := o.Validate(); err != nil {
		return usageError{err}
	}
	ln, err := f.inheritOrOpenListener(cmd.Context(), o)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "myriad: serving %s with plain net on %s\n", f.app, ln.Addr())
	return baseline.Serve(cmd.Context(), ln, o)
}

// inheritOrOpenListener opens a listener. If this process is a prefork worker, it instead returns the listener that the
// process has inherited.
func (f *plainServerFlags) inheritOrOpenListener(ctx context.Context, o baseline.Options) (net.Listener, error) {
	if f.worker {
		return baseline.InheritedListener()
	}
	return o.ListenForDesign(ctx, f.addr)
}

func (f *plainServerFlags) newPreforkOptions() (*baseline.PreforkOptions, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	o := &baseline.PreforkOptions{Processes: f.processes}
	design := f.design
	if design == baseline.Prefork {
		o.Processes, design = max(f.processes, runtime.NumCPU()), baseline.OneEpoll
	}
	o.Command = []string{self, "plain", "--worker", "--design", design, "--loops", strconv.Itoa(f.loops), "--app", f.app, "--buffer", strconv.Itoa(f.buffer)}
	return o, nil
}
