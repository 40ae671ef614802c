package loop

import (
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is how a loop gets rid of buffers that a burst has left behind: after a
// broadcast under io_uring there are hundreds, and after much mail they may be large.
// What nobody has taken from one look to the next goes to the garbage collector, but
// for a few. Looks are trimInterval apart, and there are none while the loop holds no
// more than those few: it is woken twice at most after a burst, and then sleeps on.

// trimInterval is the time between two looks. A load that comes at least that often finds
// the buffers that it needs.
const trimInterval = 2 * time.Second

// bufferTrimmer drops buffers that nobody takes.
type bufferTrimmer struct {
	buffers *engine.FreeList
	nextAt  time.Duration // the next look
}

func (t *bufferTrimmer) nextDue() (at time.Duration, ok bool) { return t.nextAt, t.buffers.Spare() }

// runIfDue drops what nobody has taken since the last look, when it is time.
func (t *bufferTrimmer) runIfDue(now time.Duration) {
	if !t.buffers.Spare() || now < t.nextAt {
		return
	}
	t.buffers.Trim()
	t.nextAt = now + trimInterval
}
