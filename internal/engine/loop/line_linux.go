package loop

import "github.com/myriad-go/myriad/internal/engine"

// line is a queue of connections that takes some at its head, too. It is a ring, so
// that none costs more where many wait. The zero value is empty.
type line struct {
	ring []*engine.Conn // as many as a power of two, or none
	head int
	n    int
}

// minLine is the smallest ring.
const minLine = 16

func (q *line) at(i int) **engine.Conn { return &q.ring[(q.head+i)&(len(q.ring)-1)] }

// first is the one at the head.
func (q *line) first() *engine.Conn { return *q.at(0) }

// drop takes it out.
func (q *line) drop() {
	*q.at(0) = nil
	q.head++
	q.n--
}

// put appends one.
func (q *line) put(c *engine.Conn) {
	q.room(1)
	*q.at(q.n) = c
	q.n++
}

// putFirst puts some at the head, in their order.
func (q *line) putFirst(conns []*engine.Conn) {
	q.room(len(conns))
	q.head -= len(conns)
	for i, c := range conns {
		*q.at(i) = c
	}
	q.n += len(conns)
}

// room sees to it that there is room for some more.
func (q *line) room(more int) {
	size := max(len(q.ring), minLine)
	for size < q.n+more {
		size *= 2
	}
	if size == len(q.ring) {
		return
	}
	ring := make([]*engine.Conn, size)
	for i := range q.n {
		ring[i] = *q.at(i)
	}
	q.ring, q.head = ring, 0
}
