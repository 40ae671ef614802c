package tcp

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// Listener is an additional address of a Server, with its own options; see Server.Listeners.
type Listener struct {
	// Name identifies the listener in Conn.Listener, ListenerStats and the log. It must be unique. The default is the
	// name that the service manager gave the listener (ActivatedListeners). Without such a name, it is the address.
	Name string
	// Network and Addr are like Server.Network and Server.Addr.
	Network, Addr string
	// Listener, if set, is used instead of Network and Addr. It must be a *net.TCPListener, a *net.UnixListener or a
	// NamedListener, as for Serve.
	Listener net.Listener
	// Handler handles the connections of this listener. It may implement all optional interfaces, such as TimerHandler.
	// The default is Server.Handler.
	Handler Handler
	// TLSConfig and TrustedProxies are used for this listener instead of the fields of the same names in Server. If
	// they are nil, this listener has no TLS and no trusted proxies, even if the fields in Server are set.
	TLSConfig      *tls.Config
	TrustedProxies []netip.Prefix
	// MaxConns is the maximum number of connections of this listener. Limits.MaxConns still limits all listeners
	// together. Further connections are accepted, closed immediately and counted in ListenerStats.Refused. The default,
	// 0, means no separate limit. With Server.Processes, the limit applies to every process.
	MaxConns int
	// Backlog is the maximum number of connections that wait in the kernel to be accepted. Each event loop has its own
	// socket, and the maximum applies to each socket. Backlog has an effect only on Linux. The default, 0, selects the
	// kernel's maximum, net.core.somaxconn.
	Backlog int
	// Mode is the permissions of the socket file, such as 0o660, if Addr is a unix socket. Clients need write
	// permission to connect. The server creates the file with the permissions that the process's umask allows, and then
	// changes them to Mode. If Mode is 0, the default, the server does not change the permissions.
	Mode fs.FileMode
}

// ListenerStats are the counters of one listener. Open is the number of open connections now. Refused counts
// connections that were rejected because of Listener.MaxConns. Accepted counts accepted connections, not including
// those in Refused.
type ListenerStats struct {
	Name                    string
	Addr                    net.Addr
	Open, Accepted, Refused int64
}

// ListenerStats returns the counters of all listeners. The listener of Addr or Serve comes first, followed by
// Server.Listeners in order. Before the start, the result is nil. With Processes, the counters are sums over the
// workers; see Stats.Processes. ListenerStats is safe for concurrent use.
func (s *Server) ListenerStats() (all []ListenerStats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil {
		return nil
	}
	for i, l := range s.engine.ListenerStats() {
		base := s.predecessorListenerCountsLocked(&s.activeListeners[i], l.Addr)
		all = append(all, ListenerStats{
			Name: s.activeListeners[i].displayName(), Addr: l.Addr, Open: l.Open, Accepted: base.Accepted + l.Accepted, Refused: base.Refused + l.Refused,
		})
	}
	return all
}

// Listener returns the name of the listener that accepted the connection. For a dialed connection, it returns "".
// Listener may also be called in Closed.
func (c *Conn) Listener() string { return c.core().ListenerName() }

func (l *Listener) displayName() string {
	switch at := l.Listener.(type) {
	case nil:
		return cmp.Or(l.Name, l.Addr)
	case NamedListener:
		return cmp.Or(l.Name, at.Name, at.Addr().String())
	default:
		return cmp.Or(l.Name, at.Addr().String())
	}
}

