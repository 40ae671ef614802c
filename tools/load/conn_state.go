package load

import (
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tools/internal/match"
	"github.com/myriad-go/myriad/tools/internal/pacer"
	"github.com/myriad-go/myriad/tools/internal/websocket"
)

// connState is the generator's part of a connection. It belongs to the connection's
// owner, but for number, which is written once, under the shard's lock, and for ref,
// inFlight, due, resend and state, which are written under it.
//
//	             answered            sent = answered + inFlight
//	messages ──────────┼──────────────────┼────────┼──▶
//	                   │                  └────────┘ due: have a time, and are to be sent
//	                   └─ pos bytes of the next answer have come
type connState struct {
	ref      engine.Ref
	answered uint64
	id       uint32 // its place in the table
	number   uint32 // of the connection, in the order in which they were established
	pos      uint32
	inFlight uint16
	due      uint16
	resend   uint16 // of those that are due: they were sent on the last socket, too
	shard    uint16
	state    uint16
}

// The bits of a connection's state.
const (
	started      uint16 = 1 << iota // the traffic has begun
	finished                        // it has exchanged all its messages, or is closed
	mistaken                        // an answer was wrong
	gone                            // it is closed
	queued                          // it is in its shard's queue of those with room
	called                          // it is about to be nudged by the pacing
	expired                         // its lifetime is over
	replied                         // the server has sent something
	entered                         // it is past its first message
	timed                           // a timer tells it of its plan
	reconnecting                    // its server has closed in order, and no other socket is established
)

// connTable is the memory of all connections of a run, made once: the number of
// connections is known, so nothing grows and nothing is copied. Pages that no
// connection uses are never touched. What only some kinds of load need lies in
// slices of its own, nil where it is not needed.
type connTable struct {
	conns []connState
	// intended are when messages in flight were to be sent, times when they
	// were: ring places for each connection, a power of two. In a closed loop there
	// are only times.
	times, intended []time.Duration
	sizes           []uint32 // of those messages, where they differ
	ring            int
	plans           []pacer.Plan       // of connections that have plans of their own
	states          []match.State      // of answers, where a rule delimits them
	frames          []websocket.Reader // of WebSockets
	opened          []time.Duration    // when they were, until the first byte comes

	mu     sync.Mutex
	next   int      // connections from here on have never been used
	owners []uint16 // the shards of the runs that have been taken
}

// A shard takes connections from the table in runs of tableRun, so that the connections of
// two loops do not lie in one cache line.
const tableRun = 64

func newConnTable(connections, pipeline, shards int) *connTable {
	s := &connTable{ring: 1}
	for s.ring < pipeline {
		s.ring *= 2
	}
	if connections == 0 {
		return s
	}
	// Each shard can leave a run unfinished.
	s.conns = make([]connState, connections+shards*tableRun)
	s.times = make([]time.Duration, len(s.conns)*s.ring)
	return s
}

// takeRun takes connections from the table for a shard, which keeps them: those from first to
// before end, none when it is used up.
func (s *connTable) takeRun(shard int) (first, end int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first = min(s.next, len(s.conns))
	s.next = min(first+tableRun, len(s.conns))
	if first < s.next {
		s.owners = append(s.owners, uint16(shard))
	}
	return first, s.next
}

// used is how many connections have been taken, some of them perhaps not in use.
func (s *connTable) used() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next
}

// each calls f for all connections that are or were in use, under their shards' locks, while
// it says so.
func (s *connTable) each(shards []*shard, f func(*shard, *connState) bool) {
	s.mu.Lock()
	owners := s.owners[:len(s.owners):len(s.owners)]
	s.mu.Unlock()
	for i, owner := range owners {
		first := i * tableRun
		if !shards[owner].each(s.conns[first:min(first+tableRun, len(s.conns))], f) {
			return
		}
	}
}

// place is where things of message number k of a connection are kept.
func (s *connTable) place(l *connState, k uint64) int { return int(l.id)*s.ring + int(k)&(s.ring-1) }

// sentAt is where the time of message number k of a connection is kept.
func (s *connTable) sentAt(l *connState, k uint64) *time.Duration { return &s.times[s.place(l, k)] }

// alloc makes what a kind of load needs of its connections.
func (s *connTable) alloc(t *traffic) {
	n, ring := len(s.conns), len(s.times)
	if t.open() {
		s.intended = make([]time.Duration, ring)
	}
	if t.mode == openEach {
		s.plans = make([]pacer.Plan, n)
	}
	if t.script.fixed == 0 {
		s.sizes = make([]uint32, ring)
	}
	if t.script.ruled() {
		s.states = make([]match.State, n)
	}
	if t.script.frames != nil {
		s.frames = make([]websocket.Reader, n)
	}
	s.opened = make([]time.Duration, n)
}

// reset makes a connection's place ready for it.
func (s *connTable) reset(l *connState, now time.Duration) {
	if s.plans != nil {
		s.plans[l.id] = pacer.Plan{}
	}
	if s.states != nil {
		s.states[l.id] = match.State{}
	}
	if s.frames != nil {
		s.frames[l.id] = websocket.Reader{}
	}
	s.opened[l.id] = now
}

// bytes is how many bytes n messages of a connection have, from number k on.
func (s *connTable) bytes(l *connState, k uint64, n int, of *script) (bytes int64) {
	if of.fixed > 0 {
		return int64(n * of.fixed)
	}
	for i := range uint64(n) {
		bytes += int64(s.sizes[s.place(l, k+i)])
	}
	return bytes
}
