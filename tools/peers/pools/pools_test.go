// Package pools compares myriad's pool with others, by benchmarks. README.md of
// the folder above says how to run them.
package pools

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alitto/pond/v2"
	"github.com/myriad-go/myriad/pool"
	"github.com/panjf2000/ants/v2"
)

const (
	workers     = 64
	queue       = 1024
	testTimeout = 2 * time.Minute
)

// openPool is an open pool, whose job is made once, in the form that the pool takes.
type openPool struct {
	// submit has the job run once, and waits for room; try says at once that there is
	// none.
	submit    func() error
	trySubmit func() bool
	// drainAndClose waits until every job that was accepted has run, and ends the pool. It is
	// part of what is timed.
	drainAndClose func() error
	ours          *pool.Pool // nil for the others
}

// contenders are the pools to compare, by name. trying says that the subject will be used
// with try, and not with submit: some must know before.
var contenders = []struct {
	name string
	open func(job func(), trying bool) (openPool, error)
}{
	{"channel", openChannel}, {"ours", openOurs}, {"ants", openAnts}, {"pond", openPond}, {"goroutine", openGoroutines},
}

// openChannel is the pool that one writes in ten lines: no context, no panics, no figures.
func openChannel(job func(), _ bool) (openPool, error) {
	jobs := make(chan func(), queue)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for f := range jobs {
				f()
			}
		})
	}
	return openPool{
		submit: func() error { jobs <- job; return nil },
		trySubmit: func() bool {
			select {
			case jobs <- job:
				return true
			default:
				return false
			}
		},
		drainAndClose: func() error { close(jobs); wg.Wait(); return nil },
	}, nil
}

// openOurs has a fixed number of workers like the others, and all its rules in force.
func openOurs(job func(), _ bool) (openPool, error) {
	p, err := pool.New(pool.Config{Min: workers, Max: workers, Queue: queue})
	f := pool.Func(func(context.Context) { job() })
	return openPool{
		submit:    func() error { return p.Submit(context.Background(), f) },
		trySubmit: func() bool { return p.TrySubmit(f) == nil },
		drainAndClose: func() error {
			ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
			defer cancel()
			_, err := p.Close(ctx)
			return err
		},
		ours: p,
	}, err
}

// openAnts has no queue: those who submit wait for a worker. Idle workers stay, as in its own
// measurements, which it calls DisablePurge.
func openAnts(job func(), trying bool) (openPool, error) {
	p, err := ants.NewPool(workers, ants.WithNonblocking(trying), ants.WithDisablePurge(true))
	// A release polls; so every worker gets one more job, that ends when all of them have
	// one: then all others have run.
	drain := func() error {
		var met sync.WaitGroup
		met.Add(workers)
		for range workers {
			err := ants.ErrPoolOverload
			for errors.Is(err, ants.ErrPoolOverload) {
				runtime.Gosched()
				err = p.Submit(func() { met.Done(); met.Wait() })
			}
			if err != nil {
				return err
			}
		}
		met.Wait()
		return p.ReleaseTimeout(testTimeout)
	}
	return openPool{
		submit:        func() error { return p.Submit(job) },
		trySubmit:     func() bool { return p.Submit(job) == nil },
		drainAndClose: drain,
	}, err
}

// openPond is used through Go, the fastest way in. It does not wait if the pool is made so.
func openPond(job func(), trying bool) (openPool, error) {
	p := pond.NewPool(workers, pond.WithQueueSize(queue), pond.WithNonBlocking(trying))
	return openPool{
		submit:        func() error { return p.Go(job) },
		trySubmit:     func() bool { return p.Go(job) == nil },
		drainAndClose: func() error { p.StopAndWait(); return nil },
	}, nil
}

// openGoroutines is no pool: a goroutine for each job, however many there are.
func openGoroutines(job func(), _ bool) (openPool, error) {
	var wg sync.WaitGroup
	submit := func() error { wg.Go(job); return nil }
	return openPool{
		submit:        submit,
		trySubmit:     func() bool { return submit() == nil },
		drainAndClose: func() error { wg.Wait(); return nil },
	}, nil
}

// BenchmarkSubmit is an empty job with a Submit that waits for room. The time is
// that until all jobs have run, so that a queue hides nothing.
func BenchmarkSubmit(b *testing.B) { benchmarkContenders(b, func() {}, false) }

