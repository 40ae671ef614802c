// Package deque provides a double-ended queue.
package deque

// Deque is a double-ended queue in a ring buffer. The zero value is an empty queue. At, Front, PopFront and PopBack
// must not be called on an empty queue.
type Deque[T any] struct {
	ring []T // its length is 0 or a power of two
	head int
	n    int
}

const minSize = 16

func (q *Deque[T]) Len() int { return q.n }

// Cap returns the number of elements for which memory is allocated. It never decreases.
func (q *Deque[T]) Cap() int { return len(q.ring) }

// At returns a pointer to element i. The first element has index 0.
func (q *Deque[T]) At(i int) *T { return &q.ring[(q.head+i)&(len(q.ring)-1)] }

func (q *Deque[T]) Front() T { return *q.At(0) }

func (q *Deque[T]) PopFront() T {
	front := q.At(0)
	v := *front
	*front = *new(T)
	q.head++
	q.n--
	return v
}

func (q *Deque[T]) PopBack() T {
	q.n--
	back := q.At(q.n)
	v := *back
	*back = *new(T)
	return v
}

func (q *Deque[T]) PushBack(v T) {
	if q.n == len(q.ring) {
		q.growFor(1)
	}
	*q.At(q.n) = v
	q.n++
}

// PushAllFront inserts values at the front and keeps their order.
func (q *Deque[T]) PushAllFront(values []T) {
	q.growFor(len(values))
	q.head -= len(values)
	for i, v := range values {
		*q.At(i) = v
	}
	q.n += len(values)
}

func (q *Deque[T]) growFor(extra int) {
	size := max(len(q.ring), minSize)
	for size < q.n+extra {
		size *= 2
	}
	if size == len(q.ring) {
		return
	}
	ring := make([]T, size)
	for i := range q.n {
		ring[i] = *q.At(i)
	}
	q.ring, q.head = ring, 0
}
