package faults

import (
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// The bounds of a Swarm.
const (
	maxSwarm = 1 << 20
	// connectRate is how many connections a swarm makes in a second unless told otherwise: so that they
	// cost a server some of its time, not all.
	connectRate = 10_000
)

// Swarm is many connections that all behave in the same way. One goroutine walks over them; its
// fields are set before Start. Attacks are in attacks.go.
type Swarm struct {
	// Target is whom to connect to.
	Target netip.AddrPort
	// Conns is how many connections there are at a time.
	Conns int
	// AtOnce makes all connections at once at the beginning, instead of 10,000 a second.
	AtOnce bool
	// Every is how often each connection acts: it sends, and it reads what is there. The first time is
	// when it is made. The default is a second.
	Every time.Duration
	// First is sent once, then Stream again and again, at most Piece bytes of it each time; by default
	// as much as the kernel takes of one Stream.
	First, Stream []byte
	Piece         int
	// Greedy connections act whenever the kernel lets them, not only every so often: they send as fast
	// as the server takes it, and read all that comes.
	Greedy bool
	// Ahead, if above 0, is how much Greedy connections have sent at most that has not come back.
	Ahead int
	// Deaf connections never read, and have a small receive buffer.
	Deaf bool
	// Acts, if above 0, is after how many acts a connection is closed.
	Acts int
	// Redial makes connections again that have ended, at their next turn.
	Redial bool
	// Most bounds how many connections are made in all, 0 for any number.
	Most int64

	mu       sync.Mutex // guards counts
	counts   SwarmCounts
	stop     chan struct{}
	stopping sync.Once
	ended    sync.WaitGroup
}

// SwarmCounts say what a swarm has done so far.
type SwarmCounts struct {
	// Open is how many connections it has now, connecting ones included; Connected is how many of all
	// have been established.
	Open, Connected int64
	// Made is how many times it tried to connect, Failed how many of them failed.
	Made, Failed int64
	// Lost is how many established connections the other side or the network has ended, Left how many
	// the swarm closed itself.
	Lost, Left int64
	// Answered is how many connections have received anything.
	Answered int64
	// Sent and Received are bytes.
	Sent, Received int64
}

// Counts is safe for concurrent use.
func (s *Swarm) Counts() SwarmCounts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// add adds to a counter.
func (s *Swarm) add(count *int64, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*count += int64(n)
}

// Start begins to connect and returns at once.
func (s *Swarm) Start() error {
	if s.Conns < 1 || s.Conns > maxSwarm || !s.Target.IsValid() {
		return fmt.Errorf("faults: a Swarm of %d for %v; expected 1 to %d for the address of a server", s.Conns, s.Target, maxSwarm)
	}
	if s.Every == 0 {
		s.Every = time.Second
	}
	if s.Most == 0 {
		s.Most = 1 << 62
	}
	s.stop = make(chan struct{})
	return s.start()
}

// Stop closes all connections, with a reset, and waits for that. Further calls do nothing.
func (s *Swarm) Stop() {
	s.stopping.Do(func() { close(s.stop) })
	s.ended.Wait()
}
