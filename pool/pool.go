// Package pool runs jobs on a limited number of goroutines. It keeps latency low when more jobs arrive than can run.
//
// The number of workers adapts to the load, between Config.Min and Config.Max and within a memory budget. It grows
// while jobs wait and processors are idle. It shrinks when workers are idle or goroutines wait for processors.
//
// The queue is limited. If it is full, a job is rejected with [ErrFull], or waits in Submit until its context ends. If
// jobs have waited longer than Config.Target for all of Config.Interval, the pool is overloaded: its queue only adds
// delay. During the overload, the queue is limited to the jobs that the workers can start within Target. Jobs that
// still wait longer are shed. The newest jobs run first, because their submitters are most likely still waiting.
//
// Every accepted job ends exactly once. It runs to its end (or panics), expires because its context ended first, is
// shed, or is dropped by [Pool.Close]. A [Dropper] is notified if it does not run.
package pool

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/histogram"
	"github.com/myriad-go/myriad/internal/sched"
)

// Concurrency: if no worker searches for jobs, a submitter passes its job to a parked worker or, within the limit,
// starts a worker. Otherwise it queues the job. Only the controller, a goroutine, sets the limit of workers. Close
// rejects new jobs, lets the workers drain the queue and exit, and waits for all goroutines.

// Pool is a pool of worker goroutines that run jobs. Its methods are safe for concurrent use.
type Pool struct {
	cfg      Config
	overload overload
	start    time.Time
	ctx      context.Context // context of jobs that were submitted without one; cancelled by Close
	cancel   context.CancelCauseFunc

	shards []*shard
	shift  int // a 64-bit hash shifted right by this is a shard's index
	parked workerStack
	wake   chan struct{} // wakes a waiting Submit; capacity 1

	_                [64]byte
	size             atomic.Int64 // number of workers, plus closedBit once the pool is closed
	limit            atomic.Int64 // current limit of workers
	searching        atomic.Int32
	blocked          atomic.Int64 // workers in Block
	blocking         atomic.Bool  // most running jobs wait for something
	slow             atomic.Bool  // the controller must be woken when a job waits
	waiting          atomic.Int32 // Submits that wait for space
	wakePending      atomic.Bool  // a waiting Submit was woken and has not run yet
	overtakenSubmits atomic.Int32 // waiting Submits that new ones must not overtake
	_                [64]byte
	totalWaits       atomic.Uint64 // Submits that ever waited
	handedOver       atomic.Uint64 // jobs passed directly to a worker
	late             atomic.Uint64
	refusedClosed    atomic.Uint64
	procs            int64

	control   controller
	closeOnce sync.Once
	exited    chan struct{} // closed when the pool is closed and the last worker exits
	done      chan struct{} // closed when Close is complete
	running   sync.WaitGroup
}

const closedBit = 1 << 40

// closeGrace is how long Close waits for running jobs after it has cancelled their contexts.
const closeGrace = time.Second

// New creates a pool and starts Config.Min workers. If cfg is invalid, the error wraps [ErrBadConfig]. Call Close to
// end the pool's goroutines.
func New(cfg Config) (*Pool, error) { return newPool(cfg, sched.NewGoroutines().Runnable) }

func newPool(cfg Config, countRunnable func() int) (*Pool, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Pool{
		cfg: cfg, start: time.Now(), procs: int64(runtime.GOMAXPROCS(0)),
		overload: overload{interval: int64(cfg.Interval), shedding: !cfg.KeepQueued, newestFirst: !cfg.FIFO},
		wake:     make(chan struct{}, 1), exited: make(chan struct{}), done: make(chan struct{}),
	}
	p.overload.target.Store(int64(cfg.Target))
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	p.makeShards()
	p.control = controller{p: p, runnable: countRunnable, wake: make(chan struct{}, 1), ceiling: cfg.Max, queueLimit: cfg.Queue, lastCrowdedAt: -slowGrowthFor}
	p.control.budget = newMemoryBudget(cfg.MemoryLimit, cfg.Max)
	p.limit.Store(p.minWorkerLimit())
	p.ensureMinWorkers()
	p.running.Go(p.control.tickUntilPoolExits)
	return p, nil
}

