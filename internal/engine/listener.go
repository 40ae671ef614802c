package engine

import (
	"errors"
	"net"
	"slices"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/sock"
)

// This file contains the listeners and their counters. Listeners are numbered from 0. A connection stores its
// listener's number in the high bits of its descriptor, which takes no extra memory. Dialled connections have no
// listener.

// Limits of listeners and descriptors. An engine has at most MaxListeners listeners. Descriptors are less than MaxFD.
const (
	MaxListeners = 32
	MaxFD        = 1 << 25
)

type Listener struct {
	Name          string
	Network, Addr string
	// Socket, if set, is used instead of a new socket for Addr. The engine closes Socket.
	Socket net.Listener
	// Sockets, if not empty, contains listening sockets that this process has inherited from its predecessor. Addr and
	// Socket are then ignored. The engine closes Sockets.
	Sockets []net.Listener
	// MaxConns limits the open connections of this listener; 0 means no limit.
	MaxConns int
	// Backlog is the length of the accept queue. If it is 0, the kernel chooses.
	Backlog int
	// Control, if set, is called with each TCP socket of Addr before it is bound.
	Control sock.ControlFunc
}

// ListenerStats counts the connections of a listener. Refused counts only the connections that were refused because of
// Listener.MaxConns.
type ListenerStats struct {
	Name                    string
	Addr                    net.Addr
	Open, Accepted, Refused int64
}

// EffectiveListeners returns c.Listeners. If c.Listeners is empty, the result is a single listener for c.Addr. If
// c.Addr is not set either, the result is empty.
func (c *Config) EffectiveListeners() []Listener {
	if len(c.Listeners) == 0 && c.Addr != "" {
		return []Listener{{Network: c.Network, Addr: c.Addr}}
	}
	return c.Listeners
}

// OpenSockets returns at least minSockets listening sockets. If l.Sockets or l.Socket is set, it returns these sockets,
// possibly several times. Otherwise, it opens new sockets that share a port.
//
// The caller must close the sockets. If OpenSockets fails, it closes all of them.
func (l Listener) OpenSockets(minSockets int, opts sock.Options) (sockets []net.Listener, err error) {
	if m := len(l.Sockets); m > 0 {
		for i := range max(minSockets, m) {
			sockets = append(sockets, l.Sockets[i%m])
		}
	} else if l.Socket != nil {
		sockets, err = slices.Repeat([]net.Listener{l.Socket}, minSockets), sock.SetNonblockNoDelayKeepalive(l.Socket)
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

func NewListenerCounters(l Listener, addr net.Addr) *ListenerCounters {
	return &ListenerCounters{name: l.Name, addr: addr, maxConns: int64(l.MaxConns)}
}

// errListenerFull means that a listener already has MaxConns open connections. Other packages get ErrTooManyConns
// instead.
var errListenerFull = errors.New("listener full")

// acquireConnSlot counts a new connection as open, unless the listener already has MaxConns open connections. It also
// counts the connection as accepted, unless skipAcceptedCount is set.
func (e *ListenerCounters) acquireConnSlot(skipAcceptedCount bool) (acquired bool) {
	if e == nil {
		return true
	}
	for {
		n := e.openConns.Load()
		if e.maxConns > 0 && n >= e.maxConns {
			return false
		}
		if e.openConns.CompareAndSwap(n, n+1) {
			if !skipAcceptedCount {
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

// listenerCounters returns the counters of a listener, or nil if listenerNumber is negative.
func (rt *Runtime) listenerCounters(listenerNumber int) *ListenerCounters {
	if listenerNumber < 0 {
		return nil
	}
	return rt.ListenerCounters[listenerNumber]
}

// ListenerNumberForAdopted returns the listener number of adopted connections for which the caller has not chosen a
// listener. The number is 0, or -1 if there are no listeners.
func (rt *Runtime) ListenerNumberForAdopted() int { return min(len(rt.ListenerCounters), 1) - 1 }

func (rt *Runtime) ListenerStats() (all []ListenerStats) {
	for _, e := range rt.ListenerCounters {
		all = append(all, ListenerStats{Name: e.name, Addr: e.addr, Open: e.openConns.Load(), Accepted: e.accepted.Load(), Refused: e.refused.Load()})
	}
	return all
}

// SetListener stores the listener's number. It must be called before the connection is opened.
func (c *Conn) SetListener(number int) { c.fd = c.FD() | int32(number+1)*MaxFD }

// Listener returns the number of the connection's listener, or -1 if the connection has none, for example because it
// was dialled.
func (c *Conn) Listener() int { return int(max(c.fd, 0)/MaxFD) - 1 }

// callbacks returns the Config with the callbacks for the connection's listener.
func (c *Conn) callbacks() *Config {
	if all := c.runtime.ListenerCallbacks; len(all) > 0 {
		return all[c.Listener()+1]
	}
	return &c.runtime.Config
}

// ListenerName returns the name of the connection's listener, or "" for a dialled connection.
func (c *Conn) ListenerName() string {
	if n := c.Listener(); n >= 0 {
		return c.runtime.ListenerCounters[n].name
	}
	return ""
}
