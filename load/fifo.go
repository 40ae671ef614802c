package load

// fifo is a queue of links, by their places in the slab. Each is in it at most
// once, so it is never longer than the slab.
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
