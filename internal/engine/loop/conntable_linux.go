package loop

import (
	"sync"

	"github.com/myriad-go/myriad/internal/engine"
)

// chunkSize is the number of connections in a chunk of a connTable.
const chunkSize = 512 // 512 connections of 96 bytes fill six pages of Go's allocator exactly

// connTable stores a loop's connections by slot. A connection never moves in memory.
type connTable struct {
	host         *engine.Runtime
	chunks       []*connChunk
	freedChunks  []freedChunk
	freeList     slotLink // first entry of the list of free slots
	releasedList slotLink // first entry of the list of slots released since the last makeReleasedReusable
	releasedTail slotLink // last entry of releasedList
	used         int      // slots in use
	slotCount    uint32   // all slots below slotCount have been used at least once
}

type connChunk [chunkSize]engine.Conn

// freedChunk describes a chunk whose memory was freed.
type freedChunk struct {
	index      int
	generation uint32 // the highest generation of the chunk's slots
}

// emptyChunk returns the shared placeholder for freed chunks. The placeholder must never be written.
var emptyChunk = sync.OnceValue(func() *connChunk {
	n := new(connChunk)
	for i := range n {
		n[i].SetFD(endOfList)
	}
	return n
})

// slotLink is a link in a list of free slots. It is the number of the next slot plus 1. At the end of the list it is 0.
type slotLink uint32

// endOfList marks the end of a list of free slots. A free slot has no descriptor. Instead, the descriptor field stores
// endOfList minus the slotLink of the next free slot. In the last slot of the list, the field is therefore endOfList.
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

// conn returns the entry of the slot, which must have been used at least once.
func (s *connTable) conn(slot uint32) *engine.Conn {
	return &s.chunks[slot/chunkSize][slot%chunkSize]
}

// releaseForLaterReuse frees the slot of c. New connections get the slot only after makeReleasedReusable.
func (s *connTable) releaseForLaterReuse(c *engine.Conn) {
	s.used--
	pushFreeSlot(&s.releasedList, c)
	if s.releasedTail == 0 {
		s.releasedTail = s.releasedList
	}
}

// makeReleasedReusable makes the slots from releaseForLaterReuse available to new connections.
func (s *connTable) makeReleasedReusable() {
	if s.releasedList == 0 {
		return
	}
	s.conn(uint32(s.releasedTail) - 1).SetFD(endOfList - int32(s.freeList))
	s.freeList, s.releasedList, s.releasedTail = s.releasedList, 0, 0
}

// freeChunksWithoutConns frees the memory of chunks without connections. Call makeReleasedReusable first.
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
