package loop

// deque is a double-ended queue in a ring buffer. The zero value is empty.
type deque[T any] struct {
	ring []T // its length is 0 or a power of two
	head int
	n    int
}

const minDequeSize = 16

func (q *deque[T]) at(i int) *T { return &q.ring[(q.head+i)&(len(q.ring)-1)] }

func (q *deque[T]) front() T { return *q.at(0) }

func (q *deque[T]) popFront() {
	*q.at(0) = *new(T)
	q.head++
	q.n--
}

func (q *deque[T]) pushBack(v T) {
	q.growFor(1)
	*q.at(q.n) = v
	q.n++
}

// pushAllFront inserts values at the front and keeps their order.
func (q *deque[T]) pushAllFront(values []T) {
	q.growFor(len(values))
	q.head -= len(values)
	for i, v := range values {
		*q.at(i) = v
	}
	q.n += len(values)
}

func (q *deque[T]) growFor(extra int) {
	size := max(len(q.ring), minDequeSize)
	for size < q.n+extra {
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
