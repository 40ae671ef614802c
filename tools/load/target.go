package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/myriad-go/myriad/tools/internal/quantity"
)

// resolvedTarget is an address, or the path of a unix socket.
type resolvedTarget struct {
	addr netip.AddrPort
	path string
}

func (t resolvedTarget) String() string {
	if t.path != "" {
		return unixPrefix + t.path
	}
	return t.addr.String()
}

// sourceIfSameFamily returns source if source and the target have the same address family. Otherwise, it returns the
// zero netip.Addr.
func (t resolvedTarget) sourceIfSameFamily(source netip.Addr) netip.Addr {
	if t.path != "" || source.Unmap().Is4() != t.addr.Addr().Unmap().Is4() {
		return netip.Addr{}
	}
	return source
}

func resolveTargetsAndCheckSources(ctx context.Context, cfg *Config) ([]resolvedTarget, error) {
	var targets []resolvedTarget
	for _, text := range append([]string{cfg.Target}, cfg.Also...) {
		t, err := resolveTargetPreferringIPv4(ctx, text)
		if err != nil {
			return nil, err
		}
		other := func(s netip.Addr) bool { return s.Unmap().Is4() != t.addr.Addr().Is4() }
		if i := slices.IndexFunc(cfg.Sources, other); i >= 0 && t.path == "" {
			return nil, errAddressFamily(cfg.Sources[i], t.addr.Addr())
		}
		targets = append(targets, t)
	}
	return targets, nil
}

// resolveTargetPreferringIPv4 resolves host:port or unix:PATH to one address. An empty host becomes 127.0.0.1.
func resolveTargetPreferringIPv4(ctx context.Context, text string) (resolvedTarget, error) {
	if path, ok := strings.CutPrefix(text, unixPrefix); ok {
		return resolvedTarget{path: path}, nil
	}
	host, service, err := net.SplitHostPort(text)
	if err != nil {
		return resolvedTarget{}, fmt.Errorf("load: target %q: %w", text, err)
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return resolvedTarget{}, fmt.Errorf("load: port of target %q: %w", text, err)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return resolvedTarget{}, fmt.Errorf("load: host of target %q: %w", text, err)
	}
	first := addrs[0].Unmap()
	for _, a := range addrs {
		if a = a.Unmap(); a.Is4() {
			first = a
			break
		}
	}
	return resolvedTarget{addr: netip.AddrPortFrom(first, uint16(port))}, nil
}

type urlProtocol struct {
	tls, http, ws bool
	path          string // path with query, "" for none
}

var urlSchemes = map[string]struct {
	urlProtocol
	port string
}{
	"tcp":   {urlProtocol{}, ""},
	"tls":   {urlProtocol{tls: true}, ""},
	"http":  {urlProtocol{http: true}, "80"},
	"https": {urlProtocol{http: true, tls: true}, "443"},
	"ws":    {urlProtocol{ws: true}, "80"},
	"wss":   {urlProtocol{ws: true, tls: true}, "443"},
}

// SetTargets sets the fields Target and Also. Call SetTargets after all other settings have been set. Each target is an
// address such as HOST:PORT or unix:PATH, or a URL with the scheme tcp, tls, http, https, ws or wss.
//
// A URL also sets the protocol and the path. All URLs must have the same protocol and the same path. For http and
// https, SetTargets sets an empty Message to a GET request for the path.
//
// For HTTP and WebSockets, a target can omit the port. For WebSockets, an address can include a path, as in
// HOST:PORT/chat.
func (c *Config) SetTargets(targets ...string) error {
	if len(targets) == 0 {
		return errors.New("no target is given; expected one or more, such as HOST:PORT or unix:PATH")
	}
	var addresses []string
	var first *targetURL
	for i, target := range targets {
		u, err := c.parseTargetAddress(target, i == 0)
		switch {
		case err != nil:
			return fmt.Errorf("target is %q; %w", target, err)
		case u.urlProtocol != nil && first != nil && *u.urlProtocol != *first.urlProtocol:
			return fmt.Errorf("targets are %s and %s; expected the same protocol and path", first.text, target)
		case u.urlProtocol != nil && first == nil:
			first = u
		}
		addresses = append(addresses, u.address)
	}
	c.Target, c.Also = addresses[0], append([]string(nil), addresses[1:]...)
	if first == nil {
		return nil
	}
	return c.checkAndSetProtocolFromURL(first)
}

