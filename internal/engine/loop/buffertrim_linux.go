package loop

import (
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file frees buffers after a burst. A broadcast with io_uring leaves hundreds of buffers, and many posted messages
// leave large buffers. Buffers that were not used between two checks are freed, except for a few. While the loop has
// only these few, there are no checks, so a burst wakes a sleeping loop at most twice.

// trimInterval is the interval at which a loop frees unused buffers.
const trimInterval = 2 * time.Second

type bufferTrimmer struct {
	buffers *engine.FreeList
	nextAt  time.Duration
}

func (t *bufferTrimmer) nextDue() (at time.Duration, ok bool) { return t.nextAt, t.buffers.NeedsTrim() }

func (t *bufferTrimmer) runIfDue(now time.Duration) {
	if !t.buffers.NeedsTrim() || now < t.nextAt {
		return
	}
	t.buffers.FreeIdleBuffers()
	t.nextAt = now + trimInterval
}
