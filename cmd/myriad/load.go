package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/myriad-go/myriad/load"
)

// loadFlags are the flags that are not a field of load.Config as they are.
type loadFlags struct {
	cfg     load.Config
	message string
	answer  string
	sources []string
	tls     clientFlags
	json    bool
}

func newLoad() *cobra.Command {
	var f loadFlags
	cmd := &cobra.Command{
		Use:   "load [flags] HOST:PORT",
		Short: "Load a server that echoes, check every answer and measure",
		Long: `Load a server that echoes, check every answer and measure.

All connections are opened, then each keeps a number of messages in flight and
sends the next one when an answer is there. Every byte of every answer is
compared with what was sent, or with --answer. With --http it is compared with
the server's answer to one request before the run, but for the value of a Date.

It exits with 1 if nothing could be connected, if answers were wrong or missing,
if connections were lost, or if it was interrupted; the result so far is printed
all the same.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.complete(cmd, args[0]); err != nil {
				return err
			}
			return f.run(cmd)
		},
	}
	flags, cfg := cmd.Flags(), &f.cfg
	flags.SortFlags = false
	flags.IntVarP(&cfg.Connections, "connections", "c", 0, "open `N` connections (default 100)")
	flags.IntVar(&cfg.ConnectRate, "connect-rate", 0, "start `N` connections a second (default as fast as they are taken)")
	flags.DurationVar(&cfg.Duration, "duration", 0, "measure for this long (default 10s)")
	flags.StringVarP(&f.message, "message", "m", "", "send this `TEXT`, as it is; for a server of lines it ends in a newline, as $'ping\\n' in most shells")
	flags.StringVar(&f.answer, "answer", "", "expect this `TEXT` in answer to each message (default: the message)")
	flags.BoolVar(&cfg.Unprompted, "unprompted", false, "the answers come when the server likes, as heartbeats do, and are answered with the next message")
	flags.BoolVar(&cfg.HTTP, "http", false, "send HTTP/1.1 requests: the message, or a GET of \"/\"")
	flags.IntVar(&cfg.Size, "size", 0, "without a message, send lines of `BYTES`, each different (default 64)")
	flags.IntVar(&cfg.Pipeline, "pipeline", 0, "keep `N` messages in flight on each connection (default 1)")
	flags.Int64Var(&cfg.Messages, "messages", 0, "exchange `N` messages on each connection, instead of a duration")
	flags.DurationVar(&cfg.Warmup, "warmup", 0, "run for this long before measuring (default 0s)")
	flags.DurationVar(&cfg.HoldBefore, "hold-before", 0, "leave the connections alone for this long before the traffic (default 0s)")
	flags.DurationVar(&cfg.HoldAfter, "hold-after", 0, "leave the connections alone for this long after the traffic (default 0s)")
	f.tls.add(flags)
	flags.StringVar(&cfg.Model, "model", "", "run on this I/O `MODEL` (default: the best that can run here)")
	flags.IntVar(&cfg.Loops, "loops", 0, "run `N` loops, if the model has them (default 1)")
	flags.StringArrayVar(&f.sources, "src", nil, "connect from this local `ADDRESS` (repeatable; default: chosen by itself)")
	flags.BoolVar(&f.json, "json", false, "write an event a line as JSON to standard output")
	return cmd
}

// complete fills in the rest of the configuration and checks it.
func (f *loadFlags) complete(cmd *cobra.Command, target string) error {
	f.cfg.Target = target
	for _, name := range []string{"connections", "duration", "size", "pipeline", "messages", "loops"} {
		if flag := cmd.Flag(name); flag.Changed && strings.TrimRight(flag.Value.String(), "s") == "0" {
			return usagef("--%s is %s; expected more than 0", name, flag.Value)
		}
	}
	if cmd.Flags().Changed("message") {
		f.cfg.Message = []byte(f.message)
	}
	if cmd.Flags().Changed("answer") {
		f.cfg.Answer = []byte(f.answer)
	}
	for _, text := range f.sources {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return usagef("--src is %q; expected an IP address of this machine", text)
		}
		f.cfg.Sources = append(f.cfg.Sources, addr)
	}
	var err error
	if f.cfg.TLS, err = f.tls.config(cmd); err != nil {
		return err
	}
	if err := f.cfg.Validate(); err != nil {
		return usageError{err}
	}
	return nil
}

// run runs the load and prints what there is to print.
func (f *loadFlags) run(cmd *cobra.Command) error {
	if f.cfg.TLS != nil {
		// Handshakes compute beside the loops.
		spareProcessors(max(f.cfg.Loops, 1), false)
	}
	out := cmd.OutOrStdout()
	var outErr error
	switch {
	case f.json:
		lines := json.NewEncoder(out)
		f.cfg.Observe = func(e load.Event) { outErr = cmp.Or(outErr, lines.Encode(e)) }
	case term.IsTerminal(int(os.Stderr.Fd())):
		f.cfg.Observe = (&progressLine{out: os.Stderr, at: time.Now()}).observe
	}
	result, err := load.Run(cmd.Context(), f.cfg)
	if result == nil {
		return err
	}
	if !f.json {
		outErr = result.WriteText(out)
	}
	if err != nil {
		err = fmt.Errorf("the run ended early: %w", err)
	}
	return cmp.Or(outErr, err, result.Err())
}

// progressLine is a line on a terminal that is written anew each second.
type progressLine struct {
	out      io.Writer
	at       time.Time
	answered int64
}

func (p *progressLine) observe(e load.Event) {
	const erase = "\r\x1b[K"
	switch e.Phase {
	case load.Done:
		fmt.Fprint(p.out, erase)
	case load.Progress:
		now := time.Now()
		rate := float64(e.Snapshot.Answered-p.answered) / now.Sub(p.at).Seconds()
		fmt.Fprintf(p.out, "%s%v, %.0f/s", erase, e.Snapshot, rate)
		p.at, p.answered = now, e.Snapshot.Answered
	}
}
