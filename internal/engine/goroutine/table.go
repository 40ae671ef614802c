package goroutine

import (
	"net/netip"

	"github.com/myriad-go/myriad/internal/engine"
)

// tableChunk is how many entries a table grows by.
const tableChunk = 512

// table holds connections by slot. It grows by chunks: copying a large table
// would leave its old room as garbage. The group's lock guards it.
type table struct {
	chunks []*[tableChunk]*conn
	free   []uint32
	used   int
	told   map[*conn]netip.AddrPort // whose connections are, where a proxy has said it
}

// put gives a connection the first free slot.
func (t *table) put(c *conn, h *engine.Host) {
	if len(t.free) == 0 {
		first := uint32(len(t.chunks)) * tableChunk
		t.chunks = append(t.chunks, new([tableChunk]*conn))
		for i := uint32(tableChunk); i > 0; i-- {
			t.free = append(t.free, first+i-1)
		}
	}
	last := len(t.free) - 1
	slot := t.free[last]
	t.free = t.free[:last]
	t.used++
	c.Bind(h, slot)
	t.chunks[slot/tableChunk][slot%tableChunk] = c
}

// get finds who has a slot now; nil if nobody has.
func (t *table) get(slot uint32) *conn { return t.chunks[slot/tableChunk][slot%tableChunk] }

// drop frees a slot.
func (t *table) drop(slot uint32) {
	delete(t.told, t.get(slot))
	t.chunks[slot/tableChunk][slot%tableChunk] = nil
	t.free = append(t.free, slot)
	t.used--
}

// all lists the connections.
func (t *table) all() []*conn { return t.some(0, len(t.chunks)) }

// inChunk lists those in one chunk, in the room of conns.
func (t *table) inChunk(i int, conns []*conn) []*conn {
	conns = conns[:0]
	for _, c := range t.chunks[i] {
		if c != nil {
			conns = append(conns, c)
		}
	}
	return conns
}

// some lists those in the chunks from..to-1.
func (t *table) some(from, to int) []*conn {
	conns := make([]*conn, 0, min(t.used, (to-from)*tableChunk))
	for _, chunk := range t.chunks[from:to] {
		for _, c := range chunk {
			if c != nil {
				conns = append(conns, c)
			}
		}
	}
	return conns
}
