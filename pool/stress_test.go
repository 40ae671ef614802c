package pool_test

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/pool"
)

var (
	stressJobs = flag.Int("jobs", 200_000, "how many jobs TestEveryJobIsAccountedFor submits")
	stressSeed = flag.Uint64("seed", 0, "the seed of TestEveryJobIsAccountedFor; 0 is another each time")
)

// Outcomes of a submitted job.
const (
	unknown = iota
	refusedFull
	refusedLate
	refusedClosed
	ran
	droppedExpired
	droppedShed
	droppedClosed
	outcomes
)

var outcomeNames = [outcomes]string{"unknown", "refused: full", "refused: late", "refused: closed",
	"run", "dropped: expired", "dropped: shed", "dropped: closed"}

// What a job does.
const (
	doNothing = iota
	doPanic
	doGoexit
	doSleep
	doWait // for its context, for a while
	doSubmit
	deeds
)

type stressJob struct {
	s        *stressRun
	ctx      context.Context
	deed     int
	outcome  atomic.Int32
	returned bool // by Close
	child    *stressJob
}

func (j *stressJob) setOutcome(o int32) {
	if !j.outcome.CompareAndSwap(unknown, o) {
		j.s.t.Errorf("a job has two outcomes: %s, then %s", outcomeNames[j.outcome.Load()], outcomeNames[o])
	}
}

func (j *stressJob) Run(ctx context.Context) {
	j.s.running.Add(1)
	defer j.s.running.Add(-1)
	j.setOutcome(ran)
	switch j.deed {
	case doPanic:
		panic(errWhy)
	case doGoexit:
		runtime.Goexit()
	case doSleep:
		time.Sleep(20 * time.Microsecond)
	case doWait:
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Microsecond):
		}
	case doSubmit:
		j.child = &stressJob{s: j.s}
		j.child.submit(j.s.p.TrySubmitTask)
	}
}

func (j *stressJob) Dropped(why error) {
	switch {
	case errors.Is(why, pool.ErrExpired):
		j.checkExpired(why)
		j.setOutcome(droppedExpired)
	case errors.Is(why, pool.ErrShed):
		j.setOutcome(droppedShed)
	case errors.Is(why, pool.ErrClosed):
		j.setOutcome(droppedClosed)
	default:
		j.s.t.Errorf("dropped with %v", why)
	}
}

func (j *stressJob) checkExpired(why error) {
	if j.ctx == nil || j.ctx.Err() == nil || !errors.Is(why, context.Cause(j.ctx)) {
		j.s.t.Errorf("a job has expired with %v, but its context: %v", why, j.ctx)
	}
}

func (j *stressJob) submit(submit func(pool.Task) error) {
	late := j.ctx != nil && j.ctx.Err() != nil
	switch err := submit(pool.Task{Job: j, Ctx: j.ctx}); {
	case err == nil:
		if late {
			j.s.t.Error("a job was accepted whose context had ended")
		}
	case errors.Is(err, pool.ErrClosed):
		j.setOutcome(refusedClosed)
	case errors.Is(err, pool.ErrExpired):
		j.checkExpired(err)
		j.setOutcome(refusedLate)
	case errors.Is(err, pool.ErrFull):
		j.setOutcome(refusedFull)
	default:
		j.s.t.Errorf("submit: %v", err)
	}
}

// submitRandomly submits the job with a random context, which ends at any time.
func (j *stressJob) submitRandomly(rng *rand.Rand, shared context.Context) {
	cancel := context.CancelFunc(func() {})
	switch rng.IntN(16) {
	case 0:
		j.ctx, cancel = context.WithTimeout(context.Background(), time.Duration(rng.IntN(500))*time.Microsecond)
	case 1:
		j.ctx, cancel = context.WithCancel(context.Background())
	case 2:
		j.ctx, cancel = context.WithCancel(shared)
		if rng.IntN(4) == 0 {
			cancel() // already
		}
	case 3, 4, 5, 6:
		j.ctx = shared
	case 7, 8, 9:
		j.ctx = context.Background()
	}
	if rng.IntN(2) == 0 {
		j.submit(j.s.p.TrySubmitTask)
	} else {
		j.submit(j.s.p.SubmitTask)
	}
	if rng.IntN(2) == 0 {
		runtime.Gosched()
	}
	cancel()
}

// stressRun is a pool of a random configuration and what happens to it.
type stressRun struct {
	t        *testing.T
	p        *pool.Pool
	running  atomic.Int64
	panicked atomic.Int64 // as Config.Panicked has heard
}

// Jobs panic, exit, sleep and submit others; contexts end before, during and after the wait;
// Submits wait or do not; the pool is overloaded and closed at any time, with and without a
// deadline. Each job must have exactly one outcome, and the counters must agree. To run longer:
// go test -race -run EveryJob ./pool -jobs 100000000 -timeout 0
func TestEveryJobIsAccountedFor(t *testing.T) {
	const size = 4000
	seed := *stressSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	var total [outcomes]uint64
	done := 0
	for n := uint64(0); done < *stressJobs && !t.Failed(); n++ {
		runStress(t, rand.New(rand.NewPCG(seed, n)), size, &total)
		done += size
	}
	for o, n := range total {
		if o != unknown && n == 0 && done >= 200_000 {
			t.Errorf("of %d jobs none was %s: the test shows less than it should", done, outcomeNames[o])
		}
	}
	if t.Failed() {
		t.Errorf("slice %d of: go test -run EveryJob -seed %d", done/size-1, seed)
	}
}

