package pool_test

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/pool"
)

var (
	stressJobs = flag.Int("jobs", 200_000, "how many jobs TestEveryJobIsAccountedFor submits")
	stressSeed = flag.Uint64("seed", 0, "the seed of TestEveryJobIsAccountedFor; 0 is another each time")
)

// Outcomes of a submitted job.
const (
	unknown = iota
	turnedFull
	turnedLate
	turnedClosed
	ran
	droppedExpired
	droppedShed
	droppedClosed
	outcomes
)

var outcomeNames = [outcomes]string{"not heard of: Funcs", "turned away: full", "turned away: late", "turned away: closed",
	"run", "dropped: expired", "dropped: shed", "dropped: closed"}

// What a job does.
const (
	doNothing = iota
	doPanic
	doCrash
	doGoexit
	doYield
	doSleep
	doWait // for its context, for a while
	doSubmit
	deeds
)

type stressJob struct {
	s       *stressRun
	outcome atomic.Int32
	back    atomic.Bool // Close has returned it
	deed    int
	plain   bool // it is submitted as a Func, which does not hear of a drop
	ctx     context.Context
	fn      pool.Func // Run, made once
}

func (r *stressJob) setOutcome(o int32) {
	if !r.outcome.CompareAndSwap(unknown, o) {
		r.s.t.Errorf("a job has two outcomes: %s, then %s", outcomeNames[r.outcome.Load()], outcomeNames[o])
	}
}

func (r *stressJob) Run(ctx context.Context) {
	r.s.running.Add(1)
	defer r.s.running.Add(-1)
	r.setOutcome(ran)
	switch r.deed {
	case doPanic:
		panic(errWhy)
	case doCrash:
		writeNilMap(nil)
	case doGoexit:
		runtime.Goexit()
	case doYield:
		runtime.Gosched()
	case doSleep:
		time.Sleep(20 * time.Microsecond)
	case doWait:
		timer := time.NewTimer(100 * time.Microsecond)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	case doSubmit:
		r.s.submitFromJob(ctx)
	}
}

func (r *stressJob) Dropped(why error) {
	if r.plain {
		r.s.t.Error("a Func was told that it is dropped")
	}
	switch {
	case errors.Is(why, pool.ErrExpired):
		if r.ctx == nil || r.ctx.Err() == nil || !errors.Is(why, context.Cause(r.ctx)) {
			r.s.t.Errorf("a job has expired with %v, but its context: %v", why, r.ctx)
		}
		r.setOutcome(droppedExpired)
	case errors.Is(why, pool.ErrShed):
		r.setOutcome(droppedShed)
	case errors.Is(why, pool.ErrClosed):
		r.setOutcome(droppedClosed)
	default:
		r.s.t.Errorf("dropped with %v", why)
	}
}

type stressRun struct {
	t                          *testing.T
	p                          *pool.Pool
	running                    atomic.Int64
	panicked                   atomic.Int64 // as Config.Panicked has heard
	extra, extraRan, extraFull atomic.Int64 // jobs submitted by jobs
}