func (s *Server) collectAndCheckListeners(serveListener net.Listener) (all []Listener, err error) {
	switch {
	case serveListener != nil || s.Addr != "":
		first := Listener{Listener: serveListener, TLSConfig: s.TLSConfig, TrustedProxies: s.TrustedProxies}
		if serveListener == nil {
			first.Network, first.Addr = s.Network, s.Addr
		}
		all = append(all, first)
	case len(s.Listeners) == 0:
		return nil, badConfig(`Server.Addr is empty; expected host:port, such as ":9000" or "127.0.0.1:0", or Listeners`)
	case s.TLSConfig != nil || len(s.TrustedProxies) > 0:
		return nil, badConfig("Server.TLSConfig or TrustedProxies is set, but Addr is empty; expected these settings in each of Listeners instead")
	}
	all = append(all, s.Listeners...)
	if len(all) > engine.MaxListeners {
		return nil, badConfig("Server.Listeners and Addr define %d listeners; expected at most %d", len(all), engine.MaxListeners)
	}
	names := make(map[string]bool)
	for i := range all {
		l := &all[i]
		field := "Server"
		if n := i - (len(all) - len(s.Listeners)); n >= 0 {
			field = fmt.Sprintf("Server.Listeners[%d]", n)
		}
		if err := s.checkAndNormalizeListener(field, l); err != nil {
			return nil, err
		}
		if l.Name != "" && names[l.displayName()] {
			return nil, badConfig("%s.Name is %q, which is also the name of another listener; expected a unique name", field, l.Name)
		}
		names[l.displayName()] = true
	}
	return all, nil
}

// checkAndNormalizeListener validates l. If l.Listener is set, it unwraps l.Listener and sets l.Name; otherwise it sets
// l.Network. The string field identifies the listener in errors.
func (s *Server) checkAndNormalizeListener(field string, l *Listener) error {
	switch {
	case l.Listener != nil && l.Addr != "":
		return badConfig("%s.Addr is %q and Listener is set; expected only one of them", field, l.Addr)
	case l.Listener == nil && l.Addr == "":
		return badConfig(`%s.Addr is empty; expected host:port, such as ":9000", the path of a unix socket, or Listener`, field)
	case l.Listener != nil && s.Processes > 1:
		return badConfig("%s.Listener is set, but Server.Processes is %d; expected Addr instead, so that each process can listen", field, s.Processes)
	case l.MaxConns < 0 || l.MaxConns > math.MaxInt32:
		return badConfig("%s.MaxConns is %d; expected 0 (the default: no separate limit) to %d", field, l.MaxConns, math.MaxInt32)
	case l.Backlog < 0 || l.Backlog > maxBacklog:
		return badConfig("%s.Backlog is %d; expected 0 (the default: net.core.somaxconn) to %d", field, l.Backlog, maxBacklog)
	case l.Mode&^fs.ModePerm != 0 || l.Mode != 0 && (l.Network != "unix" || l.Listener != nil || strings.HasPrefix(l.Addr, "@")):
		return badConfig("%s.Mode is %#o; expected 0, or permissions up to 0777 if Addr is the path of a unix socket", field, uint32(l.Mode))
	}
	if err := checkTLSHasCertificate(field, l.TLSConfig); err != nil {
		return err
	}
	if err := checkPrefixCountAndValidity(field+".TrustedProxies", l.TrustedProxies); err != nil {
		return err
	}
	if l.Listener != nil {
		socket, err := unwrapListenerKeepingSocketFile(field+".Listener", l.Listener)
		if err == nil {
			l.Name, l.Listener = l.displayName(), socket
		}
		return err
	}
	switch l.Network {
	case "", "tcp":
		l.Network = tcp4IfIPv4Wildcard(l.Addr)
	case "tcp4", "tcp6":
	case "unix":
		if s.Processes > 1 {
			return badConfig("%s.Network is unix, but Server.Processes is %d; expected 0 or 1, because worker processes can't share a unix socket", field, s.Processes)
		}
	default:
		return badConfig("%s.Network is %q; expected tcp, tcp4, tcp6 or unix", field, l.Network)
	}
	return nil
}

const maxBacklog = math.MaxUint16

// engineStarter is a listener that starts its own engine, such as a listener of package tcptest.
type engineStarter interface {
	net.Listener
	Start(engine.Config) (engine.Engine, error)
}

