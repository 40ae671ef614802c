package pool_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/pool"
)

// processors has Go use so many processors for a test: a queue has up to two shards for
// each when its pool is made.
func processors(t *testing.T, n int) {
	t.Helper()
	before := runtime.GOMAXPROCS(n)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// A queue of 64 is one shard; one of 4,096 is several, on any machine.
const (
	oneShard   = 64
	manyShards = 4096
)

// lineUp has jobs wait behind one that holds the only worker, in the order of tasks,
// and gives the order in which they run: places in tasks. Each takes as long. The pool
// has had jobs of all keys before: one that knows of one key only, and then has a queue
// full of it, can't spread that any more when others come.
func lineUp(t *testing.T, cfg pool.Config, each time.Duration, tasks []pool.Task) (order []int) {
	t.Helper()
	p := start(t, cfg)
	had := make(map[uint64]bool)
	for _, task := range tasks {
		if !had[task.Key] {
			had[task.Key] = true
			if err := p.SubmitTask(pool.Task{Job: pool.Func(nothing), Key: task.Key}); err != nil {
				t.Fatal(err)
			}
		}
	}
	synctest.Wait()
	release := hold(t, p, 1)
	for i, task := range tasks {
		task.Job = pool.Func(func(context.Context) {
			order = append(order, i)
			time.Sleep(each)
		})
		if err := p.TrySubmitTask(task); err != nil {
			t.Fatalf("job %d: %v", i, err)
		}
	}
	release()
	time.Sleep(time.Duration(len(tasks)+1) * each)
	synctest.Wait()
	if len(order) != len(tasks) {
		t.Fatalf("%d of %d jobs have run: %+v", len(order), len(tasks), p.Stats())
	}
	return order
}

// A calm pool without fairness is a queue in order of arrival; over several shards
// that order is rough.
func TestOrderOfArrival(t *testing.T) {
	for _, off := range []pool.Rules{pool.AllRules, pool.Fairness, 0} {
		for _, queue := range []int{oneShard, manyShards} {
			synctest.Test(t, func(t *testing.T) {
				cfg := fixed(1, queue)
				cfg.Off = off
				// What one submitter has waiting until its shard is full: what it has
				// in others runs at the same time.
				n := queue / cfg.Shards()
				tasks := make([]pool.Task, n)
				for i := range tasks {
					if off&pool.Fairness != 0 {
						tasks[i].Key = uint64(i % 5) // of no importance then
					}
				}
				order := lineUp(t, cfg, time.Millisecond, tasks)
				if queue == oneShard && !slices.IsSorted(order) {
					t.Errorf("off %b: jobs of one shard ran as %v; expected the order of arrival", off, order)
				}
				// Rough: the first half of those that came is, but for some, the
				// first half of those that ran.
				early := 0
				for _, i := range order[:n/2] {
					if i < n/2 {
						early++
					}
				}
				if early < n/2*9/10 {
					t.Errorf("off %b, queue %d: of the first half that ran only %d of %d came in the first half", off, queue, early, n/2)
				}
			})
		}
	}
}

// As long as one of a higher priority waits, none of a lower one runs: over all
// shards, and whatever the other rules are. Of jobs that take no time a worker takes
// a few at once.
func TestHighRunsFirst(t *testing.T) {
	for _, n := range []int{2, 64} {
		t.Run(fmt.Sprint(n, " processors"), func(t *testing.T) {
			processors(t, n)
			highRunsFirst(t)
		})
	}
}

func highRunsFirst(t *testing.T) {
	const few = 64
	for _, off := range []pool.Rules{0, pool.Fairness, pool.NewestFirst, pool.Shedding, pool.AllRules} {
		for _, queue := range []int{oneShard, manyShards} {
			for _, each := range []time.Duration{0, time.Millisecond} {
				synctest.Test(t, func(t *testing.T) {
					cfg := fixed(1, queue)
					cfg.Off = off
					tasks := make([]pool.Task, queue)
					for i := range tasks {
						tasks[i] = pool.Task{Priority: pool.Priority(i%3 - 1), Key: uint64(i / 3 % 4)}
					}
					order := lineUp(t, cfg, each, tasks)
					early, last := 0, pool.High
					for _, i := range order {
						if tasks[i].Priority > last {
							early++ // others have run that were to wait for it
						}
						last = min(last, tasks[i].Priority)
					}
					if each != 0 && early != 0 || early > few {
						t.Errorf("off %b, queue %d, jobs of %v: %d ran after one of a lower priority", off, queue, each, early)
					}
				})
			}
		}
	}
}

// One that comes while others are being run goes before those that wait.
func TestHighOvertakes(t *testing.T) {
	for _, queue := range []int{oneShard, manyShards} {
		synctest.Test(t, func(t *testing.T) {
			const workers = 4
			p := start(t, fixed(workers, queue))
			for range queue {
				// The rest of them waits in the queue when time goes on.
				if err := p.Submit(context.Background(), func(context.Context) { time.Sleep(time.Second) }); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(1500 * time.Millisecond)
			for range 10 {
				began := make(chan time.Time, 1)
				now := time.Now()
				task := pool.Task{Job: pool.Func(func(context.Context) { began <- time.Now() }), Priority: pool.High}
				if err := p.TrySubmitTask(task); err != nil {
					t.Fatal(err)
				}
				// A worker may have taken one job ahead, not more.
				if waited := receive(t, began, "a job of high priority").Sub(now); waited > 2*time.Second {
					t.Errorf("queue %d: a job of high priority waited %v; expected less than two jobs of a second", queue, waited)
				}
			}
		})
	}
}

// fill has tasks like this one fill the queue of a pool whose workers are held.
func fill(t *testing.T, p *pool.Pool, n int, like pool.Task) []*noted {
	t.Helper()
	jobs := make([]*noted, n)
	for i := range jobs {
		jobs[i] = &noted{t: t, name: fmt.Sprintf("filler %d of priority %d, key %d", i, like.Priority, like.Key)}
		task := like
		task.Job = jobs[i]
		if err := p.TrySubmitTask(task); err != nil {
			t.Fatalf("%s: %v", jobs[i].name, err)
		}
	}
	return jobs
}

// shed counts those that were shed, and fails for any other outcome.
func shed(t *testing.T, jobs []*noted) (n int) {
	t.Helper()
	for _, job := range jobs {
		if job.outcomes.Load() != 0 {
			job.mustDrop(pool.ErrShed)
			n++
		}
	}
	return n
}

// In a full queue the lowest priority makes room for a higher one, never the other
// way round, and not for its like.
func TestHighMakesRoom(t *testing.T) {
	for _, queue := range []int{1, oneShard, manyShards} {
		for _, prio := range []struct{ old, new pool.Priority }{
			{pool.Low, pool.Normal}, {pool.Low, pool.High}, {pool.Normal, pool.High},
			{pool.Low, pool.Low}, {pool.Normal, pool.Normal}, {pool.High, pool.High},
			{pool.Normal, pool.Low}, {pool.High, pool.Low}, {pool.High, pool.Normal},
		} {
			synctest.Test(t, func(t *testing.T) {
				p := start(t, fixed(1, queue))
				release := hold(t, p, 1)
				old := fill(t, p, queue, pool.Task{Priority: prio.old})
				newer, admitted := make([]*noted, 2*queue), 0
				for i := range newer {
					newer[i] = &noted{t: t, name: fmt.Sprint("newer ", i)}
					err := p.TrySubmitTask(pool.Task{Job: newer[i], Priority: prio.new})
					if err == nil {
						admitted++
					} else if !errors.Is(err, pool.ErrFull) {
						t.Fatal(err)
					}
				}
				want := 0
				if prio.new > prio.old {
					want = queue
				}
				if admitted != want {
					t.Errorf("queue %d: %d of priority %d were let in to a queue full of %d; expected %d", queue, admitted, prio.new, prio.old, want)
				}
				if got := shed(t, old); got != admitted {
					t.Errorf("queue %d: %d of priority %d were shed for %d of %d", queue, got, prio.old, admitted, prio.new)
				}
				release()
				synctest.Wait()
				ran := 0
				for _, job := range slices.Concat(old, newer) {
					if job.ran.Load() {
						ran++
					}
				}
				if s := p.Stats(); ran != queue || s.Shed != uint64(admitted) || s.Full != uint64(2*queue-admitted) {
					t.Errorf("queue %d: %d have run, %+v", queue, ran, s)
				}
			})
		}
	}
}

// A Submit with precedence does not wait for room, it is given some.
func TestHighDoesNotWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, fixed(1, oneShard))
		release := hold(t, p, 1)
		old := fill(t, p, oneShard, pool.Task{Priority: pool.Low})
		begin := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := p.SubmitTask(pool.Task{Job: pool.Func(nothing), Ctx: ctx, Priority: pool.High}); err != nil || time.Since(begin) != 0 {
			t.Errorf("got %v after %v; expected nil at once", err, time.Since(begin))
		}
		if n := shed(t, old); n != 1 {
			t.Errorf("%d of low priority were shed; expected 1", n)
		}
		release()
	})
}

