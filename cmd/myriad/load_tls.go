package main

import (
	"crypto/tls"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// clientFlags say how load encrypts.
type clientFlags struct {
	on, insecure bool
	ca, name     string
}

func (f *clientFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.on, "tls", false, "encrypt with TLS; a connection is established when its handshake is over")
	flags.StringVar(&f.ca, "tls-ca", "", "trust the certificates in this PEM `FILE` (default: those that the system trusts)")
	flags.BoolVar(&f.insecure, "tls-insecure", false, "take any certificate")
	flags.StringVar(&f.name, "tls-server-name", "", "expect a certificate for this `NAME`, and ask for it (default: the host)")
}

// config is what the flags ask for, nil without --tls.
func (f *clientFlags) config(cmd *cobra.Command) (*tls.Config, error) {
	if !f.on {
		for _, name := range []string{"tls-ca", "tls-insecure", "tls-server-name"} {
			if cmd.Flags().Changed(name) {
				return nil, usagef("--%s is given without --tls; expected both", name)
			}
		}
		return nil, nil
	}
	if f.insecure && f.ca != "" {
		return nil, usagef("--tls-insecure and --tls-ca are given; expected one of the two")
	}
	cfg := &tls.Config{ServerName: f.name, InsecureSkipVerify: f.insecure}
	if f.ca == "" {
		return cfg, nil
	}
	var err error
	cfg.RootCAs, err = authorities(f.ca)
	return cfg, err
}
