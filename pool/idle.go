package pool

import "sync/atomic"

// idleStack has the workers that wait for a job, the last one on top: that is the
// one whose stack and caches are warm. It is Treiber's, with a count that makes
// each head different from those before.
type idleStack struct {
	head atomic.Uint64 // a count, and below it the worker's number; 0 is none
	n    atomic.Int64
}

// The workers are numbered from 1, and found in a table that only grows.
const numberBits = 24

const numberMask = 1<<numberBits - 1

func (p *Pool) pushIdle(w *worker) {
	p.idle.n.Add(1)
	for {
		head := p.idle.head.Load()
		w.below.Store(uint32(head & numberMask))
		if p.idle.head.CompareAndSwap(head, (head>>numberBits+1)<<numberBits|uint64(w.number)) {
			return
		}
	}
}

// popIdle takes a worker that is idle, which is then the caller's to wake; nil if
// there is none.
func (p *Pool) popIdle() *worker {
	for {
		head := p.idle.head.Load()
		if head&numberMask == 0 {
			return nil
		}
		w := p.worker(uint32(head & numberMask))
		if p.idle.head.CompareAndSwap(head, (head>>numberBits+1)<<numberBits|uint64(w.below.Load())) {
			p.idle.n.Add(-1)
			return w
		}
	}
}
