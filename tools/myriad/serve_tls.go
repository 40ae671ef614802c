package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/internal/secure"
)

type serverTLSFlags struct {
	cert, key, clientCA string

	pair *secure.Reloader // of cert and key, nil without them
}

func (f *serverTLSFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.cert, "tls-cert", "", "encrypt with TLS: PEM file with the certificate chain; reloaded when it changes")
	flags.StringVar(&f.key, "tls-key", "", "file with the private key of --tls-cert")
	flags.StringVar(&f.clientCA, "tls-client-ca", "", "require client certificates signed by a CA in this file")
}

// newReloadingTLSConfigOrNil returns the TLS configuration for --tls-cert and --tls-key, or nil if neither flag is
// given. It sets f.pair, which reloads the certificate when the files change.
func (f *serverTLSFlags) newReloadingTLSConfigOrNil() (*tls.Config, error) {
	if f.cert == "" && f.key == "" {
		if f.clientCA != "" {
			return nil, usagef("--tls-client-ca is given without a certificate; expected --tls-cert and --tls-key too")
		}
		return nil, nil
	}
	if f.cert == "" || f.key == "" {
		return nil, usagef("only one of --tls-cert and --tls-key is given; expected both")
	}
	var err error
	if f.pair, err = secure.NewReloader(f.cert, f.key, slog.Default()); err != nil {
		return nil, usageError{err}
	}
	cfg := &tls.Config{GetCertificate: f.pair.GetCertificate}
	if f.clientCA != "" {
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
		if cfg.ClientCAs, err = readCertPool(f.clientCA); err != nil {
			return nil, err
		}
	}
	return cfg, nil
}

func readCertPool(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, usageError{err}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, usagef("no certificate in %s; expected PEM blocks of type CERTIFICATE", file)
	}
	return pool, nil
}

// reloadCertificate reads the certificate again, even if its file has not changed, and returns the outcome as text.
func (f *serverTLSFlags) reloadCertificate() (resultText string) {
	expires, err := f.pair.ReloadNow()
	if err != nil {
		return fmt.Sprintf("cannot reload the certificate; the old one remains in use: %v", err)
	}
	return fmt.Sprintf("certificate %s reloaded; it expires at %s", f.cert, expires.Format(time.RFC3339))
}
