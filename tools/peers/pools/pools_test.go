// Package pools benchmarks myriad's pool against others. README.md in the parent folder describes how to run
// the benchmarks.
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
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/pool"
	"github.com/panjf2000/ants/v2"
)

const (
	workers     = 64
	queue       = 1024
	testTimeout = 2 * time.Minute
)

// openPool is an open pool with a job in the form that the pool takes.
type openPool struct {
	// submit runs the job once and waits for space; trySubmit reports false if there is none.
	submit    func() error
	trySubmit func() bool
	// drainAndClose waits until every accepted job has run, and closes the pool. It is included in the
	// measured time.
	drainAndClose func() error
	ours          *pool.Pool // nil for other pools
}

// contenders are the pools to compare. trying means that trySubmit will be used instead of submit; some pools
// must know in advance.
var contenders = []struct {
	name string
	open func(job func(), trying bool) (openPool, error)
}{
	{"channel", openChannel}, {"ours", openOurs}, {"ants", openAnts}, {"pond", openPond}, {"goroutine", openGoroutines},
}

// openChannel opens a ten-line pool on a channel: without context, panic handling and statistics.
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

// openOurs opens myriad's pool with a fixed number of workers, like the others, and all rules active.
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

// openAnts opens an ants pool, which has no queue: submitters wait for a worker. Idle workers stay, as in its own
// benchmarks (DisablePurge).
func openAnts(job func(), trying bool) (openPool, error) {
	p, err := ants.NewPool(workers, ants.WithNonblocking(trying), ants.WithDisablePurge(true))
	// Release polls. Instead, each worker gets another job that ends when all workers have one: then all other
	// jobs have run.
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

// openPond opens a pond pool and uses Go, its fastest method. Whether it waits is an option of the pool.
func openPond(job func(), trying bool) (openPool, error) {
	p := pond.NewPool(workers, pond.WithQueueSize(queue), pond.WithNonBlocking(trying))
	return openPool{
		submit:        func() error { return p.Go(job) },
		trySubmit:     func() bool { return p.Go(job) == nil },
		drainAndClose: func() error { p.StopAndWait(); return nil },
	}, nil
}

// openGoroutines uses a goroutine for each job, without a limit.
func openGoroutines(job func(), _ bool) (openPool, error) {
	var wg sync.WaitGroup
	submit := func() error { wg.Go(job); return nil }
	return openPool{
		submit:        submit,
		trySubmit:     func() bool { return submit() == nil },
		drainAndClose: func() error { wg.Wait(); return nil },
	}, nil
}

// BenchmarkSubmit submits empty jobs and waits for space. The time includes all jobs, so that a queue hides
// nothing.
func BenchmarkSubmit(b *testing.B) { benchmarkContenders(b, func() {}, false) }

// BenchmarkSubmitMicrosecond is BenchmarkSubmit with a job that computes for about 1 µs.
func BenchmarkSubmitMicrosecond(b *testing.B) { benchmarkContenders(b, computeMicrosecond, false) }

// BenchmarkTrySubmit submits empty jobs until they are accepted: an op is an accepted job; rejected/op counts
// the rejections before.
func BenchmarkTrySubmit(b *testing.B) { benchmarkContenders(b, func() {}, true) }

// benchmarkContenders runs a benchmark for every number of submitters and every contender. The names are keys
// and values for benchstat.
func benchmarkContenders(b *testing.B, job func(), trying bool) {
	for _, submitters := range []int{2, 100, 10_000} {
		b.Run("submitters="+strconv.Itoa(submitters), func(b *testing.B) {
			for _, c := range contenders {
				b.Run("pool="+c.name, func(b *testing.B) {
					b.ReportAllocs()
					s, err := c.open(job, trying)
					testkit.RequireNoError(b, err)
					rejected := submitConcurrently(b, s, trying, submitters, b.N, b.ResetTimer)
					testkit.ExpectNoError(b, s.drainAndClose())
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

// countLost returns how many accepted jobs have not run according to the pool: those shed because they waited
// too long on a slow machine.
func (s *openPool) countLost() int {
	if s.ours == nil {
		return 0
	}
	stats := s.ours.Stats()
	return int(stats.Shed + stats.Expired + stats.Dropped)
}

// submitConcurrently submits n jobs from several goroutines, an equal share each, and returns how often one was
// rejected. It starts the goroutines, calls begin, and then releases all of them. The shares are fixed because
// otherwise the goroutines scheduled first would submit everything.
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

// computeMicrosecond computes for about 1 µs: 500 steps, each of which depends on the previous one.
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

// TestContenders checks that every contender runs each accepted job before drainAndClose returns, with no more workers
// than allowed.
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
					runtime.Gosched() // lets excess workers show
					running.Add(-1)
					ran.Add(1)
				}, trying)
				testkit.RequireNoError(t, err)
				submitConcurrently(t, s, trying, submitters, n, func() {})
				testkit.ExpectNoError(t, s.drainAndClose())
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