// unwrapListenerKeepingSocketFile returns l. If l is a NamedListener, it returns the listener in l. If the listener is
// a unix listener, its Close method no longer removes the socket file afterwards. A listener that is not a TCP
// listener, a unix listener or an engineStarter is an error. The error begins with field.
func unwrapListenerKeepingSocketFile(field string, l net.Listener) (net.Listener, error) {
	switch l := l.(type) {
	case *net.TCPListener:
		if l != nil {
			return l, nil
		}
	case *net.UnixListener:
		if l != nil {
			l.SetUnlinkOnClose(false)
			return l, nil
		}
	case engineStarter:
		return l, nil
	case NamedListener:
		return unwrapListenerKeepingSocketFile(field, l.Listener)
	}
	return nil, badConfig("%s: listener of type %T; expected a non-nil *net.TCPListener or *net.UnixListener", field, l)
}

// buildListenersInheritingSockets returns a configuration that contains listeners for the engine. During an
// upgrade, it uses the sockets of the old process for listeners with the same address. For all other unix listeners, it
// creates new sockets. closeAndRemoveSockets closes the Socket of each listener, and removes the files of unix sockets
// that no other process uses.
func (s *Server) buildListenersInheritingSockets(listeners []Listener) (cfg engine.Config, closeAndRemoveSockets func(), err error) {
	var cleanups []func()
	closeAndRemoveSockets = func() {
		for _, end := range slices.Backward(cleanups) {
			end()
		}
	}
	for i := range listeners {
		l := &listeners[i]
		at := engine.Listener{
			Name: l.displayName(), Network: l.Network, Addr: l.Addr, Socket: l.Listener, MaxConns: l.MaxConns, Backlog: l.Backlog,
			Control: s.Socket.Control,
		}
		if at.Sockets = s.claimInheritedSocketsAndTickets(l, i); at.Sockets != nil {
			if l.Network == "unix" && l.Listener == nil && !strings.HasPrefix(l.Addr, "@") {
				cleanups = append(cleanups, s.newUnixSocketRemover(l.Addr))
			}
			if at.Socket != nil {
				_ = at.Socket.Close()
				at.Socket = nil
			}
		} else if l.Network == "unix" && l.Listener == nil {
			u, remove, err := s.listenUnix(l)
			if err != nil {
				closeAndRemoveSockets()
				return cfg, nil, err
			}
			cleanups = append(cleanups, remove)
			at.Socket = u
		}
		if at.Socket != nil {
			cleanups = append(cleanups, func() { at.Socket.Close() })
		}
		cfg.Listeners = append(cfg.Listeners, at)
	}
	s.matchRemainingPredecessorListeners(listeners)
	return cfg, closeAndRemoveSockets, nil
}

// listenUnix listens on the unix socket cfg.Addr. The function remove deletes the socket file, unless another file has
// replaced it.
func (s *Server) listenUnix(cfg *Listener) (l *net.UnixListener, remove func(), err error) {
	if l, err = sock.ListenUnixReplacingStale(cfg.Addr); err != nil {
		return nil, nil, fmt.Errorf("myriad: %w", err)
	}
	l.SetUnlinkOnClose(false) // the engine duplicates the descriptor
	if strings.HasPrefix(cfg.Addr, "@") {
		return l, func() {}, nil
	}
	if cfg.Mode != 0 {
		err = os.Chmod(cfg.Addr, cfg.Mode)
	}
	if err == nil {
		_, err = os.Lstat(cfg.Addr)
	}
	if err != nil {
		l.Close()
		return nil, nil, fmt.Errorf("myriad: the new unix socket: %w", err)
	}
	return l, s.newUnixSocketRemover(cfg.Addr), nil
}

// newUnixSocketRemover returns a function that removes the unix socket at path. The function does nothing if another
// file has replaced the socket, or if a new process serves on the socket.
func (s *Server) newUnixSocketRemover(path string) func() {
	ours, err := os.Lstat(path)
	return func() {
		if now, e := os.Lstat(path); err == nil && e == nil && isSameUnmodifiedFile(ours, now) && !s.handedOver.Load() {
			_ = os.Remove(path) // on error it is already gone
		}
	}
}

func isSameUnmodifiedFile(a, b os.FileInfo) bool {
	// A new file may reuse the inode number of a removed one.
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime())
}
