// Package upgrade is how a process and the one that is to take its place speak with each
// other: over a socket pair of which the new process inherits one end, so that nobody else
// can be at it.
//
//	old                                     new
//	starts the new process
//	hello: version, listeners         ──▶
//	listeners: their descriptors      ──▶   listens, starts its engine
//	                                  ◀──   ready: loops; or failed: why
//	holds what is published
//	channels: between their loops,
//	the handler's state, a link       ──▶   restores the state, takes connections that come
//	                                  ◀──   taking
//	(connections go by the channels; then, by the link, what was held, and what is published in
//	either from then on, until one of them ends)
//	alive, now and then               ──▶
//	                                  ◀──   alive
//	done: counters                    ──▶   is the only one now
//	drains what is left, ends
//
// Until the old process has read "taking" nothing has changed for it: it can abort, and goes
// on; the new one ends then. If the old process ends without a word, the new one goes on with
// what it has.
package upgrade

import (
	"errors"
	"os"
	"time"

	"github.com/myriad-go/myriad/internal/secure"
)

const (
	// Version is of this protocol, connections' records included.
	Version = 2
	// variable has the number of the descriptor, in the environment of the new process.
	variable = "MYRIAD_UPGRADE"
	// Timeout is how long either side waits for an answer.
	Timeout = 30 * time.Second
	// maxDescriptors is the most that a message's descriptors are, all parts together.
	maxDescriptors = 4096
	// maxChannels is the most channels that connect each loop with each of the other side's.
	maxChannels = 1024
)

// Listener is one that is handed over.
type Listener struct {
	Name          string
	Network, Addr string
	Sockets       int                // that share its port
	Tickets       []secure.TicketKey `json:",omitempty"` // of TLS
}

// Hello is what the old process says first.
type Hello struct {
	Version   int
	PID       int
	Paused    bool // nothing is accepted, because an operator has said so
	Listeners []Listener
	// Activated are the names of the service manager's sockets, whose descriptors are behind
	// those of the listeners.
	Activated []string   `json:",omitempty"`
	Files     []*os.File `json:"-"`
	// Kept says that the last descriptor tells the first process who serves.
	Kept bool `json:",omitempty"`
}

// Ready is what the new process says when it serves.
type Ready struct {
	Version int
	Loops   int    // for each of which it wants a channel's end; 0 is 1
	Failed  string // why it does not serve
}

// Channels are the descriptors with which the hand-over begins: N channels, and behind them
// those of which it says that they come, in this order.
type Channels struct {
	N     int
	State bool // a file with the handler's state
	Link  bool // a socket by which what is published goes to the other process
}

// Done is what the old process says when it has handed over what it can.
type Done struct {
	// Counters are its counts so far that only grow, by name: see engine.Counts.Named.
	Counters map[string]int64
	// Listeners are what has come by each of its listeners, in the order of Hello.
	Listeners []ListenerCounts
}

// ListenerCounts are the counts of a listener that only grow.
type ListenerCounts struct {
	Network, Addr     string
	Accepted, Refused int64
}

// ErrUnsupported says that this system can't.
var ErrUnsupported = errors.New("connections can be handed to another process on Linux only")
