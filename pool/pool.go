// Package pool runs jobs on a bounded number of goroutines and keeps their latency low
// when more jobs come than it can run.
//
// The number of workers adapts to the work. It grows while jobs wait and processors are
// idle, and shrinks when workers are idle or goroutines queue for processors: jobs that
// compute get a few workers for each processor, jobs that block many more. It
// stays between Config.Min and Config.Max and within a memory budget.
//
// The queue is bounded. A job that finds it full is refused with [ErrFull], or waits in
// Submit until its context ends. When jobs have waited longer than Config.Target for all
// of Config.Interval, the queue no longer absorbs bursts and only adds delay: the pool
// is overloaded. Until that is over no more jobs may wait than the workers take within
// Target. Those that have waited longer nevertheless are shed, and while there are such
// the newest jobs run first, because somebody most likely still waits for them.
//
// Every accepted job ends exactly once: it runs to its end (or panics), expires because
// its context ended before it began, is shed, or is dropped by [Pool.Close]. A job that
// is a [Dropper] is notified of the last three.
//
// The package stands alone: it needs the standard library and this module's reader of
// memory limits.
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
)

// Concurrency.
//
// The queue consists of shards, each with a lock (queue.go). Workers are goroutines
// (worker.go); those without a job are parked on a lock-free stack. A submitter hands
// its job to a parked worker if no worker is searching for jobs, or starts a worker if
// the limit allows; otherwise the job goes to the queue (submit.go). So a pool with a
// spare worker never refuses a job, whatever Config.Queue is. Submits that wait for room
// receive from a channel (waiters.go).
//
// One goroutine, the controller (controller.go), runs every millisecond while jobs wait and
// seldom otherwise. It alone sets the limit of workers. Close refuses new jobs,
// lets the workers drain the queue and exit, then stops the controller and waits for all
// of them.

// Pool is a bounded pool of workers. Its methods are safe for concurrent use.
type Pool struct {
	cfg      Config
	overload overload
	start    time.Time
	ctx      context.Context // of jobs without one of their own; Close cancels it
	cancel   context.CancelCauseFunc

	shards []shard
	shift  int // a 64-bit hash shifted right by this is the index of a shard
	parked workerStack
	waiters

	_         [64]byte
	size      atomic.Int64 // workers, and closedBit
	limit     atomic.Int64 // of workers now
	searching atomic.Int32 // workers that look for jobs
	closed    atomic.Bool
	blocked   atomic.Int64 // workers in Block
	blocking  atomic.Bool  // most jobs that run wait for something
	slow      atomic.Bool  // the controller is to be woken when a job waits
	_         [64]byte
	handed    atomic.Uint64 // jobs handed to a worker directly
	late      atomic.Uint64
	refused   atomic.Uint64 // because the pool was closed
	procs     int64
	searchers int32 // bound of searching

	mu      sync.Mutex // taken to close
	control controller
	exited  chan struct{} // closed when the last worker leaves
	done    chan struct{} // closed when Close is complete
	running sync.WaitGroup
}

// closedBit is set in size when the pool closes.
const closedBit = 1 << 40

// grace is how long Close waits for jobs whose contexts it has cancelled.
const grace = time.Second

// New makes a pool and starts its first Min workers. The error wraps [ErrBadConfig].
// Close ends the pool; one that is not closed keeps its goroutines.
func New(cfg Config) (*Pool, error) { return newPool(cfg, runnableGoroutines()) }

// newPool is New with a count of the goroutines that wait for a processor.
func newPool(cfg Config, runnable func() int) (*Pool, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	procs := runtime.GOMAXPROCS(0)
	p := &Pool{
		cfg: cfg, start: time.Now(), procs: int64(procs), searchers: int32(max(1, procs/2)),
		waiters: waiters{room: make(chan struct{}, 1)}, exited: make(chan struct{}), done: make(chan struct{}),
	}
	p.overload = overload{
		interval: int64(cfg.Interval),
		shedding: cfg.Off&Shedding == 0, newestFirst: cfg.Off&NewestFirst == 0,
	}
	p.overload.target.Store(int64(cfg.Target))
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	p.makeShards(cfg.Queue, cfg.shards())
	p.control.init(p, runnable)
	p.startWorkers(cfg.Min)
	p.control.done.Go(p.control.run)
	return p, nil
}

// now is the time since the pool was made, never 0.
func (p *Pool) now() int64 { return int64(time.Since(p.start)) + 1 }

// Close refuses further jobs and waits until those that were accepted have run. When
// ctx ends first, it drops the jobs that still wait and returns them, cancels the
// contexts of those that run, with [ErrClosed] as the cause, and waits a second at most
// for them. The error then wraps the cause of ctx's end and says how many jobs still
// run. Further calls wait in the same way; each dropped job is returned once.
//
// A job that calls Close waits for itself: let it do so in a goroutine, or with a
// context that ends.
func (p *Pool) Close(ctx context.Context) (dropped []Task, err error) {
	if p.beginClose() {
		go p.finishClose()
	}
	select {
	case <-p.done:
		return nil, nil
	case <-ctx.Done():
	}
	dropped = p.dropQueued()
	p.cancel(ErrClosed)
	timer := time.NewTimer(grace)
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

// Block is called by a job: it runs f, which waits for what no worker can hasten, such as
// a slow client. While it does, the job does not count towards [Config].Max, and another
// worker may run in its place. It is for the caller to bound how many jobs wait like this;
// each takes a goroutine.
func (p *Pool) Block(f func()) {
	p.blocked.Add(1)
	defer p.blocked.Add(-1)
	if p.searching.Load() == 0 && p.anyQueued() {
		p.wakeWorker()
	}
	p.wakeWaiter()
	f()
}

// beginClose refuses further jobs. It reports whether this call was the first.
func (p *Pool) beginClose() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return false
	}
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
	}
	p.closed.Store(true)
	p.wakeWaiter()
	if p.size.Or(closedBit) == 0 {
		close(p.exited)
	}
	return true
}

