package loop

import (
	"sync"

	"github.com/myriad-go/myriad/internal/engine"
)

// chunkSize is how many connections a slab grows by: 512 of 96 bytes fill six of
// the pages of Go's allocator, and are too large for it to put 8 bytes of its own
// before them. Entries that have never been used take no memory: nobody writes
// there, and the pages are new.
const chunkSize = 512

// slab holds a loop's connections densely, numbered by slot. It grows by
// chunks, so that an entry never moves: a Ref may point to it for ever.
type slab struct {
	host   *engine.Runtime
	chunks []*chunk
	given  []given // chunks that have been given back
	free   link    // the first entry that can be taken
	freed  link    // the first of those freed since the last recycle
	oldest link    // the last of those
	used   int
	made   uint32 // slots below have been used at some time
}

// chunk is so many entries.
type chunk [chunkSize]engine.Conn

// given is a chunk that has been given back: nobody has the slots, and who gets them begins with
// a generation that none of them has had.
type given struct {
	chunk      int
	generation uint32
}

// nobody is in the place of each chunk that has been given back. Nothing is written there.
var nobody = sync.OnceValue(func() *chunk {
	n := new(chunk)
	for i := range n {
		n[i].SetFD(endOfLinks)
	}
	return n
})

// link names an entry by its slot plus one; 0 is none. Free entries are linked by
// what would be their descriptors, so that the list takes no memory of its own.
type link uint32

// endOfLinks is the descriptor of a free entry without another one behind it. With
// one it is less by the link.
const endOfLinks = -1

// push puts an entry in front of a list.
func push(first *link, c *engine.Conn) {
	c.SetFD(endOfLinks - int32(*first))
	*first = link(c.Slot() + 1)
}

// take gives a free entry.
func (s *slab) take() *engine.Conn {
	s.used++
	if s.free == 0 && len(s.given) > 0 {
		s.takeBack()
	}
	if s.free == 0 {
		return s.make()
	}
	c := s.at(uint32(s.free) - 1)
	s.free = link(endOfLinks - c.FD())
	return c
}

// make gives an entry that has never been used.
func (s *slab) make() *engine.Conn {
	if int(s.made) == len(s.chunks)*chunkSize {
		s.chunks = append(s.chunks, new(chunk))
	}
	c := s.at(s.made)
	c.Bind(s.host, s.made, 0)
	c.SetFD(endOfLinks)
	s.made++
	return c
}

// at finds an entry by its slot, which must be one that take has given.
func (s *slab) at(slot uint32) *engine.Conn {
	return &s.chunks[slot/chunkSize][slot%chunkSize]
}

// put frees an entry. It is not taken again before recycle, so that events
// that were reported for it in the same batch find nobody.
func (s *slab) put(c *engine.Conn) {
	s.used--
	push(&s.freed, c)
	if s.oldest == 0 {
		s.oldest = s.freed
	}
}

// recycle has entries that were freed taken again, the last one first.
func (s *slab) recycle() {
	if s.freed == 0 {
		return
	}
	s.at(uint32(s.oldest) - 1).SetFD(endOfLinks - int32(s.free))
	s.free, s.freed, s.oldest = s.freed, 0, 0
}

// giveBack lets go of chunks that have nobody in use, and says how many. Nothing is freed that
// is not recycled.
func (s *slab) giveBack() (n int) {
	for i, c := range s.chunks {
		if c == nobody() || uint32(i+1)*chunkSize > s.made || c.used() {
			continue
		}
		last := uint32(0)
		for k := range c {
			last = max(last, c[k].Generation())
		}
		s.chunks[i] = nobody()
		s.given = append(s.given, given{i, last})
		n++
	}
	if n == 0 {
		return 0
	}
	s.free = 0
	for slot := s.made; slot > 0; slot-- {
		if c := s.at(slot - 1); c.FD() < 0 && s.chunks[(slot-1)/chunkSize] != nobody() {
			push(&s.free, c)
		}
	}
	return n
}

func (c *chunk) used() bool {
	for i := range c {
		if c[i].FD() >= 0 {
			return true
		}
	}
	return false
}

// takeBack makes a chunk anew that was given back.
func (s *slab) takeBack() {
	last := len(s.given) - 1
	g := s.given[last]
	s.given = s.given[:last]
	c := new(chunk)
	s.chunks[g.chunk] = c
	for i := chunkSize - 1; i >= 0; i-- {
		c[i].Bind(s.host, uint32(g.chunk*chunkSize+i), g.generation)
		push(&s.free, &c[i])
	}
}

// each calls f for every entry in use of the slots from..to-1.
func (s *slab) each(from, to uint32, f func(*engine.Conn)) {
	for slot := from; slot < min(to, s.made); slot++ {
		if c := s.at(slot); c.FD() >= 0 {
			f(c)
		}
	}
}