func randomConfig(rng *rand.Rand) pool.Config {
	cfg := pool.Config{
		Min:   rng.IntN(4),
		Queue: []int{pool.NoQueue, 1, 7, 64, 300, 1024, 4000}[rng.IntN(7)],
	}
	cfg.Max = cfg.Min + 1 + rng.IntN(12)
	if rng.IntN(2) == 0 { // soon overloaded
		cfg.Target = 100 * time.Microsecond
		cfg.Interval = time.Duration(100+rng.IntN(1000)) * time.Microsecond
	}
	if rng.IntN(3) == 0 {
		bits := rng.UintN(8)
		cfg.FixedLimit, cfg.KeepQueued, cfg.FIFO = bits&1 != 0, bits&2 != 0, bits&4 != 0
	}
	return cfg
}

func runStress(t *testing.T, rng *rand.Rand, size int, total *[outcomes]uint64) {
	s := &stressRun{t: t}
	cfg := randomConfig(rng)
	cfg.Panicked = func(*pool.PanicError) { s.panicked.Add(1) }
	var err error
	s.p, err = pool.New(cfg)
	testkit.RequireNoError(t, err)
	jobs := make([]stressJob, size)
	for i := range jobs {
		if jobs[i].s = s; rng.IntN(4) == 0 {
			jobs[i].deed = rng.IntN(deeds)
		}
	}
	shared, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	var submitters, closers sync.WaitGroup
	var submitted atomic.Int64
	n := 1 + rng.IntN(16)
	for g := range n {
		own := rand.New(rand.NewPCG(rng.Uint64(), 0))
		submitters.Go(func() {
			for i := g; i < size; i += n {
				jobs[i].submitRandomly(own, shared)
				submitted.Add(1)
			}
		})
	}
	closeAt, cancelAt := min(rng.IntN(2*size), size), rng.IntN(2*size)
	timer := time.AfterFunc(time.Minute, func() { panic("a slice hangs: Submit or Close has not returned for a minute") })
	defer timer.Stop()
	for int(submitted.Load()) < closeAt {
		if int(submitted.Load()) >= cancelAt {
			cancel(errWhy)
		}
		if now := s.p.Stats(); now.Workers < 0 || now.Idle < 0 || now.Queued < 0 || now.Running < 0 {
			t.Errorf("less than none: %+v", now)
		}
		time.Sleep(20 * time.Microsecond)
	}
	var dropped [3][]pool.Task
	for i := range dropped {
		// The first one that ends applies to all.
		limits := []time.Duration{0, 50 * time.Microsecond, time.Hour}
		ctx, stop := context.WithTimeout(context.Background(), limits[rng.IntN(len(limits))])
		defer stop()
		closers.Go(func() {
			dropped[i] = closeAndCheck(t, s.p, ctx)
			if n := s.running.Load(); n != 0 {
				t.Errorf("%d jobs run after Close", n)
			}
		})
	}
	closers.Wait()
	submitters.Wait()
	s.checkOutcomes(jobs, slices.Concat(dropped[:]...), total)
}

func (s *stressRun) checkOutcomes(jobs []stressJob, dropped []pool.Task, total *[outcomes]uint64) {
	for _, task := range dropped {
		j := task.Job.(*stressJob)
		if o := j.outcome.Load(); o != droppedClosed || j.returned {
			s.t.Errorf("a job was returned by Close, and is %s; returned before: %v", outcomeNames[o], j.returned)
		}
		j.returned = true
	}
	var n [outcomes]uint64
	var panicked uint64
	for i := range jobs {
		n[jobs[i].outcome.Load()]++
		if child := jobs[i].child; child != nil {
			n[child.outcome.Load()]++
		}
		if d := jobs[i].deed; jobs[i].outcome.Load() == ran && (d == doPanic || d == doGoexit) {
			panicked++
		}
	}
	for o := range n {
		total[o] += n[o]
	}
	stats := expectBalanced(s.t, s.p)
	for _, c := range []struct {
		name      string
		got, want uint64
	}{
		{"jobs without an outcome", n[unknown], 0},
		{"Finished", stats.Finished, n[ran]},
		{"Panicked", stats.Panicked, panicked},
		{"Wait.Count", stats.Wait.Count, n[ran]},
		{"Service.Count", stats.Service.Count, n[ran]},
		{"what Config.Panicked has heard", uint64(s.panicked.Load()), panicked},
		{"Expired", stats.Expired, n[droppedExpired]},
		{"Shed", stats.Shed, n[droppedShed]},
		{"Dropped", stats.Dropped, n[droppedClosed]},
		{"what Close has returned", uint64(len(dropped)), n[droppedClosed]},
		{"Full", stats.Full, n[refusedFull]},
		{"Late", stats.Late, n[refusedLate]},
		{"Closed", stats.Closed, n[refusedClosed]},
	} {
		if c.got != c.want {
			s.t.Errorf("%s: %d; expected %d", c.name, c.got, c.want)
		}
	}
}
