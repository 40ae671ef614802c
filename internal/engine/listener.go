package engine

import (
	"errors"
	"net"
	"slices"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/sock"
)

// This file has the listeners and their counters. A connection stores its listener's number, from
// 0, in the high bits of its descriptor, which takes no extra memory. Dialled connections have
// none.

// MaxListeners is the maximum number of listeners, and MaxFD the limit for descriptors, whose high
// bits have the listener's number.
const (
	MaxListeners = 32
	MaxFD        = 1 << 25
)

// Listener configures one listener.
type Listener struct {
	// Name identifies it in logs.
	Name          string
	Network, Addr string
	// Socket, if set, is used instead of Addr. The engine owns it.
	Socket net.Listener
	// Sockets, if not empty, are used instead: those of the process that this one replaces. The
	// engine closes them.
	Sockets []net.Listener
	// MaxConns limits the open connections of this listener; 0 means no limit.
	MaxConns int
	// Backlog is the length of the accept queue; 0 leaves it to the kernel.
	Backlog int
	// Control, if set, is called with each TCP socket of Addr before it is bound.
	Control sock.ControlFunc
}

// ListenerStats describes a listener: its open connections, those accepted, and those refused
// because of Listener.MaxConns.
type ListenerStats struct {
	Name                    string
	Addr                    net.Addr
	Open, Accepted, Refused int64
}

// EffectiveListeners returns the listeners, none if the engine only dials.
func (c *Config) EffectiveListeners() []Listener {
	if len(c.Listeners) == 0 && c.Addr != "" {
		return []Listener{{Network: c.Network, Addr: c.Addr}}
	}
	return c.Listeners
}

// OpenSockets returns the sockets of l, ready to accept: minSockets that share its port, or Socket
// as often, or all inherited Sockets, of which there may be more. The caller closes each; after an
// error all are closed.
func (l Listener) OpenSockets(minSockets int, opts sock.Options) (sockets []net.Listener, err error) {
	if m := len(l.Sockets); m > 0 {
		for i := range max(minSockets, m) {
			sockets = append(sockets, l.Sockets[i%m])
		}
	} else if l.Socket != nil {
		sockets, err = slices.Repeat([]net.Listener{l.Socket}, minSockets), sock.SetNonblockAndListenOptions(l.Socket)
	} else {
		sockets, err = sock.ListenReusePort(l.Network, l.Addr, minSockets, l.Control)
	}
	for _, s := range sockets {
		if err == nil {
			err = errors.Join(opts.SetOnListener(s), sock.SetBacklog(s, l.Backlog))
		}
	}
	if err != nil {
		CloseListeners(sockets)
		return nil, err
	}
	return sockets, nil
}

func CloseListeners(all []net.Listener) {
	for _, l := range all {
		l.Close()
	}
}

// ListenerCounters counts the connections of a listener. It is safe for concurrent use.
type ListenerCounters struct {
	name                         string
	addr                         net.Addr
	maxConns                     int64 // 0 means no limit
	openConns, accepted, refused atomic.Int64
}

// NewListenerCounters returns the counters of a listener with an address.
func NewListenerCounters(l Listener, addr net.Addr) *ListenerCounters {
	return &ListenerCounters{name: l.Name, addr: addr, maxConns: int64(l.MaxConns)}
}

// errListenerFull is ErrTooManyConns because of Listener.MaxConns.
var errListenerFull = errors.New("listener full")

// acquireConnSlot counts a connection as open, and as accepted unless it was imported. It reports false if
// MaxConns are open.
func (e *ListenerCounters) acquireConnSlot(imported bool) (acquired bool) {
	if e == nil {
		return true
	}
	for {
		n := e.openConns.Load()
		if e.maxConns > 0 && n >= e.maxConns {
			return false
		}
		if e.openConns.CompareAndSwap(n, n+1) {
			if !imported {
				e.accepted.Add(1)
			}
			return true
		}
	}
}

func (e *ListenerCounters) releaseConnSlot() {
	if e != nil {
		e.openConns.Add(-1)
	}
}

// listenerCounters returns the counters of a listener, nil for a number below 0.
func (rt *Runtime) listenerCounters(listenerNumber int) *ListenerCounters {
	if listenerNumber < 0 {
		return nil
	}
	return rt.ListenerCounters[listenerNumber]
}

// ListenerNumberForAdopted returns the number of the listener that adopted connections count for: the first,
// or -1 without listeners.
func (rt *Runtime) ListenerNumberForAdopted() int { return min(len(rt.ListenerCounters), 1) - 1 }

// ListenerStats returns the counts of all listeners.
func (rt *Runtime) ListenerStats() (all []ListenerStats) {
	for _, e := range rt.ListenerCounters {
		all = append(all, ListenerStats{Name: e.name, Addr: e.addr, Open: e.openConns.Load(), Accepted: e.accepted.Load(), Refused: e.refused.Load()})
	}
	return all
}

// SetListener stores the listener's number, before the connection is opened.
func (c *Conn) SetListener(number int) { c.fd = c.FD() | int32(number+1)*MaxFD }

// Listener returns the number of the listener, -1 for a dialled connection.
func (c *Conn) Listener() int { return int(max(c.fd, 0)/MaxFD) - 1 }

// ListenerName returns the name of the listener, empty without one.
func (c *Conn) ListenerName() string {
	if n := c.Listener(); n >= 0 {
		return c.runtime.ListenerCounters[n].name
	}
	return ""
}
