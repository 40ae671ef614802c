// Package layers has what stands between a connection's transport and its
// handler: the PROXY protocol's header, and TLS above it.
package layers

import (
	"crypto/tls"
	"net/netip"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/secure"
)

// Config says which layers connections have.
type Config struct {
	// Proxied, if set, says which peers begin with a PROXY header.
	Proxied func(netip.Addr) bool
	// TLS, if set, is what connections are encrypted with, and Gate bounds
	// their handshakes. A dialled connection is a client.
	TLS  *tls.Config
	Gate *secure.HandshakeLimiter
	// Tickets, if set, are those of TLS.
	Tickets *secure.TicketKeyRing
}

// First makes a connection's first layer; nil if it has none. It is an
// engine.Config.NewLayer.
func (cfg *Config) First(c *engine.Conn) engine.Layer {
	if cfg.Proxied != nil && !c.Outbound() && cfg.Proxied(c.Peer().Addr()) {
		return &proxy{cfg: cfg}
	}
	return cfg.secured(c)
}

// secured makes the TLS layer; nil if there is none.
func (cfg *Config) secured(c *engine.Conn) engine.Layer {
	if cfg.TLS == nil {
		return nil
	}
	if cfg.Tickets != nil {
		cfg.Tickets.RenewIfDue()
	}
	return newEncryption(cfg, c)
}
