// Package upgrade is the protocol between a server process and its successor. The processes use a socket pair that the
// new process inherits, so no other process can take part.
//
//	old                                     new
//	starts the new process
//	hello: version, listeners         ──▶
//	listeners: their descriptors      ──▶   listens, starts its engine
//	                                  ◀──   ready: loops; or failed: reason
//	queues broadcasts
//	channels: between their loops,
//	handler state, broadcast socket   ──▶   restores the state, takes over connections
//	                                  ◀──   taking
//	(connections move over the channels; then queued and new broadcasts of either process go
//	over the broadcast socket, until one of them exits)
//	alive, regularly                  ──▶
//	                                  ◀──   alive
//	done: counters                    ──▶   serves alone
//	drains the rest, exits
//
// Nothing has changed for the old process until it reads "taking". Until then, it can abort and continue to serve, and
// the new process exits. If the old process dies, the new one continues with the connections it has received.
package upgrade

import (
	"errors"
	"os"
	"time"

	"github.com/myriad-go/myriad/internal/secure"
)

const (
	// Version is the version of this protocol, including the connection records.
	Version = 4
	// upgradeEnv is the environment variable with the number of the new process's control descriptor.
	upgradeEnv = "MYRIAD_UPGRADE"
	// Timeout is how long each process waits for a reply of the other.
	Timeout        = 30 * time.Second
	maxDescriptors = 4096
	// maxChannels limits the number of channels if every pair of loops has its own.
	maxChannels = 1024
)

// Listener describes a listener that the old process passes to the new process.
type Listener struct {
	Name          string
	Network, Addr string
	OwnHandler    bool               `json:",omitempty"` // the listener does not use the server's handler
	Sockets       int                // number of sockets that share the port
	Tickets       []secure.TicketKey `json:",omitempty"` // TLS session ticket keys
}

// Hello is the first message of the old process.
type Hello struct {
	Version   int
	PID       int
	Paused    bool // an operator has paused accepting
	Listeners []Listener
	// WorkerTickets are the keys from which worker processes derive the listeners' ticket keys.
	WorkerTickets []secure.TicketKey `json:",omitempty"`
	// Activated are the names of the service manager's sockets, whose descriptors follow those of the listeners.
	Activated []string   `json:",omitempty"`
	Files     []*os.File `json:"-"`
	// Kept means that the last descriptor is the status pipe. The first process reads the pipe and does not exit.
	Kept bool `json:",omitempty"`
}

type Ready struct {
	Version int
	Loops   int    // number of channels that the new process needs; 0 means 1
	Failed  string // why the new process cannot serve; "" if it can
}

// Channels is the message that starts the handoff. Its descriptors are N channels, followed by a file if State is set
// and a socket if Link is set.
type Channels struct {
	N     int
	State bool // a file with the handler's state
	Link  bool // a socket for broadcasts of the other process
}

// Done is the last message of the old process. The old process sends it when the handoff is complete.
type Done struct {
	// Counters are the old process's monotonic counters by name; see engine.Counts.NonzeroCountersByName.
	Counters map[string]int64
	// Listeners are the counters of the old process's listeners, in the same order as Hello.Listeners.
	Listeners []ListenerCounts
}

// ListenerCounts are the monotonic counters of a listener.
type ListenerCounts struct {
	Network, Addr     string
	Accepted, Refused int64
}

// ErrUnsupported is returned on systems other than Linux.
var ErrUnsupported = errors.New("handing connections to another process needs Linux")
