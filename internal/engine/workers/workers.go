// Package workers is a plain bounded pool of goroutines for the handlers of
// event-driven models.
//
// A worker is started when there is work and none is idle, up to the bound;
// beyond it a queue of the same size takes the work, and beyond that nothing
// does. Every second an eighth of the idle workers ends. The channels are never
// closed, so that a TrySubmit that races with Close is safe; Close waits until
// all that was taken has run.
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
	idle    atomic.Int64
	hand    chan engine.Runner // to an idle worker
	queue   chan engine.Runner
	dismiss chan struct{} // ends one idle worker
	quit    chan struct{}
	running sync.WaitGroup
	tending sync.Once
}

// New makes a pool of at most n workers. It starts no goroutine before there is
// work.
func New(n int) *Pool {
	return &Pool{
		most: int64(n), hand: make(chan engine.Runner), queue: make(chan engine.Runner, n),
		dismiss: make(chan struct{}), quit: make(chan struct{}),
	}
}

// TrySubmit implements engine.Pool.
func (p *Pool) TrySubmit(r engine.Runner) bool {
	select {
	case p.hand <- r:
		return true
	default:
	}
	if p.started.Load() < p.most {
		if p.started.Add(1) <= p.most {
			p.tending.Do(func() { p.running.Go(p.tend) })
			p.running.Go(func() { p.work(r) })
			return true
		}
		p.started.Add(-1)
	}
	select {
	case p.queue <- r:
		return true
	default:
		return false
	}
}

// Workers is the number of workers now.
func (p *Pool) Workers() int { return int(p.started.Load()) }

// work runs r, and then what comes.
func (p *Pool) work(r engine.Runner) {
	defer p.started.Add(-1)
	for {
		r.Run()
		select {
		case r = <-p.queue:
			continue
		default:
		}
		p.idle.Add(1)
		select {
		case r = <-p.queue:
		case r = <-p.hand:
		case <-p.dismiss:
			p.idle.Add(-1)
			return
		case <-p.quit:
			p.idle.Add(-1)
			return
		}
		p.idle.Add(-1)
	}
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
		for range (p.idle.Load() + 7) / 8 {
			select {
			case p.dismiss <- struct{}{}:
			default:
			}
		}
	}
}

// Close ends the workers when they have run what was taken, and waits for them.
// Nothing may be submitted any more. Further calls do nothing.
func (p *Pool) Close() {
	select {
	case <-p.quit:
		return
	default:
	}
	close(p.quit)
	p.running.Wait()
	for {
		select {
		case r := <-p.queue:
			r.Run()
		default:
			return
		}
	}
}
