package loop

import (
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is how a loop gets rid of buffers that a burst has left behind: after a
// broadcast under io_uring there are hundreds, and after much mail they may be large.
// What nobody has taken from one look to the next goes to the garbage collector, but
// for a few. Looks are trimEvery apart, and there are none while the loop holds no
// more than those few: it is woken twice at most after a burst, and then sleeps on.

// trimEvery is the time between two looks. A load that comes at least that often finds
// the buffers that it needs.
const trimEvery = 2 * time.Second

// trim drops buffers that nobody takes.
type trim struct {
	buffers *engine.FreeList
	at      time.Duration // the next look
}

func (t *trim) next() (at time.Duration, ok bool) { return t.at, t.buffers.NeedsTrim() }

// run drops what nobody has taken since the last look, when it is time.
func (t *trim) run(now time.Duration) {
	if !t.buffers.NeedsTrim() || now < t.at {
		return
	}
	t.buffers.TrimIdle()
	t.at = now + trimEvery
}
