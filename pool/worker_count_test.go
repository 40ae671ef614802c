package pool_test

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/pool"
)

// Jobs of one submitter run in order of arrival within a shard, with and without the rules.
func TestOrderOfArrival(t *testing.T) {
	for _, plain := range []bool{false, true} {
		inBubble(t, plainConfig(1, oneShard, plain), func(t *testing.T, p *pool.Pool) {
			release := occupyWorkers(t, p, 1)
			var order []int
			for i := range oneShard / 2 {
				mustSubmit(t, p, 1, func(context.Context) { order = append(order, i) })
			}
			release()
			synctest.Wait()
			if len(order) != oneShard/2 || !slices.IsSorted(order) {
				t.Errorf("plain %v: %d jobs ran in the order %v, want %d in order of arrival", plain, len(order), order, oneShard/2)
			}
		})
	}
}

// A job that is queued wakes a parked worker. The controller does not help in this bubble, because no time passes.
func TestQueuedJobWakesWorker(t *testing.T) {
	inBubble(t, fixedConfig(1, 64), func(t *testing.T, p *pool.Pool) {
		synctest.Wait() // the worker parks
		ran := false
		testkit.RequireNoError(t, pool.Enqueue(p, func(context.Context) { ran = true }))
		if synctest.Wait(); !ran {
			t.Error("the job waits while the worker is parked")
		}
	})
}

// No job waits while a worker is parked, whenever it was submitted. The controller does not help
// in this bubble, because no time passes.
func TestNobodySleepsWhileJobsWait(t *testing.T) {
	const workers = 5
	for i := range 300 {
		inBubble(t, fixedConfig(workers, 64), func(t *testing.T, p *pool.Pool) {
			for range i % 7 {
				runtime.Gosched()
			}
			gate := make(chan struct{})
			defer close(gate)
			mustSubmit(t, p, workers, func(context.Context) { <-gate })
			synctest.Wait()
			if s := p.Stats(); s.Running != workers || s.Queued != 0 {
				t.Errorf("%d run and %d wait, with %d workers idle", s.Running, s.Queued, s.Idle)
			}
		})
	}
}

// A worker yields after its quantum before it takes a waiting job, so that other goroutines run.
func TestWorkersYield(t *testing.T) {
	setProcessors(t, 1)
	const rounds = 20
	others := 0 // rounds in which the other one came first, but for whims of Go's scheduler
	for range rounds {
		inBubble(t, fixedConfig(1, 0), func(t *testing.T, p *pool.Pool) {
			order := make(chan bool, 2)
			mustSubmit(t, p, 1, func(context.Context) {
				time.Sleep(time.Second)
				go func() { order <- true }() // runnable when this job ends
			})
			mustSubmit(t, p, 1, func(context.Context) { order <- false })
			if <-order {
				others++
			}
			<-order
		})
	}
	if others <= rounds/2 {
		t.Errorf("in %d of %d rounds another goroutine ran before the next job; expected most", others, rounds)
	}
}
