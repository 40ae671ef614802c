package agents

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/myriad-go/myriad/tools/doctor"
	"github.com/myriad-go/myriad/tools/internal/quantity"
	"github.com/myriad-go/myriad/tools/load"
)

const (
	unixPrefix = "unix:"
	// MaxAllowed is the maximum length of Agent.Allow.
	MaxAllowed = 1024
)

// AllowedTarget is a network or a unix socket to which an agent may connect.
type AllowedTarget struct {
	network netip.Prefix
	path    string
}

// ParseAllowedNetworkOrPath parses an IP address, a network such as 10.0.0.0/8, or "unix:PATH".
func ParseAllowedNetworkOrPath(text string) (AllowedTarget, error) {
	if path, ok := strings.CutPrefix(text, unixPrefix); ok && path != "" {
		return AllowedTarget{path: path}, nil
	}
	if addr, err := netip.ParseAddr(text); err == nil {
		return AllowedTarget{network: netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen())}, nil
	}
	network, err := netip.ParsePrefix(text)
	if err != nil {
		return AllowedTarget{}, quantity.Error("an address, a network such as 10.0.0.0/8, or unix:PATH")
	}
	return AllowedTarget{network: network}, nil
}

// resolveAndCheckAllowed resolves targets to addresses. It returns an error unless Allow permits all addresses of every
// target. addrs contains one address per TCP target, and none for unix sockets.
func (a *Agent) resolveAndCheckAllowed(ctx context.Context, targets []string) (addrs []netip.AddrPort, err error) {
	for _, target := range targets {
		if path, ok := strings.CutPrefix(target, unixPrefix); ok {
			if !slices.ContainsFunc(a.Allow, func(w AllowedTarget) bool { return w.path == path }) {
				return nil, fmt.Errorf("target %s is not allowed on this machine; start the agent with --allow for it", target)
			}
			continue
		}
		host, service, err := net.SplitHostPort(target)
		if err != nil {
			return nil, fmt.Errorf("target %q: %w", target, err)
		}
		port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
		if err != nil {
			return nil, fmt.Errorf("target %q: %w", target, err)
		}
		if host == "" {
			host = "127.0.0.1"
		}
		found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			return nil, fmt.Errorf("target %q: %w", target, err)
		}
		for i := range found {
			found[i] = found[i].Unmap()
			if !slices.ContainsFunc(a.Allow, func(w AllowedTarget) bool { return w.network.Contains(found[i].WithZone("")) }) && len(a.Allow) > 0 {
				return nil, fmt.Errorf("target %s is not allowed on this machine; start the agent with --allow for it", target)
			}
		}
		slices.SortStableFunc(found, func(x, y netip.Addr) int { return x.BitLen() - y.BitLen() }) // IPv4 first, as in package load
		addrs = append(addrs, netip.AddrPortFrom(found[0], uint16(port)))
	}
	return addrs, nil
}

func (a *Agent) examineMachineForCall(ctx context.Context, c call) agentInfo {
	h := a.newAgentInfo()
	addrs, err := a.resolveAndCheckAllowed(ctx, c.Targets)
	if err != nil {
		h.Refuses = err.Error()
		return h
	}
	h.Most = a.MaxConnections
	facts, err := doctor.Read(0)
	if err != nil || len(addrs) == 0 {
		return h // without an assessment, there are no limits
	}
	report, err := doctor.Examine(facts, doctor.Plan{
		Connections: max(c.Connections, 1), Side: doctor.Client, Model: c.Model, Sources: a.Sources, Targets: addrs, Closing: c.Closing,
	})
	switch {
	case err != nil:
		h.Refuses = strings.TrimPrefix(err.Error(), "doctor: ")
	case report.Holds == 0:
		h.Refuses = "its machine cannot hold any connection: " + report.First
	case report.Holds != doctor.Unlimited:
		h.Holds, h.Wall = report.Holds, report.First
	}
	return h
}

func (a *Agent) parseAndValidatePlan(ctx context.Context, p plan) (cfg load.Config, err error) {
	if err := rejectKeysNamingLocalResources(p.Config); err != nil {
		return cfg, err
	}
	if err := json.Unmarshal(p.Config, &cfg); err != nil {
		return cfg, err
	}
	if a.MaxConnections > 0 && cfg.Total() > a.MaxConnections {
		return cfg, fmt.Errorf("%d connections for this agent; expected at most %d, its --max-connections", cfg.Total(), a.MaxConnections)
	}
	if _, err := a.resolveAndCheckAllowed(ctx, append([]string{cfg.Target}, cfg.Also...)); err != nil {
		return cfg, err
	}
	if len(p.CA) > 0 && cfg.TLS != nil {
		cfg.TLS.Config = &tls.Config{RootCAs: x509.NewCertPool()}
		if !cfg.TLS.Config.RootCAs.AppendCertsFromPEM(p.CA) {
			return cfg, errors.New("--tls-ca contains no certificates; expected a PEM file")
		}
	}
	cfg.Sources = a.Sources
	return cfg, cfg.Validate()
}

func rejectKeysNamingLocalResources(configJSON []byte) error {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(configJSON, &keys); err != nil {
		return err
	}
	for key := range keys {
		if strings.HasSuffix(key, "_file") || key == "tls_ca" || key == "src" {
			return fmt.Errorf("configuration key %q names a file or address of this machine; expected none", key)
		}
	}
	return nil
}
