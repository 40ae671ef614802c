package main

import (
	"cmp"
	"net"
	"net/url"
	"strings"
)

// wantTarget is what a target is.
const wantTarget = wanted("HOST:PORT such as 127.0.0.1:9000 or [::1]:9000, unix:PATH, or a URL such as http://HOST:PORT/PATH")

// protocol is what a URL says of how to talk to a server. It can be compared.
type protocol struct {
	tls, http, ws bool
	path          string // with its query, "" for none
}

// schemes are those of URLs that targets can be, with the ports that these have by default.
var schemes = map[string]struct {
	protocol
	port string
}{
	"tcp":   {protocol{}, ""},
	"tls":   {protocol{tls: true}, ""},
	"http":  {protocol{http: true}, "80"},
	"https": {protocol{http: true, tls: true}, "443"},
	"ws":    {protocol{ws: true}, "80"},
	"wss":   {protocol{ws: true, tls: true}, "443"},
}

// setTargets sets the targets, and the protocol that they say as URLs. With a WebSocket
// they can have a path without being URLs, as tcpkali's; the first one's is asked for,
// unless --ws has one.
func (f *loadFlags) setTargets(given given, targets []string) error {
	if len(targets) == 0 {
		return usagef("no target is given; expected HOST:PORT or unix:PATH, one or more")
	}
	var addresses []string
	var first *targetURL
	for i, target := range targets {
		if strings.HasPrefix(target, "unix:") {
			addresses = append(addresses, target)
			continue
		}
		if !strings.Contains(target, "://") {
			address, err := f.address(target, i == 0)
			if err != nil {
				return err
			}
			addresses = append(addresses, address)
			continue
		}
		u, err := parseTargetURL(target)
		if err != nil {
			return usagef("target is %q; %w", target, err)
		}
		if first == nil {
			first = u
		} else if u.protocol != first.protocol {
			return usagef("targets are %s and %s; expected the same protocol and path", first.text, target)
		}
		addresses = append(addresses, u.address)
	}
	f.cfg.Target, f.cfg.Also = addresses[0], append([]string(nil), addresses[1:]...)
	if first == nil {
		return nil
	}
	return f.speak(given, first)
}

// address is the host and port of a target that is no URL.
func (f *loadFlags) address(target string, first bool) (string, error) {
	address := target
	if f.ws != "" {
		host, path, found := strings.Cut(target, "/")
		if first && found && f.ws == "/" {
			f.ws = "/" + path
		}
		address = host
	}
	if f.ws != "" || f.cfg.HTTP {
		port := "80"
		if f.tls.on {
			port = "443"
		}
		address = withPort(address, port)
	}
	if !isTarget(address) {
		return "", usagef("target is %q; %w", target, wantTarget)
	}
	return address, nil
}

// withPort adds a port to what has none.
func withPort(address, port string) string {
	if _, _, err := net.SplitHostPort(address); err == nil {
		return address
	}
	host := strings.TrimSuffix(strings.TrimPrefix(address, "["), "]")
	return net.JoinHostPort(host, port)
}

// targetURL is a target that is a URL.
type targetURL struct {
	protocol
	text    string
	host    string // as it stands in the URL, with the port if there is one
	address string // with a port in any case
}

// parseTargetURL reads a target that is a URL.
func parseTargetURL(text string) (*targetURL, error) {
	scheme, rest, _ := strings.Cut(text, "://")
	s, known := schemes[strings.ToLower(scheme)]
	if !known {
		return nil, wanted("a URL of tcp, tls, http, https, ws or wss")
	}
	u, err := url.Parse("http://" + rest)
	if err != nil || u.User != nil || u.Hostname() == "" {
		return nil, wanted("SCHEME://HOST:PORT/PATH")
	}
	to := &targetURL{s.protocol, text, u.Host, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), s.port))}
	switch {
	case !isTarget(to.address):
		return nil, wanted("a port of 1 to 65535, as in " + scheme + "://" + u.Hostname() + ":9000")
	case to.http || to.ws:
		to.path = u.RequestURI()
	case u.RequestURI() != "/":
		return nil, wanted("no path, which " + scheme + " has none of")
	}
	return to, nil
}

// speak has the connections talk as a URL says.
func (f *loadFlags) speak(given given, u *targetURL) error {
	switch {
	case f.cfg.Hold && (u.http || u.ws):
		return usagef("target is %q, and connections are held, idle; expected tcp:// or tls://", u.text)
	case f.tls.on && !u.tls && (u.http || u.ws):
		return usagef("--tls is given, and target is %q; expected https:// or wss://", u.text)
	case f.ws != "" && !u.ws, f.cfg.HTTP && !u.http:
		return usagef("--ws or --http is given, and target is %q; expected one of the two", u.text)
	case f.ws != "" && f.ws != "/" && f.ws != u.path:
		return usagef("--ws is %q, and target is %q; expected one path", f.ws, u.text)
	case u.http && u.path != "/" && anyOf(given, []string{"message", "message-file", "template-file"}):
		return usagef("a message is given, and target is %q; expected the path in the message", u.text)
	}
	f.tls.on = f.tls.on || u.tls
	if u.ws {
		f.ws = u.path
	}
	if u.http {
		f.cfg.HTTP = !given("match") // by which answers are told apart, but not compared
		f.request = "GET " + u.path + " HTTP/1.1\r\nHost: " + u.host + "\r\n\r\n"
	}
	return nil
}
