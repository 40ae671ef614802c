package loop

import (
	"sync"

	"github.com/myriad-go/myriad/internal/engine"
)

// chunkSize is the number of entries by which a connTable grows. 512 entries of 96 bytes fill exactly six pages of Go's
// allocator, which adds no 8-byte header at that size. Unused entries take no memory, because their pages are never
// written.
const chunkSize = 512

// connTable stores a loop's connections by slot. It grows by chunks: an entry never moves, so Refs may point to it.
type connTable struct {
	host         *engine.Runtime
	chunks       []*connChunk
	freedChunks  []freedChunk
	freeList     slotLink // the first free entry
	releasedList slotLink // the first entry released since the last makeReleasedReusable
	releasedTail slotLink // the last of them
	used         int      // slots in use
	slotCount    uint32   // slots below have been used at least once
}

type connChunk [chunkSize]engine.Conn

// freedChunk is a chunk whose memory was freed. generation is the highest generation of its slots. When the chunk is
// restored, all of its slots start with this generation.
type freedChunk struct {
	index      int
	generation uint32
}

// emptyChunk replaces each freed chunk in the table. It is never written.
var emptyChunk = sync.OnceValue(func() *connChunk {
	n := new(connChunk)
	for i := range n {
		n[i].SetFD(endOfList)
	}
	return n
})

// slotLink is 1 + the slot of an entry, or 0 for no entry. The descriptor fields of free entries contain the links
// between them, so a list of free entries needs no further memory.
type slotLink uint32

// endOfList is the value in the descriptor field of the last entry of a list. In every other entry, the field contains
// endOfList minus the slotLink of the next entry.
const endOfList = -1

func pushFreeSlot(list *slotLink, c *engine.Conn) {
	c.SetFD(endOfList - int32(*list))
	*list = slotLink(c.Slot() + 1)
}

func (s *connTable) acquireConn() *engine.Conn {
	s.used++
	if s.freeList == 0 && len(s.freedChunks) > 0 {
		s.restoreLastFreedChunk()
	}
	if s.freeList == 0 {
		return s.appendUnusedConn()
	}
	c := s.conn(uint32(s.freeList) - 1)
	s.freeList = slotLink(endOfList - c.FD())
	return c
}

func (s *connTable) appendUnusedConn() *engine.Conn {
	if int(s.slotCount) == len(s.chunks)*chunkSize {
		s.chunks = append(s.chunks, new(connChunk))
	}
	c := s.conn(s.slotCount)
	c.Bind(s.host, s.slotCount, 0)
	c.SetFD(endOfList)
	s.slotCount++
	return c
}

// conn returns the entry of a slot. The slot must have been used before.
func (s *connTable) conn(slot uint32) *engine.Conn {
	return &s.chunks[slot/chunkSize][slot%chunkSize]
}

// releaseForLaterReuse frees an entry, which makeReleasedReusable later makes reusable. Until then, further events of
// the same batch find the entry closed, not used by a new connection.
func (s *connTable) releaseForLaterReuse(c *engine.Conn) {
	s.used--
	pushFreeSlot(&s.releasedList, c)
	if s.releasedTail == 0 {
		s.releasedTail = s.releasedList
	}
}

// makeReleasedReusable allows the reuse of released entries. The entry that was released last is reused first.
func (s *connTable) makeReleasedReusable() {
	if s.releasedList == 0 {
		return
	}
	s.conn(uint32(s.releasedTail) - 1).SetFD(endOfList - int32(s.freeList))
	s.freeList, s.releasedList, s.releasedTail = s.releasedList, 0, 0
}

// freeChunksWithoutConns frees unused chunks and returns their number. The caller must have called
// makeReleasedReusable.
func (s *connTable) freeChunksWithoutConns() (freedChunks int) {
	for i, c := range s.chunks {
		if c == emptyChunk() || uint32(i+1)*chunkSize > s.slotCount || c.hasConnInUse() {
			continue
		}
		maxGeneration := uint32(0)
		for k := range c {
			maxGeneration = max(maxGeneration, c[k].Generation())
		}
		s.chunks[i] = emptyChunk()
		s.freedChunks = append(s.freedChunks, freedChunk{i, maxGeneration})
		freedChunks++
	}
	if freedChunks == 0 {
		return 0
	}
	s.freeList = 0
	for slot := s.slotCount; slot > 0; slot-- {
		if c := s.conn(slot - 1); c.FD() < 0 && s.chunks[(slot-1)/chunkSize] != emptyChunk() {
			pushFreeSlot(&s.freeList, c)
		}
	}
	return freedChunks
}

func (c *connChunk) hasConnInUse() bool {
	for i := range c {
		if c[i].FD() >= 0 {
			return true
		}
	}
	return false
}

func (s *connTable) restoreLastFreedChunk() {
	last := len(s.freedChunks) - 1
	freed := s.freedChunks[last]
	s.freedChunks = s.freedChunks[:last]
	c := new(connChunk)
	s.chunks[freed.index] = c
	for i := chunkSize - 1; i >= 0; i-- {
		c[i].Bind(s.host, uint32(freed.index*chunkSize+i), freed.generation)
		pushFreeSlot(&s.freeList, &c[i])
	}
}

// forEachConnInUse calls visit for every entry in use with a slot in [fromSlot, endSlot).
func (s *connTable) forEachConnInUse(fromSlot, endSlot uint32, visit func(*engine.Conn)) {
	for slot := fromSlot; slot < min(endSlot, s.slotCount); slot++ {
		if c := s.conn(slot); c.FD() >= 0 {
			visit(c)
		}
	}
}
