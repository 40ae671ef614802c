package load

import (
	"time"

	"github.com/myriad-go/myriad/internal/pacer"
)

// timer is what a link waits for: that its time comes.
type timer struct {
	at     time.Duration
	link   uint32 // its place in the slab
	number uint32 // its connection: the place can have been given to another
	kind   timerKind
}

type timerKind uint8

const (
	thought  timerKind = iota // it has thought, or may send again
	planned                   // its own plan has a message
	outlived                  // its lifetime is over
	heard                     // it may receive again
)

// timers are ordered by time: a heap, the earliest first.
type timers []timer

// push adds one.
func (h *timers) push(t timer) {
	*h = append(*h, t)
	s := *h
	i := len(s) - 1
	for i > 0 {
		up := (i - 1) / 2
		if s[up].at <= t.at {
			break
		}
		s[i] = s[up]
		i = up
	}
	s[i] = t
}

// next is when the first one is due.
func (h timers) next() time.Duration {
	if len(h) == 0 {
		return pacer.Never
	}
	return h[0].at
}

// pop takes the first one, if it is due.
func (h *timers) pop(now time.Duration) (t timer, ok bool) {
	s := *h
	if len(s) == 0 || s[0].at > now {
		return timer{}, false
	}
	t = s[0]
	last := s[len(s)-1]
	s = s[:len(s)-1]
	*h = s
	if len(s) == 0 {
		return t, true
	}
	i := 0
	for {
		down := 2*i + 1
		if down >= len(s) {
			break
		}
		if down+1 < len(s) && s[down+1].at < s[down].at {
			down++
		}
		if last.at <= s[down].at {
			break
		}
		s[i] = s[down]
		i = down
	}
	s[i] = last
	return t, true
}
