package faults

import (
	"fmt"
	"net/netip"
	"sync"
	"time"
)

const (
	maxSwarmConns = 1 << 20
	// connectRate is the default number of new connections per second.
	connectRate = 10_000
)

// Swarm is a set of connections that all behave in the same way, driven by one goroutine. Set the fields before Start.
// The functions in attacks.go create swarms.
type Swarm struct {
	// Target is the server's address.
	Target netip.AddrPort
	// Source is the local IPv4 address of the connections. By default, the kernel selects one.
	Source netip.Addr
	// OwnTable puts the connections in a separate descriptor table. It cannot be combined with FullSpeed.
	OwnTable bool
	// Conns is the number of simultaneous connections.
	Conns int
	// ConnectAtOnce makes all connections immediately. By default, 10,000 are made per second.
	ConnectAtOnce bool
	// Interval is the time between two acts of a connection. In an act, the connection sends, and reads what has
	// arrived. The default is a second.
	Interval time.Duration
	// First is sent once per connection. Stream is then sent repeatedly, at most PieceSize bytes in each act. If
	// PieceSize is 0, an act sends as much as the kernel accepts.
	First, Stream []byte
	PieceSize     int
	// FullSpeed makes connections act whenever the kernel allows it, not only at each Interval.
	FullSpeed bool
	// MaxInFlight, if above 0, limits the bytes sent minus the bytes received on each FullSpeed connection.
	MaxInFlight int
	// NeverReads makes connections never read, and gives them a small receive buffer.
	NeverReads bool
	// SocketBuffers, if above 0, is the size of the send and receive buffers of each connection.
	SocketBuffers int
	// MaxActs, if above 0, is the number of acts after which a connection is closed.
	MaxActs int
	// Redial makes an ended connection reconnect when its next act is due.
	Redial bool
	// MaxDials limits the total number of connection attempts. 0 means no limit.
	MaxDials int64

	mu       sync.Mutex // guards counts
	counts   SwarmCounts
	stop     chan struct{}
	stopping sync.Once
	ended    sync.WaitGroup
}

// SwarmCounts are the counters of a swarm.
type SwarmCounts struct {
	// Open is the current number of connections, including connecting ones. Connected counts established ones.
	Open, Connected int64
	// Dials counts attempts to connect, and Failed those that failed.
	Dials, Failed int64
	// Lost counts established connections ended by the peer or the network, Closed those ended by the swarm.
	Lost, Closed int64
	// Answered counts connections that have received at least one byte.
	Answered int64
	// Sent and Received are in bytes.
	Sent, Received int64
}

func (s *Swarm) Counts() SwarmCounts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

func (s *Swarm) addCount(count *int64, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*count += int64(n)
}

// Start starts to connect. It does not wait for the connections.
func (s *Swarm) Start() error {
	if s.Conns < 1 || s.Conns > maxSwarmConns || !s.Target.IsValid() {
		return fmt.Errorf("faults: Swarm has %d connections to %v; expected 1 to %d to a valid address", s.Conns, s.Target, maxSwarmConns)
	}
	if s.Interval == 0 {
		s.Interval = time.Second
	}
	if s.MaxDials == 0 {
		s.MaxDials = 1 << 62
	}
	s.stop = make(chan struct{})
	return s.startLoop()
}

// Stop resets all connections and waits until that is done. Further calls have no effect.
func (s *Swarm) Stop() {
	s.stopping.Do(func() { close(s.stop) })
	s.ended.Wait()
}
