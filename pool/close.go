package pool

import (
	"context"
	"fmt"
	"time"
)

// grace is how long Close waits for jobs whose contexts it has cancelled.
const grace = time.Second

// Close accepts no more jobs and waits until those that were accepted have run.
// When ctx ends first, it drops the jobs that still wait, and returns them; then it
// cancels the contexts of those that run, with ErrClosed as the cause, and waits a
// second at most for them. The error wraps the cause of ctx's end then, and says
// how many jobs still run. Further calls wait in the same way, and have the same
// effect when their ctx ends, but each dropped job is returned once.
//
// A job that calls Close waits for itself: it does so in a goroutine of its own, or
// with a context that ends.
func (p *Pool) Close(ctx context.Context) (dropped []Task, err error) {
	if p.begin() {
		go p.finish()
	}
	select {
	case <-p.over:
		return nil, nil
	case <-ctx.Done():
	}
	dropped = p.drop()
	p.stop(ErrClosed)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.over:
	case <-timer.C:
	}
	if running := p.Stats().Running; len(dropped) > 0 || running > 0 {
		err = fmt.Errorf("pool: close: %d jobs were dropped and %d still run: %w", len(dropped), running, context.Cause(ctx))
	}
	return dropped, err
}

// begin has the pool accept no more, and says whether it was the first to.
func (p *Pool) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return false
	}
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
	}
	p.closed.Store(true)
	p.wakeAll()
	if p.size.Or(closedBit) == 0 {
		close(p.ended)
	}
	return true
}

// finish has the workers end when there is nothing left to do, and then the rest.
func (p *Pool) finish() {
	for w := p.popIdle(); w != nil; w = p.popIdle() {
		p.send(w)
	}
	<-p.ended
	p.tender.end()
	p.running.Wait()
	p.stop(ErrClosed)
	close(p.over)
}

// drop takes all tasks out of the queue and out of the workers' batches, and tells
// them. The queue comes first: it is closed, so that no batch is filled again.
func (p *Pool) drop() (dropped []Task) {
	p.tender.mu.Lock() // who gives batches back
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		dropped = s.empty(dropped)
		s.mu.Unlock()
	}
	batches := len(dropped)
	for _, w := range *p.table.Load() {
		tasks, _ := w.batch.steal()
		dropped = append(dropped, tasks...)
	}
	p.tender.mu.Unlock()
	s := &p.shards[0]
	s.mu.Lock()
	s.tally.dropped += uint64(len(dropped) - batches)
	s.mu.Unlock()
	for i := range dropped {
		p.tell(dropped[i].Job, ErrClosed)
	}
	return dropped
}
