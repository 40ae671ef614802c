package faults

import (
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// Limits of a Swarm.
const (
	maxSwarmConns = 1 << 20
	// connectRate is the default number of connections per second: they cost a server some of its
	// time, but not all.
	connectRate = 10_000
)

// Swarm is a set of connections that all behave in the same way, driven by one goroutine. Set the fields
// before Start. attacks.go contains attacks.
type Swarm struct {
	// Target is the server's address.
	Target netip.AddrPort
	// Conns is the number of simultaneous connections.
	Conns int
	// ConnectAtOnce makes all connections immediately, instead of 10,000 per second.
	ConnectAtOnce bool
	// Interval is how often each connection acts: it sends, and reads what has arrived. It first acts
	// when it is made. The default is a second.
	Interval time.Duration
	// First is sent once, then Stream repeatedly, at most PieceSize bytes in each act; 0 means as much
	// of a Stream as the kernel accepts.
	First, Stream []byte
	PieceSize     int
	// FullSpeed makes connections act whenever the kernel allows it, not only every Interval.
	FullSpeed bool
	// MaxInFlight, if above 0, limits the bytes that FullSpeed connections have sent and not received
	// back.
	MaxInFlight int
	// NeverReads makes connections never read, and gives them a small receive buffer.
	NeverReads bool
	// MaxActs, if above 0, closes a connection after that many acts.
	MaxActs int
	// Redial reconnects ended connections when they would act.
	Redial bool
	// MaxDials limits the connections made in total; 0 means no limit.
	MaxDials int64

	mu       sync.Mutex // guards counts
	counts   SwarmCounts
	stop     chan struct{}
	stopping sync.Once
	ended    sync.WaitGroup
}

// SwarmCounts are the counters of a swarm.
type SwarmCounts struct {
	// Open is the number of connections now, including those still connecting; Connected counts those
	// ever established.
	Open, Connected int64
	// Dials counts attempts to connect, and Failed those that failed.
	Dials, Failed int64
	// Lost counts established connections ended by the peer or the network, Closed those closed by the
	// swarm.
	Lost, Closed int64
	// Answered counts connections that have received anything.
	Answered int64
	// Sent and Received are in bytes.
	Sent, Received int64
}

// Counts returns the counters. It is safe for concurrent use.
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

// Start starts connecting and does not wait.
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

// Stop resets all connections and waits for that. Further calls have no effect.
func (s *Swarm) Stop() {
	s.stopping.Do(func() { close(s.stop) })
	s.ended.Wait()
}
