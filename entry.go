package myriad

import (
	"net"
	"net/netip"

	"github.com/myriad-go/myriad/internal/door"
	"github.com/myriad-go/myriad/internal/engine"
)

// This file is who is let in.

// maxPrefixes bounds Server.Allow, Deny and TrustedProxies.
const maxPrefixes = 1 << 20

// checkPrefixes says what is wrong with lists of addresses.
func (s *Server) checkPrefixes() error {
	lists := []struct {
		name string
		list []netip.Prefix
	}{{"Allow", s.Allow}, {"Deny", s.Deny}, {"TrustedProxies", s.TrustedProxies}}
	for _, l := range lists {
		if len(l.list) > maxPrefixes {
			return badConfig("Server.%s has %d prefixes; expected at most %d", l.name, len(l.list), maxPrefixes)
		}
		for i, p := range l.list {
			if !p.IsValid() {
				return badConfig("Server.%s[%d] is %v; expected a prefix such as 10.0.0.0/8", l.name, i, p)
			}
		}
	}
	return nil
}

// addEntry tells the engine who is let in.
func (s *Server) addEntry(cfg *engine.Config, l Limits) {
	cfg.Door = engine.DoorRules{
		MaxPerSource: l.MaxConnsPerSource, SourcePrefix: l.SourcePrefix, Rate: l.AcceptRate,
		Allow: s.Allow, Deny: s.Deny,
	}
	if s.Refuse != nil {
		cfg.Refuse = func(peer netip.AddrPort, why error) []byte { return s.Refuse(netAddr(peer), why) }
	}
	if len(s.TrustedProxies) > 0 {
		cfg.Proxied = proxied(s.TrustedProxies)
	}
}

// proxied says whether an address is that of a proxy. An invalid one, as unix
// sockets have, is this machine's, and is.
func proxied(trusted []netip.Prefix) func(netip.Addr) bool {
	set := door.NewPrefixes(trusted)
	return func(a netip.Addr) bool { return !a.IsValid() || set.Contain(a) }
}

// netAddr is an address as package net has it.
func netAddr(a netip.AddrPort) net.Addr {
	if !a.IsValid() {
		return &net.UnixAddr{Net: "unix"}
	}
	return net.TCPAddrFromAddrPort(a)
}
