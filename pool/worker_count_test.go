package pool_test

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// Jobs of one submitter run in order of arrival within a shard, with and without the rules.
func TestOrderOfArrival(t *testing.T) {
	setProcessors(t, 2)
	for _, test := range []struct{ queue, shards int }{{oneShard, 1}, {manyShards, 4}} {
		for _, plain := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				cfg := fixedConfig(1, test.queue)
				cfg.FixedLimit, cfg.KeepQueued, cfg.FIFO = plain, plain, plain
				p := startPool(t, cfg)
				release := occupyWorkers(t, p, 1)
				var order []int
				for i := range test.queue / 2 {
					if err := p.TrySubmit(func(context.Context) { order = append(order, i) }); err != nil {
						t.Fatal(err)
					}
				}
				release()
				synctest.Wait()
				if n := countAscendingRuns(order); len(order) != test.queue/2 || n > test.shards {
					t.Errorf("queue %d, plain %v: %d jobs ran in %d ascending sequences, want %d in at most %d: %v",
						test.queue, plain, len(order), n, test.queue/2, test.shards, order)
				}
			})
		}
	}
}

// countAscendingRuns returns the minimum number of ascending sequences that order can be split
// into.
func countAscendingRuns(order []int) int {
	var last []int // of each sequence, in descending order
	for _, v := range order {
		i := slices.IndexFunc(last, func(l int) bool { return l < v })
		if i < 0 {
			last = append(last, v)
		} else {
			last[i] = v
		}
	}
	return len(last)
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
				if err := p.TrySubmit(func(context.Context) { <-gate }); err != nil {
					t.Fatal(err)
				}
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
