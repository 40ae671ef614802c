package main

import "net"

// isAddress says whether a text is a host and a port to listen on.
func isAddress(text string) bool {
	_, ok := portOf(text)
	return ok
}

// portOf is the port of HOST:PORT, which can have the name of a service.
func portOf(text string) (port int, ok bool) {
	_, service, err := net.SplitHostPort(text)
	if err != nil {
		return 0, false
	}
	port, err = net.LookupPort("tcp", service)
	return port, err == nil
}

// checkAddress says what is wrong with what a flag says to listen on.
func checkAddress(flag, text string) error {
	if !isAddress(text) {
		return usagef("--%s is %q; expected HOST:PORT, with a port of 0 to 65535", flag, text)
	}
	return nil
}

// sameAddress says whether nobody can listen on both of two addresses.
func sameAddress(a, b string) bool {
	port, ok := portOf(a)
	other, otherOK := portOf(b)
	if !ok || !otherOK || port != other || port == 0 {
		return false
	}
	host, otherHost := hostOf(a), hostOf(b)
	return host == otherHost || host == "" || otherHost == ""
}

// hostOf is the host of HOST:PORT, "" for all of this machine's.
func hostOf(text string) string {
	host, _, _ := net.SplitHostPort(text)
	switch ip := net.ParseIP(host); {
	case host == "localhost":
		return "127.0.0.1"
	case ip == nil:
		return host
	case ip.IsUnspecified():
		return ""
	default:
		return ip.String()
	}
}
