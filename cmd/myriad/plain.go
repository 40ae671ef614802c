package main

import (
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/lab"
)

func newPlain() *cobra.Command {
	var addr, app string
	var buffer int
	cmd := &cobra.Command{
		Use:   "plain",
		Short: "Serve with plain package net, as most people write it: the baseline of every comparison",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if app != lab.Echo && app != lab.Lines && app != lab.HTTP {
				return usagef("--app is %q; expected %s, %s or %s", app, lab.Echo, lab.Lines, lab.HTTP)
			}
			if _, _, err := net.SplitHostPort(addr); err != nil {
				return usagef("--addr is %q; expected HOST:PORT", addr)
			}
			if buffer < lab.MinPlainBuffer || buffer > lab.MaxPlainBuffer {
				return usagef("--buffer is %d; expected %d to %d", buffer, lab.MinPlainBuffer, lab.MaxPlainBuffer)
			}
			ln, err := new(net.ListenConfig).Listen(cmd.Context(), "tcp", addr)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "myriad: plain net %s on %s\n", app, ln.Addr())
			return lab.Plain(cmd.Context(), ln, app, buffer)
		},
	}
	cmd.Flags().StringVar(&addr, "addr", "127.0.0.1:9000", "listen on this `HOST:PORT`; port 0 takes a free one")
	cmd.Flags().StringVar(&app, "app", lab.Echo, "serve this `APP`: echo, lines or http")
	cmd.Flags().IntVar(&buffer, "buffer", lab.PlainBuffer, "give each connection a buffer of `BYTES`; messages that are longer take several calls")
	return cmd
}
