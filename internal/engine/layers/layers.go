// Package layers has the layers between a connection's transport and its handler: the PROXY
// protocol's header, and TLS.
package layers

import (
	"crypto/tls"
	"net/netip"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/secure"
)

// Config configures the layers of connections.
type Config struct {
	// IsProxy, if set, reports whether a peer's connections begin with a PROXY header.
	IsProxy func(netip.Addr) bool
	// TLS, if set, encrypts connections; dialled ones are clients. Gate limits concurrent
	// handshakes.
	TLS  *tls.Config
	Gate *secure.HandshakeLimiter
	// Tickets, if set, has the session tickets of TLS.
	Tickets *secure.TicketKeyRing
}

// NewFirstLayer returns a connection's first layer, nil if it has none; see engine.Config.NewLayer.
func (cfg *Config) NewFirstLayer(c *engine.Conn) engine.Layer {
	if cfg.IsProxy != nil && !c.IsDialled() && cfg.IsProxy(c.Peer().Addr()) {
		return &proxyHeaderLayer{cfg: cfg}
	}
	return cfg.newTLSLayerIfConfigured(c)
}

func (cfg *Config) newTLSLayerIfConfigured(c *engine.Conn) engine.Layer {
	if cfg.TLS == nil {
		return nil
	}
	if cfg.Tickets != nil {
		cfg.Tickets.RenewIfDue()
	}
	return newTLSLayer(cfg, c)
}