// finishClose waits until the workers have drained the queue and exited.
func (p *Pool) finishClose() {
	for w := p.popParked(); w != nil; w = p.popParked() {
		p.wakeToSearch(w)
	}
	<-p.exited
	p.control.stop()
	p.running.Wait()
	p.cancel(ErrClosed)
	close(p.done)
}

// dropQueued empties the queue.
func (p *Pool) dropQueued() (dropped []Task) {
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		for s.n > 0 {
			var e entry
			s.remove(false, &e)
			dropped = append(dropped, e.Task)
			s.tally.dropped++
		}
		s.mu.Unlock()
	}
	for i := range dropped {
		p.notifyDropped(dropped[i].Job, ErrClosed)
	}
	return dropped
}

// notifyDropped tells a job that it will not run. A panic in that is contained.
func (p *Pool) notifyDropped(j Job, why error) {
	d, ok := j.(Dropper)
	if !ok {
		return
	}
	defer func() {
		if v := recover(); v != nil {
			p.reportPanic(v)
		}
	}()
	d.Dropped(why)
}

// notifyShed tells jobs that they were shed. It returns the emptied slice.
func (p *Pool) notifyShed(shed []Task) []Task {
	for i := range shed {
		p.notifyDropped(shed[i].Job, ErrShed)
	}
	clear(shed)
	return shed[:0]
}

// reportPanic reports a recovered value; it is called by the deferred function that
// recovered it. A panic in the callback is lost.
func (p *Pool) reportPanic(v any) {
	if p.cfg.Panicked == nil {
		return
	}
	defer func() { _ = recover() }()
	p.cfg.Panicked(newPanicError(v))
}

// Stats are a pool's counters at one moment. They count since New, except for those
// that say "now". Of jobs that are being submitted or are ending at that moment a count
// may be off by as many.
type Stats struct {
	// Workers is how many workers there are now, Idle how many of them wait for a
	// job, and Limit how many there may be.
	Workers, Idle, Limit int
	// Queued is how many jobs wait for a worker now, Running how many run.
	Queued, Running int
	// Overloaded says that jobs have waited too long, so that now fewer may wait, and
	// those that wait too long are shed.
	Overloaded bool

	// Accepted counts the jobs that were accepted: those that have finished, expired,
	// been shed or been dropped, and those that wait or run now.
	Accepted uint64
	// Finished counts jobs that have run, Panicked those of them that panicked.
	Finished, Panicked uint64
	// Expired counts jobs whose context ended while they waited, Shed those that were
	// shed, and Dropped those that Close dropped.
	Expired, Shed, Dropped uint64
	// Full, Late and Closed count jobs that were refused: the queue was full; their
	// context had ended, possibly while they waited for room; the pool was closed.
	Full, Late, Closed uint64

	// Wait is how long jobs have waited until they ran, Service how long they have run.
	Wait, Service Histogram
}

// Stats returns the counters. It takes each shard's lock for a moment.
func (p *Pool) Stats() Stats {
	st := Stats{
		Workers: int(p.workers()), Limit: int(p.limit.Load()), Idle: int(p.parked.n.Load()), Running: p.busy() + int(p.blocked.Load()),
		Overloaded: p.overload.active(p.now()),
		Accepted:   p.handed.Load(), Late: p.late.Load(), Closed: p.refused.Load(),
	}
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		st.Queued += s.n
		st.Accepted += s.accepted
		st.Finished += s.tally.finished
		st.Panicked += s.tally.panicked
		st.Expired += s.tally.expired
		st.Shed += s.tally.shed
		st.Dropped += s.tally.dropped
		st.Wait.merge(&s.tally.wait)
		st.Service.merge(&s.tally.service)
		s.mu.Unlock()
		st.Full += s.refused.Load()
	}
	return st
}

// Buckets is how many buckets a Histogram has.
const Buckets = 36

// Histogram counts durations by size.
type Histogram struct {
	// Count is how many durations, Sum all of them together.
	Count uint64
	Sum   time.Duration
	// Buckets[i] counts the durations of at most Bound(i) that are longer than the
	// bound before. The last one counts all longer ones, too.
	Buckets [Buckets]uint64
}

// Bound is the upper bound of bucket i: a microsecond for the first, and twice the one
// before for each other.
func Bound(i int) time.Duration { return histogram.UpperBound(i) }

// add counts a duration.
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

// Mean is the mean of the durations, 0 for none.
func (h *Histogram) Mean() time.Duration {
	if h.Count == 0 {
		return 0
	}
	return h.Sum / time.Duration(h.Count)
}

// Quantile is an upper bound of the q-quantile, 0 ≤ q ≤ 1, at most twice as long as it.
// It is 0 for none.
func (h *Histogram) Quantile(q float64) time.Duration { return histogram.Quantile(h.Buckets[:], q) }

// errNoRoom is ErrFull before it is counted.
var errNoRoom = errors.New("pool: no room now")
