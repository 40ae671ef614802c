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
	// IsProxy, if set, says which peers begin with a PROXY header.
	IsProxy func(netip.Addr) bool
	// TLS, if set, is what connections are encrypted with, and Gate bounds
	// their handshakes. A dialled connection is a client.
	TLS  *tls.Config
	Gate *secure.Gate
	// Tickets, if set, are those of TLS.
	Tickets *secure.Tickets
}

// NewFirstLayer makes a connection's first layer; nil if it has none. It is an
// engine.Config.NewLayer.
func (cfg *Config) NewFirstLayer(c *engine.Conn) engine.Layer {
	if cfg.IsProxy != nil && !c.IsDialled() && cfg.IsProxy(c.Peer().Addr()) {
		return &proxyHeaderLayer{cfg: cfg}
	}
	return cfg.newTLSLayerIfConfigured(c)
}

// newTLSLayerIfConfigured makes the TLS layer; nil if there is none.
func (cfg *Config) newTLSLayerIfConfigured(c *engine.Conn) engine.Layer {
	if cfg.TLS == nil {
		return nil
	}
	if cfg.Tickets != nil {
		cfg.Tickets.Renew()
	}
	return newTLSLayer(cfg, c)
}
