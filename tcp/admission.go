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

// checkAddressLists says what is wrong with Allow and Deny.
func (s *Server) checkAddressLists() error {
	if err := checkPrefixes("Server.Allow", s.Allow); err != nil {
		return err
	}
	return checkPrefixes("Server.Deny", s.Deny)
}

// checkPrefixes says what is wrong with a list of addresses.
func checkPrefixes(field string, list []netip.Prefix) error {
	if len(list) > maxPrefixes {
		return badConfig("%s has %d prefixes; expected at most %d", field, len(list), maxPrefixes)
	}
	for i, p := range list {
		if !p.IsValid() {
			return badConfig("%s[%d] is %v; expected a prefix such as 10.0.0.0/8", field, i, p)
		}
	}
	return nil
}

// configureAdmission tells the engine who is let in.
func (s *Server) configureAdmission(cfg *engine.Config, l Limits) {
	cfg.Admission = engine.AdmissionRules{
		MaxPerSource: l.MaxConnsPerSource, SourcePrefix: l.SourcePrefix, Rate: l.AcceptRate,
		Allow: s.Allow, Deny: s.Deny,
	}
	if s.Refuse != nil {
		cfg.Refuse = func(peer netip.AddrPort, why error) []byte { return s.Refuse(toNetAddr(peer), why) }
	}
}

// newProxyMatcher says whether an address is that of a proxy. An invalid one, as unix
// sockets have, is this machine's, and is.
func newProxyMatcher(trusted []netip.Prefix) func(netip.Addr) bool {
	set := admission.NewPrefixes(trusted)
	return func(a netip.Addr) bool { return !a.IsValid() || set.Contain(a) }
}

// toNetAddr is an address as package net has it.
func toNetAddr(a netip.AddrPort) net.Addr {
	if !a.IsValid() {
		return &net.UnixAddr{Net: "unix"}
	}
	return net.TCPAddrFromAddrPort(a)
}
