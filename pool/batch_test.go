package pool

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Each task of a batch goes to the worker or to the thief, whenever that comes.
func TestBatchTheft(t *testing.T) {
	var b batch
	ran := make([]atomic.Int32, 20_000*maxBatch)
	var stop atomic.Bool
	var thief sync.WaitGroup
	stolenTasks := 0
	thief.Go(func() {
		for !stop.Load() {
			tasks, _ := b.steal()
			for _, task := range tasks {
				ran[task.Job.(number)].Add(1)
				stolenTasks++
			}
		}
	})
	for round := range len(ran) / maxBatch {
		var r ring
		for i := range maxBatch {
			r.push(&Task{Job: number(round*maxBatch + i)}, 1)
		}
		b.fill(&r, maxBatch, Normal)
		for {
			j, _ := b.next()
			if j == nil {
				break
			}
			ran[j.(number)].Add(1)
		}
	}
	stop.Store(true)
	thief.Wait()
	for i := range ran {
		if n := ran[i].Load(); n != 1 {
			t.Fatalf("task %d was taken %d times", i, n)
		}
	}
	t.Logf("%d of %d were stolen", stolenTasks, len(ran))
}

// Quick jobs that wait in the batch of a worker which does not come back run all the
// same, and keep what they came with.
func TestStuckBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := New(Config{Max: 4, Queue: 1000, Off: Adapting})
		if err != nil {
			t.Fatal(err)
		}
		p.trust.needs.Store(1) // all are trusted
		p.trust.judge(true, 1, new(int))
		p.procs = 1 // so that one worker takes them all
		release := make(chan struct{})
		var ran, keyed atomic.Int64
		block := func(context.Context) { <-release }
		hold := make(chan struct{})
		if err := p.TrySubmit(func(context.Context) { <-hold }); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for range 40 {
			if err := p.TrySubmitTask(Task{Job: Func(block), Ctx: ctx, Key: 7}); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				p.TrySubmitTask(Task{Key: 7, Ctx: ctx, Job: Func(func(c context.Context) {
					ran.Add(1)
					if c.Done() != nil {
						keyed.Add(1)
					}
				})})
			}
		}
		p.Resize(0, 41+1)
		close(hold)
		time.Sleep(time.Second) // many looks of the tender
		synctest.Wait()
		if ran.Load() != 120 || keyed.Load() != 120 {
			t.Errorf("of 120 quick jobs behind jobs that block %d have run, %d with their contexts", ran.Load(), keyed.Load())
		}
		close(release)
		if dropped, err := p.Close(context.Background()); err != nil || len(dropped) > 0 {
			t.Error(dropped, err)
		}
	})
}