func (s *stressRun) submitFromJob(ctx context.Context) {
	switch err := s.p.TrySubmit(func(context.Context) { s.extraRan.Add(1) }); {
	case err == nil:
		s.extra.Add(1)
	case errors.Is(err, pool.ErrFull), errors.Is(err, pool.ErrClosed):
		s.extraFull.Add(1)
	default:
		s.t.Errorf("TrySubmit from a job: %v", err)
	}
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
	t.Logf("go test -run EveryJob -seed %d", seed)
	records := make([]stressJob, size)
	for i := range records {
		records[i].fn = records[i].Run
	}
	var total [outcomes]uint64
	begin := time.Now()
	done := 0
	for n := uint64(0); done < *stressJobs && !t.Failed(); n++ {
		rng := rand.New(rand.NewPCG(seed, n))
		runStress(t, rng, records, &total)
		done += size
		if t.Failed() {
			t.Errorf("seed %d, slice %d", seed, n)
		}
	}
	t.Logf("%d jobs in %v, %.0f a second", done, time.Since(begin).Round(time.Millisecond), float64(done)/time.Since(begin).Seconds())
	for o, n := range total {
		t.Logf("%9d %s", n, outcomeNames[o])
		if o != unknown && n == 0 && done >= 200_000 {
			t.Errorf("of %d jobs none was %s: the test shows less than it should", done, outcomeNames[o])
		}
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

func runStress(t *testing.T, rng *rand.Rand, records []stressJob, total *[outcomes]uint64) {
	s := &stressRun{t: t}
	cfg := randomConfig(rng)
	cfg.Panicked = func(e *pool.PanicError) { s.panicked.Add(1) }
	p, err := pool.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.p = p
	for i := range records {
		r := &records[i]
		r.s, r.deed, r.ctx, r.plain = s, doNothing, nil, false
		r.outcome.Store(unknown)
		r.back.Store(false)
		if rng.IntN(4) == 0 {
			r.deed = rng.IntN(deeds)
		}
	}
	var submitters, others sync.WaitGroup
	shared, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	stop := make(chan struct{})
	var submitted atomic.Int64
	n := 1 + rng.IntN(16)
	for g := range n {
		own := rand.New(rand.NewPCG(rng.Uint64(), 0))
		submitters.Go(func() {
			for i := g; i < len(records); i += n {
				s.submitRandomly(own, &records[i], shared)
				submitted.Add(1)
			}
		})
	}
	own := rand.New(rand.NewPCG(rng.Uint64(), 0))
	others.Go(func() { s.checkStatsUntil(own, stop) })
	closeAt := int64(len(records) + 1) // after all have been submitted
	if rng.IntN(2) == 0 {
		closeAt = rng.Int64N(int64(len(records)))
	}
	cancelAt := rng.Int64N(int64(2 * len(records)))
	hurry := rng.IntN(3)
	var dropped []pool.Task
	closed := make(chan struct{})
	others.Go(func() {
		defer close(closed)
		for submitted.Load() < min(closeAt, int64(len(records))) {
			if submitted.Load() >= cancelAt {
				cancel(errWhy)
			}
			time.Sleep(20 * time.Microsecond)
		}
		dropped = s.closePool(hurry)
	})
	timer := time.AfterFunc(time.Minute, func() { panic("a slice hangs: Submit or Close has not returned for a minute") })
	defer timer.Stop()
	submitters.Wait()
	<-closed
	close(stop)
	others.Wait()
	s.checkOutcomes(records, dropped, total)
}

func (s *stressRun) submitRandomly(rng *rand.Rand, r *stressJob, shared context.Context) {
	task := pool.Task{Job: r}
	cancel := context.CancelFunc(nil)
	switch rng.IntN(16) {
	case 0:
		task.Ctx, cancel = context.WithTimeout(context.Background(), time.Duration(rng.IntN(500))*time.Microsecond)
	case 1:
		task.Ctx, cancel = context.WithCancel(context.Background())
	case 2:
		task.Ctx, cancel = context.WithCancel(shared)
		if rng.IntN(4) == 0 {
			cancel() // already
		}
	case 3, 4, 5, 6:
		task.Ctx = shared
	case 7, 8, 9:
		task.Ctx = context.Background()
	}
	late := task.Ctx != nil && task.Ctx.Err() != nil
	r.ctx, r.plain = task.Ctx, rng.IntN(8) == 0
	var err error
	try := rng.IntN(2) == 0
	switch {
	case r.plain && (try || task.Ctx == nil):
		r.ctx, late = nil, false
		err = s.p.TrySubmit(r.fn)
	case r.plain:
		err = s.p.Submit(task.Ctx, r.fn)
	case try:
		err = s.p.TrySubmitTask(task)
	default:
		err = s.p.SubmitTask(task)
	}
	switch {
	case err == nil:
		if late {
			s.t.Error("a job was accepted whose context had ended")
		}
	case errors.Is(err, pool.ErrClosed):
		r.setOutcome(turnedClosed)
	case errors.Is(err, pool.ErrExpired):
		if r.ctx == nil || !errors.Is(err, context.Cause(r.ctx)) {
			s.t.Errorf("Submit: %v, but its context: %v", err, r.ctx)
		}
		r.setOutcome(turnedLate)
	case errors.Is(err, pool.ErrFull):
		r.setOutcome(turnedFull)
	default:
		s.t.Errorf("Submit: %v", err)
	}
	if cancel != nil {
		if rng.IntN(2) == 0 {
			runtime.Gosched()
		}
		cancel()
	}
}

func (s *stressRun) checkStatsUntil(rng *rand.Rand, stop chan struct{}) {
	var last pool.Stats
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(rng.IntN(300)) * time.Microsecond):
		}
		now := s.p.Stats()
		if now.Accepted < last.Accepted || now.Finished < last.Finished || now.Expired < last.Expired || now.Shed < last.Shed ||
			now.Full < last.Full || now.Late < last.Late || now.Closed < last.Closed || now.Panicked < last.Panicked {
			s.t.Errorf("a counter went back: %+v, then %+v", last, now)
		}
		if now.Workers < 0 || now.Idle < 0 || now.Queued < 0 || now.Running < 0 {
			s.t.Errorf("less than none: %+v", now)
		}
		last = now
	}
}

