package load

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// target is where connections go: an address, or the path of a unix socket.
type target struct {
	addr netip.AddrPort
	path string
}

func (t target) String() string {
	if t.path != "" {
		return unixPrefix + t.path
	}
	return t.addr.String()
}

// from is the source to connect from: none where it is not of the target's kind.
func (t target) from(source netip.Addr) netip.Addr {
	if t.path != "" || source.Unmap().Is4() != t.addr.Addr().Unmap().Is4() {
		return netip.Addr{}
	}
	return source
}

// dialName is how package net calls it.
func (t target) dialName() (network, address string) {
	if t.path != "" {
		return "unix", t.path
	}
	return "tcp", t.addr.String()
}

// resolveAll looks all targets up.
func resolveAll(ctx context.Context, cfg *Config) ([]target, error) {
	var targets []target
	for _, text := range append([]string{cfg.Target}, cfg.Also...) {
		t, err := resolve(ctx, text)
		if err != nil {
			return nil, err
		}
		if t.path == "" {
			if err := checkFamily(cfg.Sources, t.addr.Addr()); err != nil {
				return nil, err
			}
		}
		targets = append(targets, t)
	}
	return targets, nil
}

// resolve looks a host:port up and takes the first address, IPv4 before IPv6.
func resolve(ctx context.Context, text string) (target, error) {
	if path, ok := strings.CutPrefix(text, unixPrefix); ok {
		return target{path: path}, nil
	}
	host, service, err := net.SplitHostPort(text)
	if err != nil {
		return target{}, fmt.Errorf("load: target %q: %w", text, err)
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return target{}, fmt.Errorf("load: port of target %q: %w", text, err)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return target{}, fmt.Errorf("load: host of target %q: %w", text, err)
	}
	first := addrs[0].Unmap()
	for _, a := range addrs {
		if a = a.Unmap(); a.Is4() {
			first = a
			break
		}
	}
	return target{addr: netip.AddrPortFrom(first, uint16(port))}, nil
}
