package sock

import (
	"context"
	"errors"
	"net"
	"syscall"
)

// bindTries is how often a free port is looked for that nobody takes before all
// listeners have it.
const bindTries = 16

// ListenShared listens n times on an address, with sockets that share its port if they
// are several. The first one asks for the address alone, because sockets that share a
// port would hide that another program has it; it then makes way for those that share.
// If somebody takes the port in that moment, and any port will do, it is another one.
func ListenShared(network, addr string, n int) ([]net.Listener, error) {
	return listenShared(addr, n, func(addr string, shared bool) (net.Listener, error) {
		lc := ListenConfig(shared)
		return lc.Listen(context.Background(), network, addr)
	})
}

// listenFunc listens on an address, alone or with a socket that shares its port.
type listenFunc func(addr string, shared bool) (net.Listener, error)

func listenShared(addr string, n int, listen listenFunc) (all []net.Listener, err error) {
	_, port, _ := net.SplitHostPort(addr) // what is wrong with it Listen says
	for range bindTries {
		all, err = listenOnce(addr, n, listen)
		if port != "0" && port != "" || !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return all, err
}

func listenOnce(addr string, n int, listen listenFunc) (all []net.Listener, err error) {
	first, err := listen(addr, false)
	if err != nil {
		return nil, err
	}
	if n == 1 {
		return []net.Listener{first}, nil
	}
	at := first.Addr().String()
	first.Close()
	for range n {
		l, err := listen(at, true)
		if err != nil {
			for _, l := range all {
				l.Close()
			}
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}
