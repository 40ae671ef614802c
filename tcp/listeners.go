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

// Listener is one place where a Server listens, with options of its own; see
// Server.Listeners.
type Listener struct {
	// Name is what Conn.Listener, ListenerStats and the log call it. No two have
	// the same. The default is the name that a service manager has given
	// (ActivatedListeners), or the address.
	Name string
	// Network and Addr are as Server.Network and Server.Addr.
	Network, Addr string
	// Listener, if set, is listened on instead of Addr: a *net.TCPListener or
	// *net.UnixListener, as for Serve.
	Listener net.Listener
	// TLSConfig and TrustedProxies are as those of Server. Their defaults are
	// none, whatever the Server's are.
	TLSConfig      *tls.Config
	TrustedProxies []netip.Prefix
	// MaxConns is the most connections at a time that have come by it, beside
	// Limits.MaxConns, which is for all together. Further ones are accepted and
	// closed at once, and counted as Refused. The default is 0: no bound of its
	// own. With Server.Processes it is for each.
	MaxConns int
	// Backlog is how many connections may wait in the kernel for the accept, at
	// most net.core.somaxconn, on each loop's socket (Linux; ignored elsewhere).
	// The default is 0: that much.
	Backlog int
	// Mode are the permissions of the file of a unix socket at Addr, such as
	// 0o660; who may write to it may connect. It is set after the file has been
	// made, by the umask: where that is wider, the directory should keep others
	// out. The default is 0: as the umask has it.
	Mode fs.FileMode
}

// ListenerStats are the counts of one listener: connections that are Open now, those
// that were Accepted, and those that its MaxConns has Refused.
type ListenerStats struct {
	Name                    string
	Addr                    net.Addr
	Open, Accepted, Refused int64
}

// ListenerStats gives them for each listener, in the order of Server.Listeners, behind
// that of Server.Addr or Serve; nil before the start. With Processes they are sums
// over the workers, by the rules of Stats.Processes. It is safe for concurrent use.
func (s *Server) ListenerStats() (all []ListenerStats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil {
		return nil
	}
	for i, l := range s.engine.ListenerStats() {
		base := s.baseOf(&s.where[i], l.Addr)
		all = append(all, ListenerStats{
			Name: s.where[i].name(), Addr: l.Addr, Open: l.Open, Accepted: base.Accepted + l.Accepted, Refused: base.Refused + l.Refused,
		})
	}
	return all
}

// Listener is the name of the listener by which the connection has come. It stays known
// in Closed.
func (c *Conn) Listener() string { return c.core().ListenerName() }

// name is Name with its default.
func (l *Listener) name() string {
	switch at := l.Listener.(type) {
	case nil:
		return cmp.Or(l.Name, l.Addr)
	case NamedListener:
		return cmp.Or(l.Name, at.Name, at.Addr().String())
	default:
		return cmp.Or(l.Name, at.Addr().String())
	}
}

// listens is where the server listens: at Addr or the listener of Serve, if there is
// one, and at Listeners.
func (s *Server) listens(own net.Listener) (all []Listener, err error) {
	switch {
	case own != nil || s.Addr != "":
		first := Listener{Listener: own, TLSConfig: s.TLSConfig, TrustedProxies: s.TrustedProxies}
		if own == nil {
			first.Network, first.Addr = s.Network, s.Addr
		}
		all = append(all, first)
	case len(s.Listeners) == 0:
		return nil, badConfig(`Server.Addr is empty; expected host:port, such as ":9000" or "127.0.0.1:0", or Listeners`)
	case s.TLSConfig != nil || len(s.TrustedProxies) > 0:
		return nil, badConfig("Server.TLSConfig or TrustedProxies is set, and Addr is empty; expected those of each of Listeners instead")
	}
	all = append(all, s.Listeners...)
	if len(all) > engine.MaxListeners {
		return nil, badConfig("Server.Listeners makes %d listeners; expected at most %d", len(all), engine.MaxListeners)
	}
	names := make(map[string]bool)
	for i := range all {
		l := &all[i]
		of := "Server"
		if n := i - (len(all) - len(s.Listeners)); n >= 0 {
			of = fmt.Sprintf("Server.Listeners[%d]", n)
		}
		if err := s.checkListener(of, l); err != nil {
			return nil, err
		}
		if l.Name != "" && names[l.name()] {
			return nil, badConfig("%s.Name is %q; expected one that no other listener has", of, l.Name)
		}
		names[l.name()] = true
	}
	return all, nil
}

