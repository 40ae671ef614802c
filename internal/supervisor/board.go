package supervisor

import (
	"sync/atomic"
	"unsafe"

	"github.com/myriad-go/myriad/internal/engine"
)

// block is what a worker tells of itself, in memory that it shares with the
// supervisor. It writes copies of its engine's counters there, so a reader sees
// each counter whole, but not all of one moment.
type block struct {
	counts engine.Counters
	loops  atomic.Int64
}

// stride is the distance of two blocks: whole pairs of cache lines, so that no
// two workers write to one.
const stride = (unsafe.Sizeof(block{}) + 127) &^ 127

// board is the blocks of all workers.
type board []byte

// boardSize is the size of a board for so many workers.
func boardSize(workers int) int { return workers * int(stride) }

func (b board) block(index int) *block {
	return (*block)(unsafe.Pointer(&b[index*int(stride)]))
}

// publish writes what the engine has counted.
func (b *block) publish(e engine.Engine) {
	store(&b.counts, e.Counters())
	b.loops.Store(int64(e.Loops()))
}

// bury moves the counts of a worker that has ended to those of the past, and
// clears the block. It says how many connections the worker had open.
func (b *block) bury(past *engine.Counters) (lost int64) {
	var sum engine.Counts
	b.counts.AddTo(&sum)
	lost, sum.Open = sum.Open, 0
	past.AddTo(&sum)
	store(past, sum)
	store(&b.counts, engine.Counts{})
	b.loops.Store(0)
	return lost
}

// store sets the counters.
func store(c *engine.Counters, n engine.Counts) {
	c.Open.Store(n.Open)
	c.Accepted.Store(n.Accepted)
	c.Dialled.Store(n.Dialled)
	c.Refused.Store(n.Refused)
	c.AcceptErrors.Store(n.AcceptErrors)
	c.Reads.Store(n.Reads)
	c.Writes.Store(n.Writes)
	c.BytesIn.Store(n.BytesIn)
	c.BytesOut.Store(n.BytesOut)
	c.Panics.Store(n.Panics)
	c.Away.Store(n.Away)
	c.Moved.Store(n.Moved)
}
