package load

import (
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// link is the generator's part of a connection. It belongs to the connection's
// owner, but for ref, which is written once, under the shard's lock.
//
//	             answered            sent = answered + flying
//	messages ──────────┼──────────────────┼────────▶
//	                   │ pos bytes of the next answer have come
//	                   └──┤ at: the place in the text of the next byte
type link struct {
	ref      engine.Ref
	answered uint64
	id       uint32
	at       uint32
	pos      uint32
	flying   uint16
	shard    uint16
	state    uint8
}

// The bits of a link's state.
const (
	started  uint8 = 1 << iota // the traffic has begun
	finished                   // it has exchanged all its messages, or is closed
	mistaken                   // an answer was wrong
)

// slab is the memory of all links of a run, made once: the number of
// connections is known, so nothing grows and nothing is copied. Pages that no
// connection uses are never touched.
type slab struct {
	links []link
	// times are when messages in flight were sent: ring places for each
	// link, a power of two.
	times []time.Duration
	ring  int
	next  atomic.Int64
}

// A shard takes links from the slab in runs of linkRun, so that the links of
// two loops do not lie in one cache line.
const linkRun = 64

func newSlab(connections, pipeline, shards int) *slab {
	s := &slab{ring: 1}
	for s.ring < pipeline {
		s.ring *= 2
	}
	// Each shard can leave a run unfinished.
	s.links = make([]link, connections+shards*linkRun)
	s.times = make([]time.Duration, len(s.links)*s.ring)
	return s
}

// takeRun takes links from the slab: those from first to before end, none when
// it is used up.
func (s *slab) takeRun() (first, end int) {
	end = int(s.next.Add(linkRun))
	return min(end-linkRun, len(s.links)), min(end, len(s.links))
}

// sentAt is where the time of message number k of a link is kept.
func (s *slab) sentAt(l *link, k uint64) *time.Duration {
	return &s.times[int(l.id)*s.ring+int(k)&(s.ring-1)]
}
