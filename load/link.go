package load

import (
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/match"
	"github.com/myriad-go/myriad/internal/pacer"
	"github.com/myriad-go/myriad/internal/websocket"
)

// link is the generator's part of a connection. It belongs to the connection's
// owner, but for ref and number, which are written once, under the shard's lock,
// and for flying, due and state, which are written under it.
//
//	             answered            sent = answered + flying
//	messages ──────────┼──────────────────┼────────┼──▶
//	                   │                  └────────┘ due: have a time, and are to be sent
//	                   │ pos bytes of the next answer have come
//	                   └──┤ at: the place in the text of the next byte
type link struct {
	ref      engine.Ref
	answered uint64
	id       uint32 // its place in the slab
	number   uint32 // of the connection, in the order in which they were established
	at       uint32
	pos      uint32
	flying   uint16
	due      uint16
	shard    uint16
	state    uint16
}

// The bits of a link's state.
const (
	started  uint16 = 1 << iota // the traffic has begun
	finished                    // it has exchanged all its messages, or is closed
	mistaken                    // an answer was wrong
	gone                        // it is closed
	queued                      // it is in its shard's queue of those with room
	called                      // it is about to be nudged by the pacing
	expired                     // its lifetime is over
	deaf                        // it does not receive, because of its limit
	recovers                    // and is to receive again
	replied                     // the server has sent something
	entered                     // it is past its first message
	timed                       // a timer tells it of its plan
)

// slab is the memory of all links of a run, made once: the number of
// connections is known, so nothing grows and nothing is copied. Pages that no
// connection uses are never touched. What only some kinds of load need lies in
// slices of its own, nil where it is not needed.
type slab struct {
	links []link
	// intended are when messages in flight were to be sent, times when they
	// were: ring places for each link, a power of two. In a closed loop there
	// are only times.
	times, intended []time.Duration
	sizes           []uint32 // of those messages, where they differ
	ring            int
	plans           []pacer.Plan       // of links that have plans of their own
	tabs            []tab              // of links that have limits of bytes
	states          []match.State      // of answers, where they are told apart by a rule
	frames          []websocket.Reader // of WebSockets
	opened          []time.Duration    // when they were, until the first byte comes

	mu     sync.Mutex
	next   int      // links from here on have never been used
	owners []uint16 // the shards of the runs that have been taken
}

// tab is until when a link has used up what it may send and receive.
type tab struct{ sent, received time.Duration }

// A shard takes links from the slab in runs of linkRun, so that the links of
// two loops do not lie in one cache line.
const linkRun = 64

func newSlab(connections, pipeline, shards int) *slab {
	s := &slab{ring: 1}
	for s.ring < pipeline {
		s.ring *= 2
	}
	if connections == 0 {
		return s
	}
	// Each shard can leave a run unfinished.
	s.links = make([]link, connections+shards*linkRun)
	s.times = make([]time.Duration, len(s.links)*s.ring)
	return s
}

// takeRun takes links from the slab for a shard, which keeps them: those from first to
// before end, none when it is used up.
func (s *slab) takeRun(shard int) (first, end int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first = min(s.next, len(s.links))
	s.next = min(first+linkRun, len(s.links))
	if first < s.next {
		s.owners = append(s.owners, uint16(shard))
	}
	return first, s.next
}

// used is how many links have been taken, some of them perhaps not in use.
func (s *slab) used() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next
}

// each calls f for all links that are or were in use, under their shards' locks, while
// it says so.
func (s *slab) each(shards []*shard, f func(*shard, *link) bool) {
	s.mu.Lock()
	owners := s.owners[:len(s.owners):len(s.owners)]
	s.mu.Unlock()
	for i, owner := range owners {
		first := i * linkRun
		if !shards[owner].each(s.links[first:min(first+linkRun, len(s.links))], f) {
			return
		}
	}
}

// place is where things of message number k of a link are kept.
func (s *slab) place(l *link, k uint64) int { return int(l.id)*s.ring + int(k)&(s.ring-1) }

// sentAt is where the time of message number k of a link is kept.
func (s *slab) sentAt(l *link, k uint64) *time.Duration { return &s.times[s.place(l, k)] }

// furnish makes what a kind of load needs of its links.
func (s *slab) furnish(t *traffic) {
	n, ring := len(s.links), len(s.times)
	if t.open() {
		s.intended = make([]time.Duration, ring)
	}
	if t.mode == openEach {
		s.plans = make([]pacer.Plan, n)
	}
	if t.script.fixed == 0 {
		s.sizes = make([]uint32, ring)
	}
	if t.cfg.SendLimit > 0 || t.cfg.ReceiveLimit > 0 {
		s.tabs = make([]tab, n)
	}
	if t.script.ruled() {
		s.states = make([]match.State, n)
	}
	if t.script.frames != nil {
		s.frames = make([]websocket.Reader, n)
	}
	s.opened = make([]time.Duration, n)
}

// settle makes a link's place ready for it.
func (s *slab) settle(l *link, now time.Duration) {
	if s.plans != nil {
		s.plans[l.id] = pacer.Plan{}
	}
	if s.tabs != nil {
		s.tabs[l.id] = tab{}
	}
	if s.states != nil {
		s.states[l.id] = match.State{}
	}
	if s.frames != nil {
		s.frames[l.id] = websocket.Reader{}
	}
	s.opened[l.id] = now
}

// bytes is how many bytes n messages of a link have, from number k on.
func (s *slab) bytes(l *link, k uint64, n int, of *script) (bytes int64) {
	if of.fixed > 0 {
		return int64(n * of.fixed)
	}
	for i := range uint64(n) {
		bytes += int64(s.sizes[s.place(l, k+i)])
	}
	return bytes
}
