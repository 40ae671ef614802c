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
	"github.com/myriad-go/myriad/internal/secure/tls13"
	"github.com/myriad-go/myriad/internal/supervisor"
)

// TLS returns the result of the TLS handshake: version, cipher suite, protocol, server name and client certificates. It
// returns nil for a connection without TLS.
func (c *Conn) TLS() *tls.ConnectionState { return layers.TLSStateAfterHandshake(c.core()) }

// StartTLS encrypts a connection that began unencrypted. Several protocols negotiate TLS in this way: SMTP, IMAP and
// LDAP by STARTTLS, PostgreSQL by SSLRequest. The handshake begins after the current handler call has returned. Earlier
// output is sent unencrypted. On an accepted connection, the server is the TLS server; on a dialed connection, it is
// the TLS client. Do not change cfg afterwards. Limits.MaxHandshakes and HandshakeTimeout apply.
//
// After the handshake, the server calls Secured of a SecuredHandler. Before this call, Write fails with ErrBadUse, and
// messages that are sent through a Ref wait until the handshake is complete. If the handshake fails, the server calls
// only Closed, with a *TLSError, ErrHandshakeTimeout or io.EOF.
//
// An attacker may inject unencrypted input after the command that starts TLS (CVE-2011-0411). If unused input remains
// when the current call returns, the server therefore closes the connection with ErrClearInput. A handler must use
// exactly the bytes of the command and return. Lines and Split ensure this.
//
// StartTLS fails with
//   - ErrBadConfig if cfg has no certificate or, for a TLS client, no ServerName
//   - ErrBadUse if the connection already uses or starts TLS, is relayed or detached, or has a file waiting (SendFile)
//   - ErrClosed if the connection is closing
func (c *Conn) StartTLS(cfg *tls.Config) error {
	switch {
	case !c.core().InHandlerCall():
		return ErrOutsideCall
	case cfg == nil:
		return badConfig("StartTLS with a nil tls.Config; expected a configuration")
	case c.core().IsDialled() && cfg.ServerName == "" && !cfg.InsecureSkipVerify:
		return badConfig("StartTLS on a dialed connection: tls.Config.ServerName is empty; expected the name to verify")
	case !c.core().IsDialled() && !hasCertificate(cfg):
		return badConfig("StartTLS: tls.Config has no certificate; expected Certificates, GetCertificate or GetConfigForClient to be set")
	}
	s := c.Server()
	these := layers.Config{TLS: cfg, Gate: s.sharedHandshakeLimiter(), Ciphers: s.compactTLSCiphersOrNil(), DropExporters: s.DropTLSExporters}
	if these.Ciphers != nil && !c.core().IsDialled() {
		// DecryptTicket makes cfg generate its ticket keys when they are due, so that all clones have the same.
		_, _ = cfg.DecryptTicket(nil, tls.ConnectionState{})
		these.TLS = cfg.Clone()
		secure.EnableTakeover(these.TLS)
	}
	return c.core().RequestLayerInsertion(these.NewFirstLayer)
}

func hasCertificate(c *tls.Config) bool {
	return len(c.Certificates) > 0 || c.GetCertificate != nil || c.GetConfigForClient != nil
}

// ReloadCertificate loads a certificate and its key from PEM files, and returns a function for
// tls.Config.GetCertificate. The function is safe for concurrent use. It checks the files during handshakes, at most
// once a second, and loads changed files. If loading fails, the old certificate stays in use, and the error is logged
// once. If log is nil, slog.Default() is used.
func ReloadCertificate(certFile, keyFile string, log *slog.Logger) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	r, err := secure.NewReloader(certFile, keyFile, log)
	if err != nil {
		return nil, fmt.Errorf("myriad: %w", err)
	}
	return r.GetCertificate, nil
}

func checkTLSHasCertificate(field string, c *tls.Config) error {
	if c != nil && !hasCertificate(c) {
		return badConfig("%s.TLSConfig has no certificate; expected Certificates, GetCertificate or GetConfigForClient to be set", field)
	}
	return nil
}

func (s *Server) sharedHandshakeLimiter() *secure.HandshakeLimiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sharedHandshakeLimiterLocked(s.limits)
}

func (s *Server) sharedHandshakeLimiterLocked(l Limits) *secure.HandshakeLimiter {
	if s.handshakeLimiter == nil {
		s.handshakeLimiter = secure.NewHandshakeLimiter(l.MaxHandshakes, max(runtime.GOMAXPROCS(0)/2, 1))
	}
	return s.handshakeLimiter
}

// compactTLSCiphersOrNil returns the shared cipher cache, or nil if Server.DisableCompactTLS is set.
func (s *Server) compactTLSCiphersOrNil() *tls13.CipherCache {
	if s.DisableCompactTLS {
		return nil
	}
	return &s.tlsCiphers
}

// newTicketKeyRingOrNilLocked returns the session ticket keys of a listener. It returns nil if the server must not
// generate such keys; see Server.TLSConfig. In a worker process, all workers have the same keys. The caller must hold
// s.mu.
func (s *Server) newTicketKeyRingOrNilLocked(cfg *tls.Config, listeners []Listener, listenerNumber int) *secure.TicketKeyRing {
	if s.worker != nil {
		return secure.NewDerivedTicketKeyRing(cfg, secure.NewSharedTicketKeys(supervisor.CurrentWorker().SharedPage()), listenerNumber)
	}
	return secure.NewTicketKeyRingIfShareable(cfg, s.ticketKeys[&listeners[listenerNumber]])
}

func (s *Server) configureTLSAndProxyLayersLocked(cfg *engine.Config, l Limits, listeners []Listener) {
	all, some, proxies := make([]layers.Config, len(listeners)), false, false
	s.tickets = make(map[*Listener]*secure.TicketKeyRing)
	for i, at := range listeners {
		if len(at.TrustedProxies) > 0 {
			all[i].IsProxy, some, proxies = newTrustedProxyMatcher(at.TrustedProxies), true, true
		}
		if at.TLSConfig == nil {
			continue
		}
		all[i].TLS, all[i].Gate, some = at.TLSConfig.Clone(), s.sharedHandshakeLimiterLocked(l), true
		if h, ok := handlerAs[ALPNHandler](s.listenerHandler(i)); ok {
			all[i].TLS.NextProtos = h.NextProtos(all[i].TLS.NextProtos)
		}
		if t := s.newTicketKeyRingOrNilLocked(all[i].TLS, listeners, i); t != nil {
			all[i].Tickets, s.tickets[&listeners[i]] = t, t
		}
		all[i].DropExporters = s.DropTLSExporters
		if all[i].Ciphers = s.compactTLSCiphersOrNil(); all[i].Ciphers != nil {
			secure.EnableTakeover(all[i].TLS)
		}
	}
	restorer := &layers.Restorer{Ciphers: &s.tlsCiphers}
	cfg.RestoreLayer = restorer.RestoreLayer
	if some {
		cfg.NewLayer = func(c *engine.Conn) engine.Layer {
			if c.Listener() < 0 {
				return nil // a dialed connection
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
