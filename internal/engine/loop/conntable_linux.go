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

// connTable holds a loop's connections densely, numbered by slot. It grows by
// chunks, so that an entry never moves: a Ref may point to it for ever.
type connTable struct {
	host         *engine.Host
	chunks       []*chunk
	freedChunks  []freedChunk // chunks that have been given back
	freeList     slotLink     // the first entry that can be taken
	releasedList slotLink     // the first of those freed since the last recycle
	releasedTail slotLink     // the last of those
	used         int
	slotCount    uint32 // slots below have been used at some time
}

// chunk is so many entries.
type chunk [chunkSize]engine.Conn

// freedChunk is a chunk that has been given back: nobody has the slots, and who gets them begins with
// a generation that none of them has had.
type freedChunk struct {
	index      int
	generation uint32
}

// emptyChunk is in the place of each chunk that has been given back. Nothing is written there.
var emptyChunk = sync.OnceValue(func() *chunk {
	n := new(chunk)
	for i := range n {
		n[i].SetFD(endOfList)
	}
	return n
})

// slotLink names an entry by its slot plus one; 0 is none. Free entries are linked by
// what would be their descriptors, so that the list takes no memory of its own.
type slotLink uint32

// endOfList is the descriptor of a free entry without another one behind it. With
// one it is less by the link.
const endOfList = -1

// pushFree puts an entry in front of a list.
func pushFree(list *slotLink, c *engine.Conn) {
	c.SetFD(endOfList - int32(*list))
	*list = slotLink(c.Slot() + 1)
}

// acquireConn gives a free entry.
func (s *connTable) acquireConn() *engine.Conn {
	s.used++
	if s.freeList == 0 && len(s.freedChunks) > 0 {
		s.restoreChunk()
	}
	if s.freeList == 0 {
		return s.appendConn()
	}
	c := s.conn(uint32(s.freeList) - 1)
	s.freeList = slotLink(endOfList - c.FD())
	return c
}

// appendConn gives an entry that has never been used.
func (s *connTable) appendConn() *engine.Conn {
	if int(s.slotCount) == len(s.chunks)*chunkSize {
		s.chunks = append(s.chunks, new(chunk))
	}
	c := s.conn(s.slotCount)
	c.Bind(s.host, s.slotCount, 0)
	c.SetFD(endOfList)
	s.slotCount++
	return c
}

// conn finds an entry by its slot, which must be one that take has given.
func (s *connTable) conn(slot uint32) *engine.Conn {
	return &s.chunks[slot/chunkSize][slot%chunkSize]
}

// releaseConn frees an entry. It is not taken again before recycle, so that events
// that were reported for it in the same batch find nobody.
func (s *connTable) releaseConn(c *engine.Conn) {
	s.used--
	pushFree(&s.releasedList, c)
	if s.releasedTail == 0 {
		s.releasedTail = s.releasedList
	}
}

// recycleReleased has entries that were freed taken again, the last one first.
func (s *connTable) recycleReleased() {
	if s.releasedList == 0 {
		return
	}
	s.conn(uint32(s.releasedTail) - 1).SetFD(endOfList - int32(s.freeList))
	s.freeList, s.releasedList, s.releasedTail = s.releasedList, 0, 0
}

// freeUnusedChunks lets go of chunks that have nobody in use, and says how many. Nothing is freed that
// is not recycled.
func (s *connTable) freeUnusedChunks() (n int) {
	for i, c := range s.chunks {
		if c == emptyChunk() || uint32(i+1)*chunkSize > s.slotCount || c.inUse() {
			continue
		}
		maxGeneration := uint32(0)
		for k := range c {
			maxGeneration = max(maxGeneration, c[k].Generation())
		}
		s.chunks[i] = emptyChunk()
		s.freedChunks = append(s.freedChunks, freedChunk{i, maxGeneration})
		n++
	}
	if n == 0 {
		return 0
	}
	s.freeList = 0
	for slot := s.slotCount; slot > 0; slot-- {
		if c := s.conn(slot - 1); c.FD() < 0 && s.chunks[(slot-1)/chunkSize] != emptyChunk() {
			pushFree(&s.freeList, c)
		}
	}
	return n
}

func (c *chunk) inUse() bool {
	for i := range c {
		if c[i].FD() >= 0 {
			return true
		}
	}
	return false
}

// resumeReturned makes a chunk anew that was given back.
func (s *connTable) restoreChunk() {
	last := len(s.freedChunks) - 1
	freed := s.freedChunks[last]
	s.freedChunks = s.freedChunks[:last]
	c := new(chunk)
	s.chunks[freed.index] = c
	for i := chunkSize - 1; i >= 0; i-- {
		c[i].Bind(s.host, uint32(freed.index*chunkSize+i), freed.generation)
		pushFree(&s.freeList, &c[i])
	}
}

// forEach calls f for every entry in use of the slots from..to-1.
func (s *connTable) forEach(fromSlot, endSlot uint32, visit func(*engine.Conn)) {
	for slot := fromSlot; slot < min(endSlot, s.slotCount); slot++ {
		if c := s.conn(slot); c.FD() >= 0 {
			visit(c)
		}
	}
}
