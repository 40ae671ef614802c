package pools

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/alitto/pond/v2"
	"github.com/myriad-go/myriad/pool"
	"github.com/panjf2000/ants/v2"
)

const (
	workers  = 64
	queue    = 1024
	patience = 2 * time.Minute
)

// job is what a pool is to run, again and again: made once, in the form that the
// pool takes, so that no closure is made for each.
type job struct {
	plain   func()
	context pool.Func
}

func jobOf(f func()) job {
	return job{plain: f, context: func(context.Context) { f() }}
}

// subject is an open pool with its job.
type subject interface {
	// submit has the job run once. It waits for room.
	submit() error
	// try has the job run once, or says at once that there is no room.
	try() bool
	// drain waits until every job that was accepted has run. It is part of what
	// is timed.
	drain() error
	// end ends the pool, where drain has not done so.
	end() error
	// lost is how many accepted jobs have not run, by the pool's own account.
	lost() int
}

// contender is a pool to compare. trying says that its subject will be used with
// try, and not with submit: some must know before.
type contender struct {
	name string
	// room is how many jobs it takes when none of them ends, 0 for no bound, and
	// slack how many more it may, for workers that were looking for one.
	room, slack int
	open        func(j job, trying bool) (subject, error)
}

var contenders = []contender{
	{"null", 0, 0, openNull},
	{"channel", workers + queue, 0, openChannel},
	{"ours", workers + queue, workers, openOurs(context.Background())},
	{"oursctx", workers + queue, workers, openOurs(mayEnd)},
	{"ants", workers, 0, openAnts},
	{"antsmulti", workers, 0, openAntsMulti},
	{"pond", workers + queue, 0, openPond},
	{"pondfuture", workers + queue, 0, openPondFuture},
	{"goroutine", 0, 0, openGoroutines},
}

// mayEnd is a context that could end, and does not.
var mayEnd, _ = context.WithCancel(context.Background())

// null calls the job and is no pool: what the benchmark itself costs.
type null struct{ job func() }

func openNull(j job, _ bool) (subject, error) { return null{j.plain}, nil }

func (s null) submit() error { s.job(); return nil }
func (s null) try() bool     { s.job(); return true }
func (s null) drain() error  { return nil }
func (s null) end() error    { return nil }
func (s null) lost() int     { return 0 }

// channel is the pool that one writes in ten lines: no context, no panics, no
// figures.
type channel struct {
	job  func()
	jobs chan func()
	wg   sync.WaitGroup
}

func openChannel(j job, _ bool) (subject, error) {
	s := &channel{job: j.plain, jobs: make(chan func(), queue)}
	for range workers {
		s.wg.Go(func() {
			for f := range s.jobs {
				f()
			}
		})
	}
	return s, nil
}

func (s *channel) submit() error {
	s.jobs <- s.job
	return nil
}

func (s *channel) try() bool {
	select {
	case s.jobs <- s.job:
		return true
	default:
		return false
	}
}

func (s *channel) drain() error {
	close(s.jobs)
	s.wg.Wait()
	return nil
}

func (s *channel) end() error { return nil }
func (s *channel) lost() int  { return 0 }

// ours has a fixed number of workers like the others, and all its rules in force.
// oursctx is the same with a context that could end, as that of a request.
type ours struct {
	*pool.Pool
	ctx context.Context
	job pool.Func
}

func openOurs(ctx context.Context) func(job, bool) (subject, error) {
	return func(j job, _ bool) (subject, error) {
		p, err := pool.New(pool.Config{Min: workers, Max: workers, Queue: queue})
		return &ours{p, ctx, j.context}, err
	}
}

func (s *ours) submit() error { return s.Submit(s.ctx, s.job) }

func (s *ours) try() bool {
	if s.ctx == mayEnd {
		return s.TrySubmitTask(pool.Task{Job: s.job, Ctx: s.ctx}) == nil
	}
	return s.TrySubmit(s.job) == nil
}

func (s *ours) drain() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := s.Close(ctx)
	return err
}

func (s *ours) end() error { return nil }

// lost counts those that were shed, if the machine is so slow that they have
// waited too long.
func (s *ours) lost() int {
	stats := s.Stats()
	return int(stats.Shed + stats.Expired + stats.Dropped)
}

