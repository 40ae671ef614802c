package pool

import (
	"sync"
	"sync/atomic"
)

// startWorkers starts workers until there are n.
func (p *Pool) startWorkers(n int) {
	for int(p.workers()) < n && p.spawn(order{}, 0) {
	}
}

// spawn starts a worker with an order, if there may be one more, or overdraft above the
// limit.
func (p *Pool) spawn(o order, overdraft int64) bool {
	var size int64
	for {
		size = p.size.Load()
		if size&^closedBit >= p.most()+overdraft || size == closedBit {
			return false
		}
		if p.size.CompareAndSwap(size, size+1) {
			break
		}
	}
	p.wakeController()
	w := &worker{p: p, wake: make(chan order, 1), home: int(size) & (len(p.shards) - 1)}
	if o.Job == nil {
		w.startSearching()
	}
	p.running.Go(func() { w.run(o) })
	return true
}

// removeWorker takes one from the number of workers if that is above floor. The worker
// then exits.
func (p *Pool) removeWorker(floor int64) bool {
	for {
		size := p.size.Load()
		if size&^closedBit <= floor {
			return false
		}
		if p.size.CompareAndSwap(size, size-1) {
			if size-1 == closedBit {
				close(p.exited)
			}
			p.wakeWaiter()
			return true
		}
	}
}

// retire has a parked worker exit, unless there are no more than floor.
func (p *Pool) retire(floor int64) bool {
	w := p.popParked()
	if w == nil {
		return false
	}
	if !p.removeWorker(floor) {
		p.wakeToSearch(w) // and parks again
		return false
	}
	w.wake <- order{exit: true}
	return true
}

// workers is how many there are, most how many there may be, active how many are neither
// parked nor in Block, busy how many of those run a job or are about to.
func (p *Pool) most() int64    { return p.limit.Load() + p.blocked.Load() }
func (p *Pool) workers() int64 { return p.size.Load() &^ closedBit }
func (p *Pool) active() int64  { return p.workers() - p.parked.n.Load() - p.blocked.Load() }
func (p *Pool) busy() int      { return int(max(0, p.active()-int64(p.searching.Load()))) }

// available reports whether a worker is parked or another may be started.
func (p *Pool) available() bool {
	return p.parked.n.Load() > 0 || p.workers() < p.most()
}

// anyQueued reports whether jobs wait in the queue.
func (p *Pool) anyQueued() bool {
	for i := range p.shards {
		if p.shards[i].nonEmpty.Load() {
			return true
		}
	}
	return false
}

// wakeWorker has one more worker search for jobs. If there may be none, that is for the
// controller to change.
func (p *Pool) wakeWorker() {
	if w := p.popParked(); w != nil {
		p.wakeToSearch(w)
	} else if p.workers() >= p.most() || !p.spawn(order{}, 0) {
		p.wakeController()
	}
}

// wakeToSearch has a worker search that was popped from the stack.
func (p *Pool) wakeToSearch(w *worker) {
	w.startSearching()
	w.wake <- order{}
}

// workerStack has the parked workers, the last one on top, whose stack and caches are
// warm.
type workerStack struct {
	n  atomic.Int64 // how many there are
	mu sync.Mutex
	of []*worker
}

func (p *Pool) pushParked(w *worker) {
	s := &p.parked
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of = append(s.of, w)
	s.n.Add(1)
}

// popParked takes a parked worker, which is then the caller's to wake; nil for none.
func (p *Pool) popParked() *worker {
	s := &p.parked
	if s.n.Load() == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.of) - 1
	if last < 0 {
		return nil
	}
	w := s.of[last]
	s.of[last], s.of = nil, s.of[:last]
	s.n.Add(-1)
	return w
}
