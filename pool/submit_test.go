package pool_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/pool"
)

// Ten thousand that wait for room all get it, each of its jobs runs once, and none
// waits much longer than its turn.
func TestManyWaitForRoom(t *testing.T) {
	for _, queue := range []int{pool.NoQueue, 1, 64, 500} {
		p, err := pool.New(fixed(2, queue))
		if err != nil {
			t.Fatal(err)
		}
		const submitters = 10_000
		var ran atomic.Int64
		done := make(chan struct{})
		var wg sync.WaitGroup
		release := hold(t, p, 2)
		for range submitters {
			wg.Go(func() {
				if err := p.Submit(context.Background(), func(context.Context) { ran.Add(1) }); err != nil {
					t.Errorf("Submit: %v", err)
				}
			})
		}
		release()
		go func() { wg.Wait(); close(done) }()
		receive(t, done, "all to get room")
		if _, err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if s := balance(t, p); ran.Load() != submitters || s.Full != 0 {
			t.Errorf("queue %d: %d of %d have run, full %d", queue, ran.Load(), submitters, s.Full)
		}
	}
}

// None starves: those that wait for room get it about in the order in which they
// came, though others keep coming.
func TestNoWaiterStarves(t *testing.T) {
	for _, queue := range []int{pool.NoQueue, 1, 64, 500} {
		synctest.Test(t, func(t *testing.T) {
			p := start(t, fixed(1, queue))
			release := hold(t, p, 1)
			for range max(queue, 0) {
				if err := p.TrySubmit(nothing); err != nil {
					t.Fatal(err)
				}
			}
			// A thousand wait; then each that gets in is followed by another.
			const first, all = 1000, 5000
			job := pool.Func(func(context.Context) { time.Sleep(time.Millisecond) })
			var mu sync.Mutex
			var waits []time.Duration
			var left atomic.Int64
			left.Store(all - first)
			var wg sync.WaitGroup
			for range first {
				wg.Go(func() {
					for {
						begin := time.Now()
						if err := p.Submit(context.Background(), job); err != nil {
							t.Errorf("Submit: %v", err)
						}
						mu.Lock()
						waits = append(waits, time.Since(begin))
						mu.Unlock()
						if left.Add(-1) < 0 {
							return
						}
					}
				})
			}
			synctest.Wait()
			release()
			wg.Wait()
			// A job takes a millisecond and a thousand wait: a turn is a second.
			var worst time.Duration
			for _, w := range waits {
				worst = max(worst, w)
			}
			if len(waits) != all || worst > 1500*time.Millisecond {
				t.Errorf("queue %d: %d got room, one has waited %v; expected %d, a second or so", queue, len(waits), worst, all)
			}
		})
	}
}

// Those that give up leave the line, and do not take the turn of those that stay.
func TestWaitersLeave(t *testing.T) {
	for _, queue := range []int{pool.NoQueue, 1, 64} {
		synctest.Test(t, func(t *testing.T) {
			p := start(t, fixed(1, queue))
			release := hold(t, p, 1)
			for range max(queue, 0) {
				if err := p.TrySubmit(nothing); err != nil {
					t.Fatal(err)
				}
			}
			const waiting = 1000
			ctx, cancel := context.WithCancelCause(context.Background())
			jobs := make([]noted, 2*waiting)
			var left, through, wrong atomic.Int64
			for i := range jobs {
				jobs[i] = noted{t: t, name: "stays"}
				task := pool.Task{Job: &jobs[i]}
				if i%2 == 0 {
					jobs[i].name, task.Ctx = "leaves", ctx
				}
				go func() {
					switch err := p.SubmitTask(task); {
					case err == nil:
						through.Add(1)
					case errors.Is(err, errWhy) && i%2 == 0:
						left.Add(1)
					default:
						wrong.Add(1)
						t.Errorf("job %d: %v", i, err)
					}
				}()
			}
			synctest.Wait()
			cancel(errWhy)
			synctest.Wait()
			if left.Load() != waiting || through.Load() != 0 {
				t.Errorf("queue %d: %d have left, %d got room; expected %d, 0", queue, left.Load(), through.Load(), waiting)
			}
			release()
			synctest.Wait()
			if through.Load() != waiting {
				t.Errorf("queue %d: %d of those that stayed got room; expected %d", queue, through.Load(), waiting)
			}
			for i := range jobs {
				if i%2 == 0 {
					jobs[i].mustNothing()
				} else {
					jobs[i].mustRun()
				}
			}
		})
	}
}

// The same as a race: contexts end while workers take jobs, for a while. A turn that
// gets lost leaves somebody waiting for ever, which synctest sees.
func TestWaitersLeaveInARace(t *testing.T) {
	for round := range 20 {
		synctest.Test(t, func(t *testing.T) {
			p := start(t, fixed(1+round%3, []int{pool.NoQueue, 1, 4, 64}[round%4]))
			var ran, accepted atomic.Int64
			var wg sync.WaitGroup
			for i := range 400 {
				wg.Go(func() {
					for j := range 5 {
						ctx, cancel := context.Background(), context.CancelFunc(func() {})
						if i%2 == 0 {
							ctx, cancel = context.WithTimeout(ctx, time.Duration((i+j)%50)*time.Millisecond)
						}
						err := p.SubmitTask(pool.Task{Ctx: ctx, Job: pool.Func(func(context.Context) {
							ran.Add(1)
							time.Sleep(time.Millisecond)
						})})
						if err == nil {
							accepted.Add(1)
						} else if i%2 == 1 {
							t.Errorf("Submit: %v", err)
						}
						defer cancel()
					}
				})
			}
			wg.Wait()
			if _, err := p.Close(context.Background()); err != nil {
				t.Error(err)
			}
			s := balance(t, p)
			if s.Accepted != uint64(accepted.Load()) || s.Finished != uint64(ran.Load()) || s.Full+s.Late != uint64(2000-accepted.Load()) {
				t.Errorf("accepted %d, ran %d, but %+v", accepted.Load(), ran.Load(), s)
			}
		})
	}
}

// A Submit from within a job is one like any other.
func TestSubmitFromAJob(t *testing.T) {
	p := start(t, pool.Config{Min: 1, Max: 1, Queue: 1})
	done := make(chan int, 1)
	var step func(n int) pool.Func
	step = func(n int) pool.Func {
		return func(context.Context) {
			if n == 1000 {
				done <- n
			} else if err := p.Submit(context.Background(), step(n+1)); err != nil {
				t.Errorf("job %d: %v", n, err)
				done <- n
			}
		}
	}
	if err := p.TrySubmit(step(1)); err != nil {
		t.Fatal(err)
	}
	receive(t, done, "a chain of jobs")
}