// report shows what the pool has measured all the while.
func (s *ours) report(b *testing.B) {
	stats := s.Stats()
	b.ReportMetric(float64(stats.Wait.Mean()), "wait-mean-ns")
	b.ReportMetric(float64(stats.Wait.Quantile(0.99)), "wait-p99-ns")
}

// antsPool has no queue: those who submit wait for a worker, of 64. Its own
// measurements use the default settings but for the time after which idle workers
// end. Here they stay, which it calls DisablePurge.
type antsPool interface {
	Submit(func()) error
	ReleaseTimeout(time.Duration) error
}

type antsSubject struct {
	job  func()
	pool antsPool
}

func openAnts(j job, trying bool) (subject, error) {
	p, err := ants.NewPool(workers, ants.WithNonblocking(trying), ants.WithDisablePurge(true))
	return &antsSubject{j.plain, p}, err
}

// antsPools is how many pools share the workers of a MultiPool.
const antsPools = 8

func openAntsMulti(j job, trying bool) (subject, error) {
	p, err := ants.NewMultiPool(antsPools, workers/antsPools, ants.RoundRobin,
		ants.WithNonblocking(trying), ants.WithDisablePurge(true))
	return &antsSubject{j.plain, p}, err
}

func (s *antsSubject) submit() error { return s.pool.Submit(s.job) }
func (s *antsSubject) try() bool     { return s.pool.Submit(s.job) == nil }
func (s *antsSubject) end() error    { return s.pool.ReleaseTimeout(patience) }
func (s *antsSubject) lost() int     { return 0 }

// drain gives every worker one more job, that ends when all of them have one: then
// all others have run, as there is no queue. A release would say so, too, but that
// of a MultiPool takes tens of milliseconds, in which its pools spin.
func (s *antsSubject) drain() error {
	var met sync.WaitGroup
	met.Add(workers)
	last := func() {
		met.Done()
		met.Wait()
	}
	for range workers {
		err := s.pool.Submit(last)
		for errors.Is(err, ants.ErrPoolOverload) {
			runtime.Gosched()
			err = s.pool.Submit(last)
		}
		if err != nil {
			return err
		}
	}
	met.Wait()
	return nil
}

// pondPool is used through Go, the fastest way in. It does not wait if the pool is
// made so.
type pondPool struct {
	job  func()
	pool pond.Pool
}

func openPond(j job, trying bool) (subject, error) {
	p := pond.NewPool(workers, pond.WithQueueSize(queue), pond.WithNonBlocking(trying))
	return &pondPool{j.plain, p}, nil
}

func (s *pondPool) submit() error { return s.pool.Go(s.job) }
func (s *pondPool) try() bool     { return s.pool.Go(s.job) == nil }

func (s *pondPool) drain() error {
	s.pool.StopAndWait()
	return nil
}

func (s *pondPool) end() error { return nil }
func (s *pondPool) lost() int  { return 0 }

// pondFuture is the same used through Submit and TrySubmit, which make a future
// for each job; nobody here looks at it.
type pondFuture struct{ pondPool }

func openPondFuture(j job, _ bool) (subject, error) {
	p := pond.NewPool(workers, pond.WithQueueSize(queue))
	return &pondFuture{pondPool{j.plain, p}}, nil
}

func (s *pondFuture) submit() error {
	s.pool.Submit(s.job)
	return nil
}

func (s *pondFuture) try() bool {
	_, accepted := s.pool.TrySubmit(s.job)
	return accepted
}

// goroutines is no pool either: a goroutine for each job, however many there are.
type goroutines struct {
	counted func()
	wg      sync.WaitGroup
}

func openGoroutines(j job, _ bool) (subject, error) {
	s := &goroutines{}
	s.counted = func() {
		j.plain()
		s.wg.Done()
	}
	return s, nil
}

func (s *goroutines) submit() error {
	s.wg.Add(1)
	go s.counted()
	return nil
}

func (s *goroutines) try() bool { return s.submit() == nil }

func (s *goroutines) drain() error {
	s.wg.Wait()
	return nil
}

func (s *goroutines) end() error { return nil }
func (s *goroutines) lost() int  { return 0 }
