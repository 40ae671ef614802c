package pool

import (
	"context"
	"sync/atomic"
)

// maxBatch is how many quick tasks a worker takes at a time, beside the one that
// it runs.
const maxBatch = 31

// batch has the tasks that a worker has taken and not begun. The worker takes one
// after the other, and the tender may take all that are left, when the worker does
// not come back from one. Both do so by one atomic word, which has the number of
// tasks above the number of those that were taken: a task is whose it was when the
// word changed. After a theft the worker makes new tasks, because the thief may
// still be reading the old ones.
type batch struct {
	word  atomic.Int64
	tasks atomic.Pointer[batched]
}

// batched are the tasks of a batch. All have one priority, and came about when the
// first did.
type batched struct {
	at   int64
	prio Priority
	keys bool // they have keys
	jobs [maxBatch]Job
	ctxs [maxBatch]context.Context
	key  [maxBatch]uint64
}

const (
	batchShift = 32
	takenMask  = 1<<batchShift - 1
	stolen     = 1 << 16 // taken, after a theft
)

// next takes the next task.
func (b *batch) next() (j Job, ctx context.Context) {
	if word := b.word.Load(); word&takenMask >= word>>batchShift {
		return nil, nil
	}
	i := b.word.Add(1)&takenMask - 1
	if i >= stolen {
		return nil, nil
	}
	t := b.tasks.Load()
	j, ctx = t.jobs[i], t.ctxs[i]
	t.jobs[i] = nil
	if ctx != nil {
		t.ctxs[i] = nil
	}
	return j, ctx
}

// fill takes the n oldest tasks of a ring, when the worker has taken all of those
// before.
func (b *batch) fill(r *ring, n int, prio Priority) {
	t := b.tasks.Load()
	if t == nil || b.word.Load()&takenMask >= stolen {
		t = new(batched)
		b.tasks.Store(t)
	}
	t.at, t.prio, t.keys = r.oldest(), prio, r.keys != nil
	for i := range n {
		at := r.first
		t.jobs[i], r.jobs[at] = r.jobs[at], nil
		if r.ctxs != nil {
			t.ctxs[i], r.ctxs[at] = r.ctxs[at], nil
		}
		if t.keys {
			t.key[i] = r.keys[at]
		}
		r.first = (at + 1) & (len(r.jobs) - 1)
	}
	r.n -= n
	b.word.Store(int64(n) << batchShift)
}

// size is how many there are.
func (b *batch) size() int {
	word := b.word.Load()
	return int(max(0, word>>batchShift-word&takenMask))
}

// steal takes all tasks that are left, and says when they came. There is one thief
// at a time.
func (b *batch) steal() (tasks []Task, at int64) {
	if b.size() == 0 {
		return nil, 0
	}
	t := b.tasks.Load() // as it is until the worker has seen this theft
	word := b.word.Swap(stolen)
	for i := word & takenMask; i < word>>batchShift; i++ {
		task := Task{Job: t.jobs[i], Ctx: t.ctxs[i], Priority: t.prio}
		if t.keys {
			task.Key = t.key[i]
		}
		t.jobs[i], t.ctxs[i] = nil, nil
		tasks, at = append(tasks, task), t.at
	}
	return tasks, at
}
