package goroutine

import (
	"net/netip"

	"github.com/myriad-go/myriad/internal/engine"
)

const chunkSize = 512

// connTable stores connections by slot. goroutineEngine.mu guards the table.
type connTable struct {
	chunks  []*chunk
	free    []uint32
	used    int
	proxied map[*conn]netip.AddrPort // the client addresses that proxies have announced
}

// chunk contains chunkSize consecutive slots of a connTable.
type chunk struct {
	conns       [chunkSize]*conn
	generations [chunkSize]uint32 // number of earlier connections in each slot
}

func (t *connTable) addConn(c *conn, rt *engine.Runtime) {
	if len(t.free) == 0 {
		first := uint32(len(t.chunks)) * chunkSize
		t.chunks = append(t.chunks, new(chunk))
		for i := uint32(chunkSize); i > 0; i-- {
			t.free = append(t.free, first+i-1)
		}
	}
	last := len(t.free) - 1
	slot := t.free[last]
	t.free = t.free[:last]
	t.used++
	chunk, i := t.chunks[slot/chunkSize], slot%chunkSize
	c.Bind(rt, slot, chunk.generations[i])
	chunk.conns[i] = c
}

func (t *connTable) conn(slot uint32) *conn { return t.chunks[slot/chunkSize].conns[slot%chunkSize] }

func (t *connTable) removeConn(slot uint32) {
	delete(t.proxied, t.conn(slot))
	chunk, i := t.chunks[slot/chunkSize], slot%chunkSize
	chunk.conns[i] = nil
	chunk.generations[i]++
	t.free = append(t.free, slot)
	t.used--
}

func (t *connTable) allConns() []*conn {
	return t.appendChunkConns(make([]*conn, 0, t.used), 0, len(t.chunks))
}

// appendChunkConns appends the connections of the chunks from fromChunk to endChunk-1 to conns.
func (t *connTable) appendChunkConns(conns []*conn, fromChunk, endChunk int) []*conn {
	for _, chunk := range t.chunks[fromChunk:endChunk] {
		for _, c := range chunk.conns {
			if c != nil {
				conns = append(conns, c)
			}
		}
	}
	return conns
}
