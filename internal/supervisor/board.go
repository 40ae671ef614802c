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
	counts := e.Counters()
	b.counts.Store(&counts)
	b.loops.Store(int64(e.Loops()))
}

// bury moves the counts of a worker that has ended to those of the past, and
// clears the block. It says how many connections the worker had open.
func (b *block) bury(past *engine.Counters) (lost int64) {
	var last, none engine.Counts
	b.counts.AddTo(&last)
	lost = last[engine.Open]
	sum := last.Past()
	past.AddTo(&sum)
	past.Store(&sum)
	b.counts.Store(&none)
	b.loops.Store(0)
	return lost
}