// The jobs of keys with few do not wait for all of a key with very many. Keys are
// told apart by a hash, so that some may be unlucky.
func TestKeysTakeTurns(t *testing.T) {
	for _, n := range []int{1, 2, 4, 8, 64} {
		t.Run(fmt.Sprint(n, " processors"), func(t *testing.T) {
			processors(t, n)
			keysTakeTurns(t)
		})
	}
}

func keysTakeTurns(t *testing.T) {
	const few, each = 16, 5
	for _, queue := range []int{1000, 16384} {
		many := queue - few*each
		var tasks []pool.Task
		for range many {
			tasks = append(tasks, pool.Task{Key: 7})
		}
		for i := range few * each {
			tasks = append(tasks, pool.Task{Key: 1000 + uint64(i%few)*31})
		}
		// soon counts jobs of the small keys among the first that run: their share,
		// were all keys equal, four times over.
		soon := func(order []int) (n int) {
			for _, i := range order[:4*(few+1)*each] {
				if i >= many {
					n++
				}
			}
			return n
		}
		for _, off := range []pool.Rules{0, pool.Fairness, pool.AllRules} {
			synctest.Test(t, func(t *testing.T) {
				cfg := fixed(1, queue)
				cfg.Off = off
				n := soon(lineUp(t, cfg, time.Millisecond, tasks))
				if off == 0 && n < few*each*3/4 {
					t.Errorf("queue %d: %d of %d jobs of keys with few ran soon; expected nearly all", queue, n, few*each)
				}
				if off != 0 && n > few*each/4 {
					t.Errorf("queue %d: %d of %d jobs of keys with few ran soon without Fairness; expected nearly none", queue, n, few*each)
				}
			})
		}
	}
}

