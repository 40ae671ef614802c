package main

import (
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/lab"
)

func newPlain() *cobra.Command {
	var addr, app string
	cmd := &cobra.Command{
		Use:   "plain",
		Short: "Serve with plain package net, as most people write it: the baseline of every comparison",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if app != lab.Echo && app != lab.Lines {
				return usagef("--app is %q; expected %s or %s", app, lab.Echo, lab.Lines)
			}
			if _, _, err := net.SplitHostPort(addr); err != nil {
				return usagef("--addr is %q; expected HOST:PORT", addr)
			}
			ln, err := new(net.ListenConfig).Listen(cmd.Context(), "tcp", addr)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "myriad: plain net %s on %s\n", app, ln.Addr())
			return lab.Plain(cmd.Context(), ln, app)
		},
	}
	cmd.Flags().StringVar(&addr, "addr", "127.0.0.1:9000", "listen on this `HOST:PORT`; port 0 takes a free one")
	cmd.Flags().StringVar(&app, "app", lab.Echo, "serve this `APP`: echo or lines")
	return cmd
}
