// Package layers implements the layers between transport and handler: TLS and the header of the PROXY protocol.
package layers

import (
	"crypto/tls"
	"net/netip"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/secure"
	"github.com/myriad-go/myriad/internal/secure/tls13"
)

type Config struct {
	// IsProxy, if set, reports whether connections from the given address begin with a PROXY header.
	IsProxy func(netip.Addr) bool
	// TLS, if set, is the TLS configuration of all connections. Accepted connections are TLS servers, and dialled
	// connections are TLS clients. Gate limits the number of concurrent handshakes.
	TLS  *tls.Config
	Gate *secure.HandshakeLimiter
	// Tickets, if set, contains the keys of TLS session tickets.
	Tickets *secure.TicketKeyRing
	// Ciphers, if set, enables compact TLS connections. A compact TLS connection uses less memory than crypto/tls after
	// the handshake. For a server, TLS must have been prepared with secure.EnableTakeover.
	Ciphers *tls13.CipherCache
	// DropExporters makes compact TLS connections discard the secrets that tls.ConnectionState.ExportKeyingMaterial
	// needs. On these connections, ExportKeyingMaterial then fails.
	DropExporters bool

	last lastPeer
}

// NewFirstLayer returns the first layer of c, or nil if c needs no layer. It implements engine.Config.NewLayer.
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