// The same while both keep coming: a key that offers a tenth of what can be run is
// served, whatever another offers.
func TestSmallKeyIsServedInAFlood(t *testing.T) {
	for _, n := range []int{1, 2, 4, 8} {
		t.Run(fmt.Sprint(n, " processors"), func(t *testing.T) {
			processors(t, n)
			smallKeyIsServedInAFlood(t)
		})
	}
}

func smallKeyIsServedInAFlood(t *testing.T) {
	for _, off := range []pool.Rules{0, pool.Fairness} {
		synctest.Test(t, func(t *testing.T) {
			// 10 workers, 10 ms a job: 1,000 jobs a second. The queue is standing,
			// and nothing but the keys is to help.
			p := start(t, pool.Config{Min: 10, Max: 10, Queue: 1000, Target: time.Hour, Off: off})
			offered, quick := 0, atomic.Int64{}
			for ms := range 3000 {
				for range 10 {
					_ = p.TrySubmitTask(pool.Task{Key: 1, Job: pool.Func(func(context.Context) { time.Sleep(10 * time.Millisecond) })})
				}
				if ms%10 == 0 {
					offered++
					begin := time.Now()
					_ = p.TrySubmitTask(pool.Task{Key: 2, Job: pool.Func(func(context.Context) {
						time.Sleep(10 * time.Millisecond)
						if time.Since(begin) < 100*time.Millisecond {
							quick.Add(1)
						}
					})})
				}
				time.Sleep(time.Millisecond)
			}
			time.Sleep(10 * time.Second)
			switch quick := int(quick.Load()); {
			case off == 0 && quick < offered*95/100:
				t.Errorf("%d of %d jobs of the small key were done within 100 ms; expected 95 %%", quick, offered)
			case off != 0 && quick > offered/2:
				t.Errorf("%d of %d jobs of the small key were done within 100 ms without Fairness: the test shows nothing", quick, offered)
			}
		})
	}
}

// In a full queue the key with the most makes room for one with fewer, until they
// are even.
func TestKeyWithTheMostMakesRoom(t *testing.T) {
	for _, queue := range []int{oneShard, manyShards} {
		for _, off := range []pool.Rules{0, pool.Fairness} {
			synctest.Test(t, func(t *testing.T) {
				cfg := fixed(1, queue)
				cfg.Off = off
				p := start(t, cfg)
				release := hold(t, p, 1)
				old := fill(t, p, queue, pool.Task{Key: 7})
				const keys = 16
				admitted := 0
				for i := range keys {
					job := &noted{t: t, name: fmt.Sprint("of key ", 1000+i)}
					switch err := p.TrySubmitTask(pool.Task{Job: job, Key: uint64(1000 + i)}); {
					case err == nil:
						admitted++
					case !errors.Is(err, pool.ErrFull):
						t.Error(err)
					}
				}
				if off != 0 && admitted != 0 {
					t.Errorf("queue %d: %d jobs were let in to a full queue without Fairness", queue, admitted)
				}
				if off == 0 && admitted < keys*3/4 {
					t.Errorf("queue %d: %d of %d jobs of keys with none were let in; expected nearly all", queue, admitted, keys)
				}
				if n := shed(t, old); n != admitted {
					t.Errorf("queue %d: %d were shed for %d that were let in", queue, n, admitted)
				}
				release()
			})
		}
	}
}

func TestKeysMakeRoomUntilTheyAreEven(t *testing.T) {
	even := 0
	const keys = 16 // a pool puts each where another key may be, one in 64 times
	for key := range uint64(keys) {
		synctest.Test(t, func(t *testing.T) {
			p := start(t, fixed(1, oneShard))
			release := hold(t, p, 1)
			old := fill(t, p, oneShard, pool.Task{Key: 100})
			admitted := 0
			for range 2 * oneShard {
				if p.TrySubmitTask(pool.Task{Job: pool.Func(nothing), Key: key}) == nil {
					admitted++
				}
			}
			if admitted > oneShard/2+1 {
				t.Errorf("key %d has %d places of %d; expected about half", key, admitted, oneShard)
			}
			if admitted >= oneShard/2-2 {
				even++
			}
			if n := shed(t, old); n != admitted {
				t.Errorf("key %d: %d were shed for %d", key, n, admitted)
			}
			release()
		})
	}
	if even < keys*3/4 {
		t.Errorf("%d of %d keys came to have about half of the places; expected nearly all", even, keys)
	}
}
