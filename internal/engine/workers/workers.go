// Package workers is a plain bounded pool of goroutines for the handlers of
// event-driven models.
//
// A worker is started when there is work and none is idle, up to the bound;
// beyond it a queue of the same size takes the work, and beyond that nothing
// does. Every second an eighth of the idle workers ends.
//
// All workers wait for one channel. A mutex would be simpler, but the submitter
// is an event loop, locked to its thread: if that had to wait for a mutex, the
// thread would sleep. One counter, spare, is the number of idle workers less the
// pieces of work in the channel. Who takes one from it and leaves it at 0 or
// above has found an idle worker; who leaves it below 0 has not.
package workers

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// shrinkEvery is how often idle workers are ended.
const shrinkEvery = time.Second

// Pool has workers up to a bound, and a queue with the same.
type Pool struct {
	most    int64
	started atomic.Int64
	taken   atomic.Int64 // pieces of work that have not run to their end
	spare   atomic.Int64
	work    chan engine.Runner // nil ends a worker; has room for all that is taken
	quit    chan struct{}
	tending sync.Once
	tender  sync.WaitGroup
	running sync.WaitGroup
	closed  sync.Once
}

// New makes a pool of at most n workers. It starts no goroutine before there is
// work.
func New(n int) *Pool {
	return &Pool{most: int64(n), work: make(chan engine.Runner, 2*n), quit: make(chan struct{})}
}

// TrySubmit implements engine.Pool. Nothing may be submitted after Close.
func (p *Pool) TrySubmit(r engine.Runner) bool {
	if p.taken.Add(1) > 2*p.most {
		p.taken.Add(-1)
		return false
	}
	if p.spare.Add(-1) < 0 && p.start(r) {
		p.spare.Add(1)
		return true
	}
	p.work <- r
	return true
}

// start starts a worker with r, unless there are enough.
func (p *Pool) start(r engine.Runner) bool {
	if p.started.Load() >= p.most {
		return false
	}
	if p.started.Add(1) > p.most {
		p.started.Add(-1)
		return false
	}
	p.tending.Do(func() { p.tender.Go(p.tend) })
	p.running.Go(func() { p.run(r) })
	return true
}

// Workers is the number of workers now.
func (p *Pool) Workers() int { return int(p.started.Load()) }

// run is a worker: it runs r, and then what comes.
func (p *Pool) run(r engine.Runner) {
	for {
		for r != nil {
			r.Run()
			p.taken.Add(-1)
			p.spare.Add(1)
			r = <-p.work
		}
		if p.ends() {
			return
		}
		r = <-p.work
	}
}

// ends says whether a worker that is to end may. Until its place was free a
// submitter may have left work in the channel, for want of workers to start: then
// it stays, if no other has taken the place. One of the two sees the other,
// because the submitter counts the work first, and the worker its place.
func (p *Pool) ends() bool {
	p.started.Add(-1)
	if p.spare.Load() >= 0 {
		return true
	}
	if p.started.Add(1) > p.most {
		p.started.Add(-1)
		return true
	}
	p.spare.Add(1)
	return false
}

// tend ends idle workers.
func (p *Pool) tend() {
	ticker := time.NewTicker(shrinkEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-p.quit:
			return
		}
		for range (p.spare.Load() + 7) / 8 {
			if p.spare.Add(-1) < 0 {
				p.spare.Add(1)
				break
			}
			p.work <- nil
		}
	}
}

// Close ends the workers when they have run what was taken, and waits for them.
// Further calls wait, too.
func (p *Pool) Close() {
	p.closed.Do(func() {
		close(p.quit)
		p.tender.Wait()
		for range p.started.Load() {
			p.work <- nil // behind all that was taken
		}
		p.running.Wait()
	})
}