// now returns the time since the pool was created, in nanoseconds. The result is never 0.
func (p *Pool) now() int64 { return int64(time.Since(p.start)) + 1 }

// Close rejects further jobs and waits until all accepted jobs have run.
//
// If ctx ends while jobs are queued or running, Close drops the queued jobs and returns them. It cancels the contexts
// of the running jobs with the cause [ErrClosed], and waits at most a second for these jobs. If jobs were dropped or
// still run after that, err wraps context.Cause(ctx).
//
// Close may be called several times. Each dropped job is returned by only one of the calls. A job must not call Close
// with a context that never ends, because Close waits for the job.
func (p *Pool) Close(ctx context.Context) (dropped []Task, err error) {
	p.closeOnce.Do(p.rejectJobsAndStartDrain)
	select {
	case <-p.done:
		return nil, nil
	case <-ctx.Done():
	}
	dropped = p.removeQueued()
	for i := range dropped {
		p.notifyDropped(dropped[i].Job, ErrClosed)
	}
	p.cancel(ErrClosed)
	timer := time.NewTimer(closeGrace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
	}
	if running := p.Stats().Running; len(dropped) > 0 || running > 0 {
		err = fmt.Errorf("pool: close: %d jobs were dropped and %d still run: %w", len(dropped), running, context.Cause(ctx))
	}
	return dropped, err
}

// Block calls f, which may wait for a long time. Call Block only within a job. f may, for example, wait for a slow
// client. f must not wait for other jobs of the pool.
//
// While f runs, the job does not count towards [Config].Max, so the pool can start another worker. The pool does not
// limit the number of jobs in Block, so the caller must limit it.
func (p *Pool) Block(f func()) {
	p.blocked.Add(1)
	defer p.blocked.Add(-1)
	p.wakeOrStartWorkerIfQueued()
	p.wakeWaitingSubmit()
	f()
}

// MostJobsWait reports whether most running jobs wait for something other than a processor. The result is from the
// pool's last measurement. While jobs wait in the queue, the pool measures about every millisecond. At other times, the
// result may be older.
func (p *Pool) MostJobsWait() bool { return p.blocking.Load() }

func (p *Pool) rejectJobsAndStartDrain() {
	for _, s := range p.shards {
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
	}
	if p.size.Or(closedBit) == 0 {
		close(p.exited)
	}
	p.wakeWaitingSubmit()
	go func() {
		for w := p.popParked(); w != nil; w = p.popParked() {
			p.wakeToSearch(w)
		}
		<-p.exited
		p.running.Wait()
		p.cancel(ErrClosed)
		close(p.done)
	}()
}

func (p *Pool) removeQueued() (dropped []Task) {
	for _, s := range p.shards {
		s.mu.Lock()
		for s.Len() > 0 {
			dropped = append(dropped, s.Front().Task)
			s.dequeueLocked(false, &queuedTask{})
			s.counts.Dropped++
		}
		s.mu.Unlock()
	}
	return dropped
}

func (p *Pool) notifyDropped(j Job, reason error) {
	if d, ok := j.(Dropper); ok {
		defer func() {
			if v := recover(); v != nil {
				p.callPanickedHandlerIfSet(v)
			}
		}()
		d.Dropped(reason)
	}
}

func (p *Pool) notifyShedAndClear(shed *[]Task) {
	for i := range *shed {
		p.notifyDropped((*shed)[i].Job, ErrShed)
	}
	clear(*shed)
	*shed = (*shed)[:0]
}

func (p *Pool) callPanickedHandlerIfSet(v any) {
	if p.cfg.Panicked != nil {
		defer func() { _ = recover() }()
		p.cfg.Panicked(toPanicError(v))
	}
}

