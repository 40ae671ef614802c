// Package upgrade is how a process and the one that is to take its place speak with each
// other: over a socket pair of which the new process inherits one end, so that nobody else
// can be at it.
//
//	old                                     new
//	starts the new process
//	hello: version, listeners         ──▶
//	listeners: their descriptors      ──▶   listens, starts its engine
//	                                  ◀──   ready: loops; or failed: why
//	channels: between their loops     ──▶   takes connections that come by them
//	                                  ◀──   taking
//	(connections go by the channels)
//	alive, now and then               ──▶
//	                                  ◀──   alive
//	done                              ──▶   is the only one now
//	drains what is left, ends
//
// Until the old process has read "taking" nothing has changed for it: it can abort, and goes
// on; the new one ends then. If the old process ends without a word, the new one goes on with
// what it has.
package upgrade

import (
	"errors"
	"time"

	"github.com/myriad-go/myriad/internal/secure"
)

const (
	// Version is of this protocol, connections' records included.
	Version = 1
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
}

// Ready is what the new process says when it serves.
type Ready struct {
	Version int
	Loops   int    // for each of which it wants a channel's end; 0 is 1
	Failed  string // why it does not serve
}

// ErrUnsupported says that this system can't.
var ErrUnsupported = errors.New("connections can be handed to another process on Linux only")
