package pool

import (
	"sync"
	"sync/atomic"
)

func (p *Pool) ensureMinWorkers() {
	for p.workerCount() < int64(p.cfg.Min) && p.startWorkerIfAllowed(queuedTask{}, 0) {
	}
}

// startWorkerIfAllowed starts a worker if there are fewer than maxWorkers()+extraWorkers workers. It starts no worker
// after the pool was closed and its last worker has exited. If first.Job is not nil, the new worker runs this job
// first. Otherwise, it searches the queues for a job.
func (p *Pool) startWorkerIfAllowed(first queuedTask, extraWorkers int64) (started bool) {
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
	w := &worker{p: p, wake: make(chan queuedTask, 1), home: int(size) & (len(p.shards) - 1), job: first}
	if first.Job == nil {
		w.startSearching()
	}
	p.running.Add(1)
	go w.runUntilExit()
	return true
}

// decrementWorkersIfAbove decrements the number of workers if it exceeds minWorkers. If decremented is true, the caller
// must end one worker.
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

// maxWorkers returns the maximum number of workers. Workers that wait in Block do not count towards the limit, so the
// maximum is the limit plus the number of these workers.
func (p *Pool) maxWorkers() int64  { return p.limit.Load() + p.blocked.Load() }
func (p *Pool) workerCount() int64 { return p.size.Load() &^ closedBit }
func (p *Pool) isClosed() bool     { return p.size.Load()&closedBit != 0 }

func (p *Pool) busyWorkers() int {
	return int(max(0, p.workerCount()-p.parked.count.Load()-p.blocked.Load()-int64(p.searching.Load())))
}

func (p *Pool) canWakeOrStartWorker() bool {
	return p.parked.count.Load() > 0 || p.workerCount() < p.maxWorkers()
}

func (p *Pool) anyQueued() bool {
	for _, s := range p.shards {
		if s.nonEmpty.Load() {
			return true
		}
	}
	return false
}

// wakeOrStartWorker makes one more worker search for jobs. It wakes a parked worker or, if none is parked, starts a new
// worker. If the maximum number of workers is reached, it wakes the controller instead.
func (p *Pool) wakeOrStartWorker() {
	if w := p.popParked(); w != nil {
		p.wakeToSearch(w)
	} else if p.workerCount() >= p.maxWorkers() || !p.startWorkerIfAllowed(queuedTask{}, 0) {
		p.wakeController()
	}
}

func (p *Pool) wakeOrStartWorkerIfQueued() (attempted bool) {
	if p.searching.Load() > 0 || !p.anyQueued() {
		return false
	}
	p.wakeOrStartWorker()
	return true
}

func (p *Pool) wakeToSearch(w *worker) {
	w.startSearching()
	w.wake <- queuedTask{}
}

// workerStack contains the parked workers. The worker that parked last is woken first, because its memory is most
// likely still in a CPU cache.
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

// popParked removes and returns the worker that parked last. It returns nil if no worker is parked. The caller must
// wake the worker.
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
