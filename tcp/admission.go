package tcp

import (
	"net"
	"net/netip"

	"github.com/myriad-go/myriad/internal/admission"
	"github.com/myriad-go/myriad/internal/engine"
)

const (
	maxPrefixes     = 1 << 20
	maxSourceWeight = 1_000_000
)

func (s *Server) checkPrefixListsAndSourceWeights() error {
	if err := checkPrefixCountAndValidity("Server.Allow", s.Allow); err != nil {
		return err
	}
	if err := checkPrefixCountAndValidity("Server.Deny", s.Deny); err != nil {
		return err
	}
	if n := len(s.Overload.SourceWeights); n > maxPrefixes {
		return badConfig("Server.Overload.SourceWeights has %d prefixes; expected at most %d", n, maxPrefixes)
	}
	for p, weight := range s.Overload.SourceWeights {
		if !p.IsValid() || weight < 0 || weight > maxSourceWeight {
			return badConfig("Server.Overload.SourceWeights[%v] is %d; expected a prefix such as 10.0.0.0/8, and 0 to %d", p, weight, maxSourceWeight)
		}
	}
	return nil
}

func checkPrefixCountAndValidity(field string, list []netip.Prefix) error {
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

func (s *Server) configureSourceAdmission(cfg *engine.Config, l Limits) {
	cfg.Admission = engine.AdmissionRules{
		MaxPerSource: l.MaxConnsPerSource, SourcePrefix: l.SourcePrefix, Rate: l.AcceptRate,
		Allow: s.Allow, Deny: s.Deny,
	}
	if s.Refuse != nil {
		cfg.RefusalReply = func(peer netip.AddrPort, reason error) []byte { return s.Refuse(toTCPOrUnixAddr(peer), reason) }
	}
}

// newTrustedProxyMatcher returns a function that reports whether an address belongs to a trusted proxy. The function
// also returns true for the zero netip.Addr, which is the address of every connection over a unix socket.
func newTrustedProxyMatcher(trusted []netip.Prefix) func(netip.Addr) bool {
	set := admission.NewPrefixes(trusted)
	return func(a netip.Addr) bool { return !a.IsValid() || set.Contains(a) }
}

func toTCPOrUnixAddr(a netip.AddrPort) net.Addr {
	if !a.IsValid() {
		return &net.UnixAddr{Net: "unix"}
	}
	return net.TCPAddrFromAddrPort(a)
}