// checkListener says what is wrong with a listener, and fills in its network.
func (s *Server) checkListener(of string, l *Listener) error {
	switch {
	case l.Listener != nil && l.Addr != "":
		return badConfig("%s.Addr is %q, and Listener is set; expected one of them", of, l.Addr)
	case l.Listener == nil && l.Addr == "":
		return badConfig(`%s.Addr is empty; expected host:port, such as ":9000", the path of a unix socket, or Listener`, of)
	case l.Listener != nil && s.Processes > 1:
		return badConfig("%s.Listener is set with Server.Processes %d; expected Addr, where each process listens", of, s.Processes)
	case l.MaxConns < 0 || l.MaxConns > math.MaxInt32:
		return badConfig("%s.MaxConns is %d; expected 0 (the default: no bound of its own) to %d", of, l.MaxConns, math.MaxInt32)
	case l.Backlog < 0 || l.Backlog > maxBacklog:
		return badConfig("%s.Backlog is %d; expected 0 (the default: net.core.somaxconn) to %d", of, l.Backlog, maxBacklog)
	case l.Mode&^fs.ModePerm != 0 || l.Mode != 0 && (l.Network != "unix" || l.Listener != nil || strings.HasPrefix(l.Addr, "@")):
		return badConfig("%s.Mode is %#o; expected 0, or permissions up to 0777 for the file of a unix socket at Addr", of, uint32(l.Mode))
	}
	if err := checkTLS(of, l.TLSConfig); err != nil {
		return err
	}
	if err := checkPrefixes(of+".TrustedProxies", l.TrustedProxies); err != nil {
		return err
	}
	if l.Listener != nil {
		socket, err := rawListener(of+".Listener", l.Listener)
		if err == nil {
			l.Name, l.Listener = l.name(), socket
		}
		return err
	}
	switch l.Network {
	case "", "tcp":
		l.Network = family(l.Addr)
	case "tcp4", "tcp6":
	case "unix":
		if s.Processes > 1 {
			return badConfig("%s.Network is unix and Server.Processes %d; expected 0 or 1: worker processes can't share a unix socket", of, s.Processes)
		}
	default:
		return badConfig("%s.Network is %q; expected tcp, tcp4, tcp6 or unix", of, l.Network)
	}
	return nil
}

// maxBacklog bounds Listener.Backlog, as the kernel does.
const maxBacklog = math.MaxUint16

// starter is a listener with an engine of its own, in place of a model: that of package
// tcptest, which has no sockets.
type starter interface {
	net.Listener
	Start(engine.Config) (engine.Engine, error)
}

// rawListener is a listener that the engines can serve on.
func rawListener(of string, l net.Listener) (net.Listener, error) {
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
	case starter:
		return l, nil
	case NamedListener:
		return rawListener(of, l.Listener)
	}
	return nil, badConfig("%s: listener of type %T; expected a *net.TCPListener or *net.UnixListener that is not nil", of, l)
}

// open listens at unix sockets, and tells the engine where it is to listen. done
// removes what is left of them.
func (s *Server) open(where []Listener) (cfg engine.Config, done func(), err error) {
	var ends []func()
	done = func() {
		for _, end := range slices.Backward(ends) {
			end()
		}
	}
	for i := range where {
		l := &where[i]
		at := engine.Listener{
			Name: l.name(), Network: l.Network, Addr: l.Addr, Socket: l.Listener, MaxConns: l.MaxConns, Backlog: l.Backlog,
			Control: s.Socket.Control,
		}
		if at.Sockets = s.inherited(l); at.Sockets != nil {
			if l.Network == "unix" && l.Listener == nil && !strings.HasPrefix(l.Addr, "@") {
				ends = append(ends, s.removesUnix(l.Addr))
			}
			if at.Socket != nil {
				_ = at.Socket.Close()
				at.Socket = nil
			}
		} else if l.Network == "unix" && l.Listener == nil {
			u, remove, err := s.listenUnix(l)
			if err != nil {
				done()
				return cfg, nil, err
			}
			ends = append(ends, remove)
			at.Socket = u
		}
		if at.Socket != nil {
			ends = append(ends, func() { at.Socket.Close() })
		}
		cfg.Listeners = append(cfg.Listeners, at)
	}
	return cfg, done, nil
}

// listenUnix listens on a unix socket; done removes its file, unless another one is
// in its place by then, such as that of a successor that listens there while our
// last connections drain.
func (s *Server) listenUnix(at *Listener) (l *net.UnixListener, done func(), err error) {
	if l, err = sock.ListenUnix(at.Addr); err != nil {
		return nil, nil, fmt.Errorf("myriad: %w", err)
	}
	l.SetUnlinkOnClose(false) // the engine goes on with descriptors of its own
	if strings.HasPrefix(at.Addr, "@") {
		return l, func() {}, nil
	}
	if at.Mode != 0 {
		err = os.Chmod(at.Addr, at.Mode)
	}
	if err == nil {
		_, err = os.Lstat(at.Addr)
	}
	if err != nil {
		l.Close()
		return nil, nil, fmt.Errorf("myriad: the socket that was just made: %w", err)
	}
	return l, s.removesUnix(at.Addr), nil
}

// removesUnix gives what removes a unix socket at the end, unless another one is there by then,
// or a new process serves at it.
func (s *Server) removesUnix(path string) func() {
	ours, err := os.Lstat(path)
	return func() {
		if now, e := os.Lstat(path); err == nil && e == nil && sameSocket(ours, now) && !s.handedOver.Load() {
			_ = os.Remove(path) // an error says that somebody has done it
		}
	}
}

// sameSocket says whether two looks were at one file. The time tells, too: a file
// that takes the place of one that was removed may get its number.
func sameSocket(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime())
}
