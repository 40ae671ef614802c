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
	chunks  []*chunk
	free    []uint32
	used    int
	proxied map[*conn]netip.AddrPort // whose connections are, where a proxy has said it
}

// chunk is some of its entries. Each has a connection, nil if it is free, and a generation:
// how many it had before.
type chunk struct {
	conns       [tableChunk]*conn
	generations [tableChunk]uint32
}

// put gives a connection the first free slot.
func (t *table) put(c *conn, h *engine.Runtime) {
	if len(t.free) == 0 {
		first := uint32(len(t.chunks)) * tableChunk
		t.chunks = append(t.chunks, new(chunk))
		for i := uint32(tableChunk); i > 0; i-- {
			t.free = append(t.free, first+i-1)
		}
	}
	last := len(t.free) - 1
	slot := t.free[last]
	t.free = t.free[:last]
	t.used++
	in, i := t.chunks[slot/tableChunk], slot%tableChunk
	c.Bind(h, slot, in.generations[i])
	in.conns[i] = c
}

// get finds who has a slot now; nil if nobody has.
func (t *table) get(slot uint32) *conn { return t.chunks[slot/tableChunk].conns[slot%tableChunk] }

// drop frees a slot.
func (t *table) drop(slot uint32) {
	delete(t.proxied, t.get(slot))
	in, i := t.chunks[slot/tableChunk], slot%tableChunk
	in.conns[i] = nil
	in.generations[i]++
	t.free = append(t.free, slot)
	t.used--
}

// all lists the connections.
func (t *table) all() []*conn { return t.some(make([]*conn, 0, t.used), 0, len(t.chunks)) }

// some appends those in the chunks from..to-1 to a list.
func (t *table) some(conns []*conn, from, to int) []*conn {
	for _, chunk := range t.chunks[from:to] {
		for _, c := range chunk.conns {
			if c != nil {
				conns = append(conns, c)
			}
		}
	}
	return conns
}