type targetURL struct {
	*urlProtocol // nil for an address
	text         string
	host         string // host as in the URL, with its port if given
	address      string // host and port
}

const wantTarget = quantity.Error("HOST:PORT such as 127.0.0.1:9000 or [::1]:9000, unix:PATH, or a URL such as http://HOST:PORT/PATH")

// parseTargetAddress parses a target, which is an address or a URL. If c uses WebSockets, an address can include a
// path, as in HOST:PORT/path. If setWSPath is true and c has no WebSocket path yet, parseTargetAddress stores the path
// of the address in c.
func (c *Config) parseTargetAddress(text string, setWSPath bool) (*targetURL, error) {
	if strings.HasPrefix(text, unixPrefix) {
		return &targetURL{address: text}, nil
	}
	if strings.Contains(text, "://") {
		return parseTargetURL(text)
	}
	address := text
	if c.WebSocket != nil {
		host, path, found := strings.Cut(text, "/")
		if setWSPath && found && pathOrRoot(c.WebSocket.Path) == "/" {
			c.WebSocket.Path = "/" + path
		}
		address = host
	}
	if c.WebSocket != nil || c.Match == matchHTTP {
		port := "80"
		if c.TLS != nil {
			port = "443"
		}
		if _, _, err := net.SplitHostPort(address); err != nil {
			address = net.JoinHostPort(strings.TrimSuffix(strings.TrimPrefix(address, "["), "]"), port)
		}
	}
	if !isHostPort(address) {
		return nil, wantTarget
	}
	return &targetURL{address: address}, nil
}

func isHostPort(text string) bool {
	_, service, err := net.SplitHostPort(text)
	if err != nil {
		return false
	}
	port, err := net.LookupPort("tcp", service)
	return err == nil && port > 0
}

func parseTargetURL(text string) (*targetURL, error) {
	scheme, rest, _ := strings.Cut(text, "://")
	s, known := urlSchemes[strings.ToLower(scheme)]
	if !known {
		return nil, quantity.Error("a URL with the scheme tcp, tls, http, https, ws or wss")
	}
	u, err := url.Parse("http://" + rest)
	if err != nil || u.User != nil || u.Hostname() == "" {
		return nil, quantity.Error("SCHEME://HOST:PORT/PATH")
	}
	to := &targetURL{&s.urlProtocol, text, u.Host, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), s.port))}
	switch {
	case !isHostPort(to.address):
		return nil, quantity.Error("a port of 1 to 65535, as in " + scheme + "://" + u.Hostname() + ":9000")
	case to.http || to.ws:
		to.path = u.RequestURI()
	case u.RequestURI() != "/":
		return nil, quantity.Error("no path after " + scheme + "://HOST:PORT")
	}
	return to, nil
}

// checkAndSetProtocolFromURL sets TLS, WebSocket, Match and Message from the URL. It returns an error if the URL
// contradicts the settings of c.
func (c *Config) checkAndSetProtocolFromURL(u *targetURL) error {
	ws := ""
	if c.WebSocket != nil {
		ws = pathOrRoot(c.WebSocket.Path)
	}
	switch {
	case c.Hold && u.http:
		return fmt.Errorf("target is %q, but HTTP connections cannot be held; expected tcp://, tls://, ws:// or wss://", u.text)
	case c.TLS != nil && !u.tls && (u.http || u.ws):
		return fmt.Errorf("TLS is requested, but target is %q; expected https:// or wss://", u.text)
	case ws != "" && !u.ws, c.Match == matchHTTP && !u.http:
		return fmt.Errorf("WebSockets or HTTP are requested, but target is %q; expected a URL of the requested protocol", u.text)
	case ws != "" && ws != "/" && ws != u.path:
		return fmt.Errorf("the WebSocket path is %q, but target is %q; expected the same path", ws, u.text)
	case u.http && u.path != "/" && c.Message != "":
		return fmt.Errorf("a message is given, but target is %q, which has a path; expected the path only in the message", u.text)
	}
	if u.tls && c.TLS == nil {
		c.TLS = new(TLS)
	}
	if u.ws {
		if c.WebSocket == nil {
			c.WebSocket = new(WebSocket)
		}
		c.WebSocket.Path = u.path
	}
	if u.http {
		if c.Match == "" && c.Answer == "" {
			c.Match = matchHTTP
		}
		if c.Message == "" {
			c.Message = formatGetRequest(u.path, u.host)
		}
	}
	return nil
}
