package loop

import "github.com/myriad-go/myriad/internal/engine"

// chunkSize is how many connections a slab grows by: 256 of 96 bytes fill a
// size class of Go's allocator.
const chunkSize = 256

// slab holds a loop's connections densely, numbered by slot. It grows by
// chunks, so that an entry never moves: a Ref may point to it for ever.
type slab struct {
	host   *engine.Host
	chunks []*[chunkSize]engine.Conn
	free   []uint32 // slots that can be taken
	freed  []uint32 // slots freed since the last recycle
	used   int
}

// take gives a free entry.
func (s *slab) take() *engine.Conn {
	if len(s.free) == 0 {
		s.grow()
	}
	last := len(s.free) - 1
	slot := s.free[last]
	s.free = s.free[:last]
	s.used++
	return s.at(slot)
}

// at finds an entry by its slot, which must be one that take has given.
func (s *slab) at(slot uint32) *engine.Conn {
	return &s.chunks[slot/chunkSize][slot%chunkSize]
}

// put frees an entry. It is not taken again before recycle, so that events
// that were reported for it in the same batch find nobody.
func (s *slab) put(c *engine.Conn) {
	s.used--
	s.freed = append(s.freed, c.Slot())
}

func (s *slab) recycle() {
	s.free = append(s.free, s.freed...)
	s.freed = s.freed[:0]
}

func (s *slab) grow() {
	chunk := new([chunkSize]engine.Conn)
	first := uint32(len(s.chunks)) * chunkSize
	s.chunks = append(s.chunks, chunk)
	for i := chunkSize - 1; i >= 0; i-- {
		chunk[i].Bind(s.host, first+uint32(i))
		chunk[i].SetFD(-1)
		s.free = append(s.free, first+uint32(i))
	}
}

// each calls f for every entry in use of the chunks from..to-1.
func (s *slab) each(from, to int, f func(*engine.Conn)) {
	for _, chunk := range s.chunks[from:min(to, len(s.chunks))] {
		for i := range chunk {
			if chunk[i].FD() >= 0 {
				f(&chunk[i])
			}
		}
	}
}
