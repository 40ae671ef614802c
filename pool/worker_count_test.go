package pool_test

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/pool"
)

// Jobs of one submitter run in order of arrival within a shard, with and without the rules.
func TestOrderOfArrival(t *testing.T) {
	for _, plain := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := startPool(t, plainConfig(1, oneShard, plain))
			release := occupyWorkers(t, p, 1)
			var order []int
			for i := range oneShard / 2 {
				mustSubmit(t, p, func(context.Context) { order = append(order, i) })
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
	synctest.Test(t, func(t *testing.T) {
		p := startPool(t, fixedConfig(1, 64))
		synctest.Wait() // the worker parks
		ran := false
		if err := pool.Enqueue(p, func(context.Context) { ran = true }); err != nil {
			t.Fatal(err)
		}
		if synctest.Wait(); !ran {
			t.Error("the job waits while the worker is parked")
		}
	})
}

// No job waits while a worker is parked, whenever it was submitted. The controller does not help
// in this bubble, because no time passes.
func TestNobodySleepsWhileJobsWait(t *testing.T) {
	for i := range 300 {
		synctest.Test(t, func(t *testing.T) {
			const workers = 5
			p := startPool(t, fixedConfig(workers, 64))
			for range i % 7 {
				runtime.Gosched()
			}
			gate := make(chan struct{})
			defer close(gate)
			for range workers {
				mustSubmit(t, p, func(context.Context) { <-gate })
			}
			synctest.Wait()
			if s := p.Stats(); s.Running != workers || s.Queued != 0 {
				t.Errorf("%d run and %d wait, with %d workers idle", s.Running, s.Queued, s.Idle)
			}
		})
	}
}

// A worker yields after its quantum before it takes a waiting job, so that other goroutines run.
func TestWorkersYield(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const rounds = 20
	others := 0 // rounds in which the other one came first, but for whims of Go's scheduler
	for range rounds {
		synctest.Test(t, func(t *testing.T) {
			p := startPool(t, fixedConfig(1, 0))
			order := make(chan bool, 2)
			p.TrySubmit(func(context.Context) {
				time.Sleep(time.Second)
				go func() { order <- true }() // runnable when this job ends
			})
			p.TrySubmit(func(context.Context) { order <- false })
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