// Stats contains statistics of a pool. Numbers whose description contains "now" are current. All other numbers count
// events since New.
type Stats struct {
	// Workers is the number of workers now, and Idle the number of them without a job. Limit is the current maximum.
	Workers, Idle, Limit int
	// Queued is the number of jobs that wait for a worker now. Running is the number of jobs that run now.
	Queued, Running int
	// Overloaded reports whether the pool is overloaded now (see Config.Target).
	Overloaded bool
	// Accepted counts accepted jobs, including jobs that still wait or run.
	Accepted uint64
	// Finished counts jobs that have run, including those that panicked. Panicked counts jobs that panicked.
	Finished, Panicked uint64
	// Expired counts jobs whose context ended in the queue, Shed jobs that were shed, and Dropped jobs that Close
	// dropped.
	Expired, Shed, Dropped uint64
	// Full, Late and Closed count rejected jobs by reason. Full: the queue was full. Late: the job's context had ended,
	// perhaps while the job waited for space. Closed: the pool was closed.
	Full, Late, Closed uint64

	// Wait contains the times for which jobs were queued. Service contains the times for which they ran.
	Wait, Service Histogram
}

// Stats returns the current statistics of the pool. It briefly locks each shard of the queue.
func (p *Pool) Stats() Stats {
	st := Stats{
		Workers: int(p.workerCount()), Limit: int(p.limit.Load()), Idle: int(p.parked.count.Load()), Running: p.busyWorkers() + int(p.blocked.Load()),
		Overloaded: p.overload.isActive(p.now()),
		Accepted:   p.handedOver.Load(), Late: p.late.Load(), Closed: p.refusedClosed.Load(),
	}
	for _, s := range p.shards {
		s.mu.Lock()
		st.Queued += s.Len()
		st.Accepted += s.counts.Accepted
		st.Finished += s.counts.Finished
		st.Panicked += s.counts.Panicked
		st.Expired += s.counts.Expired
		st.Shed += s.counts.Shed
		st.Dropped += s.counts.Dropped
		st.Wait.merge(&s.counts.Wait)
		st.Service.merge(&s.counts.Service)
		s.mu.Unlock()
		st.Full += s.refused.Load()
	}
	return st
}

// Buckets is the number of buckets of a Histogram.
const Buckets = 36

// Histogram counts durations in buckets. The upper bound of each bucket is twice the upper bound of the previous
// bucket.
type Histogram struct {
	// Count is the number of durations. Sum is the sum of the durations.
	Count uint64
	Sum   time.Duration
	// Buckets[i] counts durations that are longer than Bound(i-1) and at most Bound(i). The first bucket also counts
	// all shorter durations. The last bucket also counts all longer durations.
	Buckets [Buckets]uint64
}

// Bound returns the upper bound of bucket i. The bound of bucket 0 is 1 µs, and each further bound is twice the
// previous one.
func Bound(i int) time.Duration { return histogram.BucketUpperBound(i) }

func (h *Histogram) add(d time.Duration) {
	h.Count++
	h.Sum += d
	h.Buckets[histogram.BucketIndex(d, Buckets)]++
}

func (h *Histogram) merge(o *Histogram) {
	h.Count += o.Count
	h.Sum += o.Sum
	for i, n := range o.Buckets {
		h.Buckets[i] += n
	}
}

// Mean returns the mean of the durations, or 0 if there are none.
func (h *Histogram) Mean() time.Duration {
	if h.Count == 0 {
		return 0
	}
	return h.Sum / time.Duration(h.Count)
}

// Quantile returns an upper bound of the q-quantile of the durations, for q from 0 to 1. For a quantile above 1 µs, the
// bound is at most twice the quantile. If there are no durations, the result is 0.
func (h *Histogram) Quantile(q float64) time.Duration {
	return histogram.QuantileUpperBound(h.Buckets[:], q)
}

var errNoCapacity = errors.New("pool: no capacity")
