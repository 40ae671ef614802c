package myriad

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"runtime"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/layers"
	"github.com/myriad-go/myriad/internal/secure"
)

// TLS is what the handshake has agreed on: version, cipher, protocol, server
// name, client certificates. It is nil for a connection without TLS.
func (c *Conn) TLS() *tls.ConnectionState { return layers.State(c.core()) }

// ReloadCertificate reads a certificate and its key, both in PEM form, for
// tls.Config.GetCertificate. When a handshake asks for it, the files are looked at
// again, at most once a second, and read when they have changed: so a certificate
// can be renewed while the server runs. A pair that can't be read leaves the old
// one in use and is logged; log is slog.Default() if it is nil. What it returns is
// safe for concurrent use.
func ReloadCertificate(certFile, keyFile string, log *slog.Logger) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if log == nil {
		log = slog.Default()
	}
	r, err := secure.Reload(certFile, keyFile, log)
	if err != nil {
		return nil, fmt.Errorf("myriad: %w", err)
	}
	return r.GetCertificate, nil
}

// checkTLS says what is wrong with TLSConfig.
func (s *Server) checkTLS() error {
	if c := s.TLSConfig; c != nil && len(c.Certificates) == 0 && c.GetCertificate == nil && c.GetConfigForClient == nil {
		return badConfig("Server.TLSConfig has no certificate; expected Certificates, GetCertificate or GetConfigForClient to be set")
	}
	return nil
}

// addLayers tells the engine what stands between connections and the handler.
func (s *Server) addLayers(cfg *engine.Config, l Limits) {
	if s.TLSConfig == nil && cfg.Proxied == nil {
		return
	}
	these := &layers.Config{Proxied: cfg.Proxied}
	if s.TLSConfig != nil {
		s.gate = secure.NewGate(l.MaxHandshakes, max(runtime.GOMAXPROCS(0)/2, 1))
		these.TLS, these.Gate = s.TLSConfig.Clone(), s.gate
	}
	cfg.NewLayer = these.First
}
