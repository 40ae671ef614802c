package loop

import (
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// Freeing buffers after a burst. A broadcast under io_uring leaves hundreds of buffers; much mail leaves
// large ones. Buffers that were not used between two checks go to the garbage collector, except for a few.
// There are no checks while the loop holds only those few: a burst wakes it at most twice.

// trimInterval is the time between two checks. Load that recurs within that time finds the buffers that it
// needs.
const trimInterval = 2 * time.Second

type bufferTrimmer struct {
	buffers *engine.FreeList
	nextAt  time.Duration
}

func (t *bufferTrimmer) nextDue() (at time.Duration, ok bool) { return t.nextAt, t.buffers.NeedsTrim() }

// runIfDue frees buffers that were not used since the last check.
func (t *bufferTrimmer) runIfDue(now time.Duration) {
	if !t.buffers.NeedsTrim() || now < t.nextAt {
		return
	}
	t.buffers.FreeIdleBuffers()
	t.nextAt = now + trimInterval
}
