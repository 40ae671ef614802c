// Package workers is a plain bounded pool of goroutines for the handlers of
// event-driven models.
//
// The queue is a channel that Close never closes, so that a TrySubmit that
// races with it is safe; Close waits until all that was taken has run.
package workers

import (
	"sync"

	"github.com/myriad-go/myriad/internal/engine"
)

// Pool has a fixed number of goroutines and a queue with a bound.
type Pool struct {
	queue   chan engine.Runner
	quit    chan struct{}
	running sync.WaitGroup
}

// New starts a pool of n workers whose queue holds as many pieces of work again.
func New(n int) *Pool {
	p := &Pool{queue: make(chan engine.Runner, n), quit: make(chan struct{})}
	for range n {
		p.running.Go(p.work)
	}
	return p
}

func (p *Pool) work() {
	for {
		select {
		case r := <-p.queue:
			r.Run()
		case <-p.quit:
			p.empty()
			return
		}
	}
}

// empty runs what is left in the queue.
func (p *Pool) empty() {
	for {
		select {
		case r := <-p.queue:
			r.Run()
		default:
			return
		}
	}
}

// TrySubmit implements engine.Pool.
func (p *Pool) TrySubmit(r engine.Runner) bool {
	select {
	case p.queue <- r:
		return true
	default:
		return false
	}
}

// Close ends the workers when the queue is empty, and waits for them. Nothing
// may be submitted any more.
func (p *Pool) Close() {
	close(p.quit)
	p.running.Wait()
}
