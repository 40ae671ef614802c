package pool

import (
	"sync"
	"sync/atomic"
)

func (p *Pool) ensureMinWorkers(minWorkers int) {
	for int(p.workerCount()) < minWorkers && p.startWorkerIfAllowed(wakeOrder{}, 0) {
	}
}

// startWorkerIfAllowed starts a worker with firstOrder if there are fewer workers than the limit plus extraWorkers.
func (p *Pool) startWorkerIfAllowed(firstOrder wakeOrder, extraWorkers int64) (started bool) {
	var size int64
	for {
		size = p.size.Load()
		if size&^closedBit >= p.maxWorkers()+extraWorkers || size == closedBit {
			return false
		}
		if p.size.CompareAndSwap(size, size+1) {
			break
		}
	}
	p.wakeController()
	w := &worker{p: p, wake: make(chan wakeOrder, 1), home: int(size) & (len(p.shards) - 1)}
	if firstOrder.Job == nil {
		w.startSearching()
	}
	p.running.Go(func() { w.runUntilExit(firstOrder) })
	return true
}

// decrementWorkersIfAbove decrements the number of workers if it exceeds minWorkers. A worker must then exit.
func (p *Pool) decrementWorkersIfAbove(minWorkers int64) (decremented bool) {
	for {
		size := p.size.Load()
		if size&^closedBit <= minWorkers {
			return false
		}
		if p.size.CompareAndSwap(size, size-1) {
			if size-1 == closedBit {
				close(p.exited)
			}
			p.wakeWaitingSubmit()
			return true
		}
	}
}

func (p *Pool) stopParkedWorker(minWorkers int64) (stopped bool) {
	w := p.popParked()
	if w == nil {
		return false
	}
	if !p.decrementWorkersIfAbove(minWorkers) {
		p.wakeToSearch(w) // parks again
		return false
	}
	w.wake <- wakeOrder{exit: true}
	return true
}

// maxWorkers returns the maximum number of workers. Workers in Block do not count.
func (p *Pool) maxWorkers() int64  { return p.limit.Load() + p.blocked.Load() }
func (p *Pool) workerCount() int64 { return p.size.Load() &^ closedBit }

func (p *Pool) unparkedUnblockedWorkers() int64 {
	return p.workerCount() - p.parked.count.Load() - p.blocked.Load()
}

func (p *Pool) busyWorkers() int {
	return int(max(0, p.unparkedUnblockedWorkers()-int64(p.searching.Load())))
}

func (p *Pool) canWakeOrStartWorker() bool {
	return p.parked.count.Load() > 0 || p.workerCount() < p.maxWorkers()
}

func (p *Pool) anyQueued() bool {
	for i := range p.shards {
		if p.shards[i].nonEmpty.Load() {
			return true
		}
	}
	return false
}

// wakeOrStartWorker wakes or starts a worker, which then searches for jobs. If the limit is reached, it wakes the
// controller instead.
func (p *Pool) wakeOrStartWorker() {
	if w := p.popParked(); w != nil {
		p.wakeToSearch(w)
	} else if p.workerCount() >= p.maxWorkers() || !p.startWorkerIfAllowed(wakeOrder{}, 0) {
		p.wakeController()
	}
}

func (p *Pool) wakeToSearch(w *worker) {
	w.startSearching()
	w.wake <- wakeOrder{}
}

// workerStack holds the parked workers. The last one parked is on top, because its stack and caches are warm.
type workerStack struct {
	count   atomic.Int64 // len(workers)
	mu      sync.Mutex
	workers []*worker
}

func (p *Pool) pushParked(w *worker) {
	s := &p.parked
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workers = append(s.workers, w)
	s.count.Add(1)
}

// popParked removes a worker from the stack, or returns nil if it is empty. The caller must wake the worker.
func (p *Pool) popParked() *worker {
	s := &p.parked
	if s.count.Load() == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.workers) - 1
	if last < 0 {
		return nil
	}
	w := s.workers[last]
	s.workers[last], s.workers = nil, s.workers[:last]
	s.count.Add(-1)
	return w
}
