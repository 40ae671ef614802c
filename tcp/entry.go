package tcp

import (
	"net"
	"net/netip"

	"github.com/myriad-go/myriad/internal/admission"
	"github.com/myriad-go/myriad/internal/engine"
)

// This file is who is let in.

// maxPrefixes bounds Server.Allow, Deny and TrustedProxies.
const maxPrefixes = 1 << 20

// checkLists says what is wrong with Allow and Deny.
func (s *Server) checkLists() error {
	if err := checkPrefixes("Server.Allow", s.Allow); err != nil {
		return err
	}
	return checkPrefixes("Server.Deny", s.Deny)
}

// checkPrefixes says what is wrong with a list of addresses.
func checkPrefixes(name string, list []netip.Prefix) error {
	if len(list) > maxPrefixes {
		return badConfig("%s has %d prefixes; expected at most %d", name, len(list), maxPrefixes)
	}
	for i, p := range list {
		if !p.IsValid() {
			return badConfig("%s[%d] is %v; expected a prefix such as 10.0.0.0/8", name, i, p)
		}
	}
	return nil
}

// addEntry tells the engine who is let in.
func (s *Server) addEntry(cfg *engine.Config, l Limits) {
	cfg.Admission = engine.AdmissionRules{
		MaxPerSource: l.MaxConnsPerSource, SourcePrefix: l.SourcePrefix, Rate: l.AcceptRate,
		Allow: s.Allow, Deny: s.Deny,
	}
	if s.Refuse != nil {
		cfg.RefusalReply = func(peer netip.AddrPort, why error) []byte { return s.Refuse(netAddr(peer), why) }
	}
}

// proxied says whether an address is that of a proxy. An invalid one, as unix
// sockets have, is this machine's, and is.
func proxied(trusted []netip.Prefix) func(netip.Addr) bool {
	set := admission.NewPrefixes(trusted)
	return func(a netip.Addr) bool { return !a.IsValid() || set.Contain(a) }
}

// netAddr is an address as package net has it.
func netAddr(a netip.AddrPort) net.Addr {
	if !a.IsValid() {
		return &net.UnixAddr{Net: "unix"}
	}
	return net.TCPAddrFromAddrPort(a)
}
