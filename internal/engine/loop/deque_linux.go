package loop

// deque is a queue that takes some at its head, too. It is a ring, so
// that none costs more where many wait. The zero value is empty.
type deque[T any] struct {
	ring []T // as many as a power of two, or none
	head int
	n    int
}

// minDequeSize is the smallest ring.
const minDequeSize = 16

func (q *deque[T]) at(i int) *T { return &q.ring[(q.head+i)&(len(q.ring)-1)] }

// front is the one at the head.
func (q *deque[T]) front() T { return *q.at(0) }

// popFront takes it out.
func (q *deque[T]) popFront() {
	*q.at(0) = *new(T)
	q.head++
	q.n--
}

// pushBack appends one.
func (q *deque[T]) pushBack(v T) {
	q.reserve(1)
	*q.at(q.n) = v
	q.n++
}

// pushFront puts some at the head, in their order.
func (q *deque[T]) pushFront(values []T) {
	q.reserve(len(values))
	q.head -= len(values)
	for i, v := range values {
		*q.at(i) = v
	}
	q.n += len(values)
}

// reserve sees to it that there is room for some more.
func (q *deque[T]) reserve(more int) {
	size := max(len(q.ring), minDequeSize)
	for size < q.n+more {
		size *= 2
	}
	if size == len(q.ring) {
		return
	}
	ring := make([]T, size)
	for i := range q.n {
		ring[i] = *q.at(i)
	}
	q.ring, q.head = ring, 0
}