// BenchmarkSubmitMicrosecond is the same with a job that computes for about 1 µs.
func BenchmarkSubmitMicrosecond(b *testing.B) { benchmarkContenders(b, computeMicrosecond, false) }

// BenchmarkTrySubmit is an empty job that is submitted until it is accepted: an
// op is an accepted job, rejected/op is how often it was not before.
func BenchmarkTrySubmit(b *testing.B) { benchmarkContenders(b, func() {}, true) }

// benchmarkContenders runs a benchmark for every number of submitters and every contender. Their names are
// keys and values for benchstat.
func benchmarkContenders(b *testing.B, job func(), trying bool) {
	for _, submitters := range []int{2, 100, 10_000} {
		b.Run("submitters="+strconv.Itoa(submitters), func(b *testing.B) {
			for _, c := range contenders {
				b.Run("pool="+c.name, func(b *testing.B) {
					b.ReportAllocs()
					s, err := c.open(job, trying)
					if err != nil {
						b.Fatal(err)
					}
					rejected := submitConcurrently(b, s, trying, submitters, b.N, b.ResetTimer)
					if err := s.drainAndClose(); err != nil {
						b.Error(err)
					}
					b.StopTimer()
					if trying {
						b.ReportMetric(float64(rejected)/float64(b.N), "rejected/op")
					}
					if n := s.countLost(); n > 0 {
						b.Errorf("%d of %d accepted jobs did not run: the time is not that of the jobs", n, b.N)
					}
				})
			}
		})
	}
}

// countLost is how many accepted jobs have not run, by the pool's own account: those that were shed,
// if the machine is so slow that they have waited too long.
func (s *openPool) countLost() int {
	if s.ours == nil {
		return 0
	}
	stats := s.ours.Stats()
	return int(stats.Shed + stats.Expired + stats.Dropped)
}

// submitConcurrently has n jobs submitted by so many goroutines, an equal share by each, and returns how
// often one was rejected. It starts the goroutines, calls begin, and then lets all of them go.
// Shares are fixed because otherwise the few that are scheduled first would submit everything.
func submitConcurrently(tb testing.TB, s openPool, trying bool, submitters, jobs int, onReady func()) int {
	var ready, ended sync.WaitGroup
	var rejected atomic.Int64
	gate := make(chan struct{})
	ready.Add(submitters)
	for i := range submitters {
		share := (jobs + i) / submitters
		ended.Go(func() {
			ready.Done()
			<-gate
			for range share {
				if !trying {
					if err := s.submit(); err != nil {
						tb.Errorf("a job was not accepted: %v", err)
						return
					}
					continue
				}
				for !s.trySubmit() {
					rejected.Add(1)
					runtime.Gosched()
				}
			}
		})
	}
	ready.Wait()
	onReady()
	close(gate)
	ended.Wait()
	return int(rejected.Load())
}

// computeMicrosecond computes for about 1 µs: 500 steps, each of which needs the last.
func computeMicrosecond() {
	x := uint64(88172645463325252)
	for range 500 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	if x == 0 {
		panic("xorshift does not become 0")
	}
}

// TestContenders has every contender show that it runs each accepted job before it is drained,
// on no more workers than the comparison needs.
func TestContenders(t *testing.T) {
	const submitters, n = 100, 10_050
	for _, c := range contenders {
		for _, trying := range []bool{false, true} {
			t.Run(c.name+" "+strconv.FormatBool(trying), func(t *testing.T) {
				var ran, running, most atomic.Int64
				s, err := c.open(func() {
					now := running.Add(1)
					for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
					}
					runtime.Gosched() // what does not wait for jobs has time to show it
					running.Add(-1)
					ran.Add(1)
				}, trying)
				if err != nil {
					t.Fatal(err)
				}
				submitConcurrently(t, s, trying, submitters, n, func() {})
				if err := s.drainAndClose(); err != nil {
					t.Error(err)
				}
				if ran := int(ran.Load()); ran+s.countLost() != n {
					t.Errorf("%d of %d jobs ran, and %d did not by the pool's account", ran, n, s.countLost())
				}
				if most := most.Load(); most > workers && c.name != "goroutine" {
					t.Errorf("%d jobs ran at a time; expected %d at most", most, workers)
				}
			})
		}
	}
}
