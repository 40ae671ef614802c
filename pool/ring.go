package pool

import "context"

// ring is a queue in order of arrival that can be taken from at both ends. It has no
// bound of its own, because the shard has one. What belongs together lies apart, so
// that a task without a context and a key, as most are, takes 24 bytes: who takes
// reads what who submits has just written on another processor, and that is what
// the time goes into.
type ring struct {
	first, n int // n is how many there are
	jobs     []Job
	at       []int64           // when they came
	ctxs     []context.Context // nil if none has had one
	keys     []uint64          // likewise
}

// Rings have room for firstRing to begin with, and keep keptRing when they are empty.
const firstRing, keptRing = 16, 1024

// push appends a task. The ring's room is a power of two.
func (r *ring) push(t *Task, at int64) {
	if r.n == len(r.jobs) {
		r.grow()
	}
	i := (r.first + r.n) & (len(r.jobs) - 1)
	r.n++
	r.jobs[i], r.at[i] = t.Job, at
	if t.Ctx != nil || r.ctxs != nil {
		if r.ctxs == nil {
			r.ctxs = make([]context.Context, len(r.jobs))
		}
		r.ctxs[i] = t.Ctx
	}
	if t.Key != 0 || r.keys != nil {
		if r.keys == nil {
			r.keys = make([]uint64, len(r.jobs))
		}
		r.keys[i] = t.Key
	}
}

// append is push for a task that has neither context nor key, where no other has
// and there is room; otherwise it does nothing.
func (r *ring) append(j Job, at int64) bool {
	if r.n == len(r.jobs) || r.ctxs != nil || r.keys != nil {
		return false
	}
	i := (r.first + r.n) & (len(r.jobs) - 1)
	r.n++
	r.jobs[i], r.at[i] = j, at
	return true
}

// unpop puts a task in front of all others.
func (r *ring) unpop(t *Task, at int64) {
	r.push(t, at)
	last := (r.first + r.n - 1) & (len(r.jobs) - 1)
	r.first = (r.first - 1) & (len(r.jobs) - 1)
	move(r.jobs, r.first, last)
	move(r.at, r.first, last)
	if r.ctxs != nil {
		move(r.ctxs, r.first, last)
	}
	if r.keys != nil {
		move(r.keys, r.first, last)
	}
}

// move moves what is in a place of a ring to another, which is free unless it is the
// same.
func move[T any](in []T, to, from int) {
	if to != from {
		var none T
		in[to], in[from] = in[from], none
	}
}

// oldest is when the oldest task came. There is one.
func (r *ring) oldest() int64 { return r.at[r.first] }

// next is when the task came that pop takes. There is one.
func (r *ring) next(newest bool) int64 {
	if newest {
		return r.at[(r.first+r.n-1)&(len(r.at)-1)]
	}
	return r.oldest()
}

// pop takes the oldest task, or the newest.
func (r *ring) pop(newest bool, to *stamped) {
	i := r.first
	if r.n--; newest {
		i = (i + r.n) & (len(r.jobs) - 1)
	} else {
		r.first = (i + 1) & (len(r.jobs) - 1)
	}
	to.Job, to.at = r.jobs[i], r.at[i]
	r.jobs[i] = nil
	to.Ctx, to.Key = nil, 0
	if r.ctxs != nil {
		to.Ctx, r.ctxs[i] = r.ctxs[i], nil
	}
	if r.keys != nil {
		to.Key = r.keys[i]
	}
	if r.n == 0 && len(r.jobs) > keptRing {
		*r = ring{}
	}
}

// grow doubles the room.
func (r *ring) grow() {
	size := max(2*len(r.jobs), firstRing)
	r.jobs, r.at = unroll(r.jobs, r.first, size), unroll(r.at, r.first, size)
	if r.ctxs != nil {
		r.ctxs = unroll(r.ctxs, r.first, size)
	}
	if r.keys != nil {
		r.keys = unroll(r.keys, r.first, size)
	}
	r.first = 0
}

// unroll copies a full ring to a larger one.
func unroll[T any](from []T, first, size int) []T {
	to := make([]T, size)
	copy(to[copy(to, from[first:]):], from[:first])
	return to
}
