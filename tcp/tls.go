package tcp

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/layers"
	"github.com/myriad-go/myriad/internal/secure"
)

// TLS is what the handshake has agreed on: version, cipher, protocol, server
// name, client certificates. It is nil for a connection without TLS.
func (c *Conn) TLS() *tls.ConnectionState { return layers.TLSState(c.core()) }

// StartTLS encrypts a connection that is in clear, for protocols in which that is agreed
// on first (STARTTLS of SMTP, IMAP, LDAP, PostgreSQL's SSLRequest): the handshake begins
// when the call at hand has returned, and what was written before goes out in clear. A
// connection that was accepted is the server, one that was dialled the client. cfg must
// not be changed any more. Limits.MaxHandshakes and HandshakeTimeout hold.
//
// Secured of a SecuredHandler is called when the handshake is over; until then the handler
// is not called, but for Closed if it fails, with a *TLSError, ErrHandshakeTimeout, or io.EOF.
// Write fails with ErrBadUse until then. What Refs send meanwhile waits, and goes out
// encrypted; what Ref.Do is to call waits, too.
//
// Input in clear that has come behind the command by the time the call returns is
// refused, as nobody knows who has put it there (CVE-2011-0411): a handler that leaves
// some unused has its connection closed with ErrClearInput. It returns right behind the
// command, and uses no more. A Lines or Split handler does: it stops at this call.
//
// It fails with ErrBadConfig where cfg has no certificate, or for a client no ServerName,
// with ErrBadUse where the connection has TLS or gets it, is relayed or given up, or a file
// waits to be sent (SendFile), and with ErrClosed when it is closing.
func (c *Conn) StartTLS(cfg *tls.Config) error {
	switch {
	case !c.core().InHandlerCall():
		return ErrOutsideCall
	case cfg == nil:
		return badConfig("StartTLS with a nil tls.Config; expected one")
	case c.core().IsDialled() && cfg.ServerName == "" && !cfg.InsecureSkipVerify:
		return badConfig("StartTLS of a connection that was dialled: tls.Config.ServerName is empty; expected whom to verify")
	case !c.core().IsDialled() && !certified(cfg):
		return badConfig("StartTLS: tls.Config has no certificate; expected Certificates, GetCertificate or GetConfigForClient to be set")
	}
	these := layers.Config{TLS: cfg, Gate: c.Server().handshakes()}
	return c.core().InsertLayer(these.NewFirstLayer)
}

// certified says whether a server can show a certificate.
func certified(c *tls.Config) bool {
	return len(c.Certificates) > 0 || c.GetCertificate != nil || c.GetConfigForClient != nil
}

// ReloadCertificate reads a certificate and its key, both in PEM form, for
// tls.Config.GetCertificate. When a handshake asks for it, the files are read again, at
// most once a second: so a certificate can be renewed while the server runs. A pair that
// can't be loaded leaves the old one in use and is logged once; log is slog.Default() if it
// is nil. What it returns is safe for concurrent use.
func ReloadCertificate(certFile, keyFile string, log *slog.Logger) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	r, err := secure.Reload(certFile, keyFile, log)
	if err != nil {
		return nil, fmt.Errorf("myriad: %w", err)
	}
	return r.GetCertificate, nil
}

// checkTLS says what is wrong with a TLSConfig.
func checkTLS(of string, c *tls.Config) error {
	if c != nil && !certified(c) {
		return badConfig("%s.TLSConfig has no certificate; expected Certificates, GetCertificate or GetConfigForClient to be set", of)
	}
	return nil
}

// handshakes bounds the handshakes of all connections.
func (s *Server) handshakes() *secure.Gate {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.handshakesLocked(s.limits)
}

func (s *Server) handshakesLocked(l Limits) *secure.Gate {
	if s.gate == nil {
		s.gate = secure.NewGate(l.MaxHandshakes, max(runtime.GOMAXPROCS(0)/2, 1))
	}
	return s.gate
}

// addLayers tells the engine what stands between connections and the handler, by the
// listener that they have come by.
func (s *Server) addLayers(cfg *engine.Config, l Limits, where []Listener) {
	all, some, proxies := make([]layers.Config, len(where)), false, false
	s.tickets = make(map[*Listener]*secure.Tickets)
	for i, at := range where {
		if len(at.TrustedProxies) > 0 {
			all[i].IsProxy, some, proxies = proxied(at.TrustedProxies), true, true
		}
		if at.TLSConfig == nil {
			continue
		}
		all[i].TLS, all[i].Gate, some = at.TLSConfig.Clone(), s.handshakesLocked(l), true
		if h, ok := extension[ALPNHandler](s.Handler); ok {
			all[i].TLS.NextProtos = h.NextProtos(all[i].TLS.NextProtos)
		}
		if t := secure.NewTickets(all[i].TLS, s.ticketKeys[&where[i]]); t != nil {
			all[i].Tickets, s.tickets[&where[i]] = t, t
		}
	}
	if some {
		cfg.NewLayer = func(c *engine.Conn) engine.Layer {
			if c.Listener() < 0 {
				return nil // it was dialled
			}
			return all[c.Listener()].NewFirstLayer(c)
		}
	}
	if proxies {
		cfg.IsProxy = func(listener int, a netip.Addr) bool {
			is := all[listener].IsProxy
			return is != nil && is(a)
		}
	}
}
