package main

import (
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/lab"
)

// plainFlags are the flags of the command plain.
type plainFlags struct {
	addr      string
	app       string
	buffer    int
	heartbeat time.Duration
	admin     string
	tls       serverTLS
}

func newPlain() *cobra.Command {
	var f plainFlags
	cmd := &cobra.Command{
		Use:   "plain",
		Short: "Serve with plain package net, as most people write it: the baseline of every comparison",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return f.serve(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.addr, "addr", "127.0.0.1:9000", "listen on this `HOST:PORT`; port 0 takes a free one")
	flags.StringVar(&f.app, "app", lab.Echo, "serve this `APP`: echo, lines, sink or http")
	flags.IntVar(&f.buffer, "buffer", lab.PlainBuffer, "give each connection a buffer of `BYTES`; messages that are longer take several calls")
	flags.DurationVar(&f.heartbeat, "heartbeat", 0, "send a line as often on each connection, by a ticker and a goroutine for each (default: never)")
	flags.StringVar(&f.admin, "admin", "", "serve Go's metrics and the number of connections over HTTP on this address (default: not at all)")
	f.tls.add(flags)
	return cmd
}

func (f *plainFlags) serve(cmd *cobra.Command) error {
	if f.buffer < lab.MinPlainBuffer || f.buffer > lab.MaxPlainBuffer {
		return usagef("--buffer is %d; expected %d to %d", f.buffer, lab.MinPlainBuffer, lab.MaxPlainBuffer)
	}
	if _, _, err := net.SplitHostPort(f.addr); err != nil {
		return usagef("--addr is %q; expected HOST:PORT", f.addr)
	}
	config, err := f.tls.config()
	if err != nil {
		return err
	}
	o := lab.PlainOptions{App: f.app, Buffer: f.buffer, TLS: config, Heartbeat: f.heartbeat, Admin: f.admin}
	o.AdminListening = func(addr net.Addr) {
		fmt.Fprintf(cmd.OutOrStdout(), "myriad: metrics on http://%s/metrics\n", addr)
	}
	if err := o.Check(); err != nil {
		return usageError{err}
	}
	ln, err := new(net.ListenConfig).Listen(cmd.Context(), "tcp", f.addr)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "myriad: serving %s with plain net on %s\n", f.app, ln.Addr())
	return lab.Plain(cmd.Context(), ln, o)
}
