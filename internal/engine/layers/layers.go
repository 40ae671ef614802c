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
	// IsProxy, if set, reports whether connections from an address begin with a PROXY header.
	IsProxy func(netip.Addr) bool
	// TLS, if set, encrypts the connections; dialled connections are TLS clients. Gate limits concurrent handshakes.
	TLS  *tls.Config
	Gate *secure.HandshakeLimiter
	// Tickets, if set, contains the keys of TLS session tickets.
	Tickets *secure.TicketKeyRing
	// Ciphers, if set, enables compact TLS connections, which use less memory after the handshake. The TLS
	// configuration of a server must have been prepared with secure.EnableTakeover.
	Ciphers *tls13.CipherCache
	// DropExporters discards the secrets that ExportKeyingMaterial of tls.ConnectionState needs. ExportKeyingMaterial
	// then fails on compact TLS connections.
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