func (s *stressRun) closePool(hurry int) (dropped []pool.Task) {
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	switch hurry {
	case 1:
		ctx, cancel = context.WithTimeout(ctx, 50*time.Microsecond)
	case 2:
		ctx = newEndedContext(nil)
	}
	defer cancel()
	second := make(chan []pool.Task)
	go func() { second <- closeAndCheck(s.t, s.p, ctx) }()
	dropped = closeAndCheck(s.t, s.p, ctx)
	if n := s.running.Load(); n != 0 {
		s.t.Errorf("%d jobs run after Close", n)
	}
	return append(dropped, <-second...)
}

func (s *stressRun) checkOutcomes(records []stressJob, dropped []pool.Task, total *[outcomes]uint64) {
	t, stats := s.t, expectBalanced(s.t, s.p)
	var returnedPlain, returned uint64
	for _, task := range dropped {
		r, ok := task.Job.(*stressJob)
		if !ok {
			returnedPlain++ // a Func: it can't be told which
			continue
		}
		returned++
		if r.back.Swap(true) {
			t.Error("a job was returned twice")
		}
		if o := r.outcome.Load(); o != droppedClosed {
			t.Errorf("a job was returned by Close, and is %s", outcomeNames[o])
		}
	}
	var n [outcomes]uint64
	var panicked uint64
	for i := range records {
		r := &records[i]
		o := r.outcome.Load()
		n[o]++
		switch {
		case o == unknown && !r.plain:
			t.Error("a job that was accepted has no outcome")
		case o == droppedClosed && !r.back.Load():
			t.Error("a job was dropped, but not returned by Close")
		case o == ran && (r.deed == doPanic || r.deed == doCrash || r.deed == doGoexit):
			panicked++
		}
	}
	for o := range n {
		total[o] += n[o]
	}
	extra, extraRan := uint64(s.extra.Load()), uint64(s.extraRan.Load())
	for _, c := range []struct {
		name      string
		got, want uint64
	}{
		{"Accepted", stats.Accepted, n[unknown] + n[ran] + n[droppedExpired] + n[droppedShed] + n[droppedClosed] + extra},
		{"Finished", stats.Finished, n[ran] + extraRan},
		{"Panicked", stats.Panicked, panicked},
		{"Wait.Count", stats.Wait.Count, stats.Finished},
		{"Service.Count", stats.Service.Count, stats.Finished},
		{"what Config.Panicked has heard", uint64(s.panicked.Load()), panicked},
		{"Dropped", stats.Dropped, n[droppedClosed] + returnedPlain},
		{"Closed + Full + Late", stats.Closed + stats.Full + stats.Late,
			n[turnedClosed] + n[turnedFull] + n[turnedLate] + uint64(s.extraFull.Load())},
		// Funcs are not told that they expired or were shed or dropped, but they must have had
		// one of these outcomes.
		{"Expired + Shed", stats.Expired + stats.Shed,
			n[droppedExpired] + n[droppedShed] + n[unknown] + extra - extraRan - returnedPlain},
	} {
		if c.got != c.want {
			t.Errorf("%s is %d; expected %d", c.name, c.got, c.want)
		}
	}
	if stats.Expired < n[droppedExpired] || stats.Shed < n[droppedShed] {
		t.Errorf("Expired is %d, Shed %d; expected at least %d, %d", stats.Expired, stats.Shed, n[droppedExpired], n[droppedShed])
	}
}
