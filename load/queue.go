package load

import (
	"time"

	"github.com/myriad-go/myriad/internal/pacer"
)

// timer is what a connection waits for: that its time comes.
type timer struct {
	at     time.Duration
	conn   uint32 // its place in the table
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

// fifo is a queue of connections, by their places in the table. Each is in it at most
// once, so it is never longer than the table.
type fifo struct {
	ring []uint32 // its length is a power of two, or 0
	head uint32
	n    uint32
}

func (q *fifo) push(id uint32) {
	if int(q.n) == len(q.ring) {
		q.grow()
	}
	q.ring[(q.head+q.n)&uint32(len(q.ring)-1)] = id
	q.n++
}

func (q *fifo) grow() {
	ring := make([]uint32, max(2*len(q.ring), 64))
	for i := range q.n {
		ring[i] = q.ring[(q.head+i)&uint32(len(q.ring)-1)]
	}
	q.ring, q.head = ring, 0
}

func (q *fifo) pop() (id uint32, ok bool) {
	if q.n == 0 {
		return 0, false
	}
	id = q.ring[q.head]
	q.head = (q.head + 1) & uint32(len(q.ring)-1)
	q.n--
	return id, true
}
