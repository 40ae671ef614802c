package engine

import (
	"errors"
	"net"
	"slices"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/sock"
)

// This file is what listeners there are, and what has come by each. Which one that was
// a connection knows by a number, from 0. It is kept above its descriptor, so that it
// takes no memory: who was dialled has none.

// MaxListeners is the most listeners of an engine, and MaxFD the bound of descriptors
// that leaves room for their numbers.
const (
	MaxListeners = 32
	MaxFD        = 1 << 25
)

// Listener is where an engine listens.
type Listener struct {
	// Name is what it is called in the log.
	Name string
	// Network and Addr are as for net.Listen.
	Network, Addr string
	// Socket, if set, is a listener that the caller has made, used instead; the
	// engine owns it from then on.
	Socket net.Listener
	// Sockets, if there are any, are instead those of a process whose place this one takes;
	// the engine closes them.
	Sockets []net.Listener
	// MaxConns is the most connections at a time that have come by it; 0 for no
	// bound of its own.
	MaxConns int
	// Backlog is how many connections may wait for the accept; 0 leaves it to the
	// kernel.
	Backlog int
	// Control, if set, is called with each TCP socket of Addr before it is bound.
	Control sock.ControlFunc
}

// Listening is where an engine listens, and what has come there: Open connections, how
// many were Accepted, and how many Refused because of Listener.MaxConns.
type Listening struct {
	Name                    string
	Addr                    net.Addr
	Open, Accepted, Refused int64
}

// Where is where to listen; none if the engine only dials.
func (c *Config) Where() []Listener {
	if len(c.Listeners) == 0 && c.Addr != "" {
		return []Listener{{Network: c.Network, Addr: c.Addr}}
	}
	return c.Listeners
}

// Bind gives the sockets of a listener: n that share its port, or as often the one
// that the caller has made, prepared to be accepted from; or those that another process had,
// all of them, of which there may be more. The caller closes each, and the engine's own is
// closed by an error.
func (l Listener) Bind(n int, o sock.Options) (all []net.Listener, err error) {
	if m := len(l.Sockets); m > 0 {
		for i := range max(n, m) {
			all = append(all, l.Sockets[i%m])
		}
	} else if l.Socket != nil {
		all, err = slices.Repeat([]net.Listener{l.Socket}, n), sock.SetNonblockAndOptions(l.Socket)
	} else {
		all, err = sock.ListenShared(l.Network, l.Addr, n, l.Control)
	}
	for _, s := range all {
		if err == nil {
			err = errors.Join(o.SetOnListener(s), sock.SetBacklog(s, l.Backlog))
		}
	}
	if err != nil {
		CloseAll(all)
		return nil, err
	}
	return all, nil
}

// CloseAll closes listeners.
func CloseAll(all []net.Listener) {
	for _, l := range all {
		l.Close()
	}
}

// Entrance counts who has come by a listener. Its methods are safe for concurrent use.
type Entrance struct {
	name                    string
	addr                    net.Addr
	max                     int64 // 0 for no bound
	open, accepted, refused atomic.Int64
}

// NewEntrance makes that of a listener that listens at an address.
func NewEntrance(l Listener, at net.Addr) *Entrance {
	return &Entrance{name: l.Name, addr: at, max: int64(l.MaxConns)}
}

// errListenerFull is ErrTooManyConns because of Listener.MaxConns.
var errListenerFull = errors.New("listener full")

// enter counts one in, as accepted here unless it has moved, if there are not as many as there may
// be.
func (e *Entrance) enter(moved bool) bool {
	if e == nil {
		return true
	}
	for {
		n := e.open.Load()
		if e.max > 0 && n >= e.max {
			return false
		}
		if e.open.CompareAndSwap(n, n+1) {
			if !moved {
				e.accepted.Add(1)
			}
			return true
		}
	}
}

func (e *Entrance) leave() {
	if e != nil {
		e.open.Add(-1)
	}
}

// entrance is that of a listener, nil without one.
func (h *Host) entrance(listener int) *Entrance {
	if listener < 0 {
		return nil
	}
	return h.Entrances[listener]
}

// Adopted is the listener to which connections count that somebody else has accepted: the
// first one, -1 without any.
func (h *Host) Adopted() int { return min(len(h.Entrances), 1) - 1 }

// Listening is what they have counted.
func (h *Host) Listening() (all []Listening) {
	for _, e := range h.Entrances {
		all = append(all, Listening{Name: e.name, Addr: e.addr, Open: e.open.Load(), Accepted: e.accepted.Load(), Refused: e.refused.Load()})
	}
	return all
}

// SetListener notes by which listener a connection has come that is to be opened.
func (c *Conn) SetListener(number int) { c.fd = c.FD() | int32(number+1)*MaxFD }

// Listener is the number of the listener by which the connection has come, -1 if it
// was dialled.
func (c *Conn) Listener() int { return int(max(c.fd, 0)/MaxFD) - 1 }

// ListenerName is the name of that listener; empty if there is none.
func (c *Conn) ListenerName() string {
	if n := c.Listener(); n >= 0 {
		return c.host.Entrances[n].name
	}
	return ""
}
