package pool_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/pool"
)

// The overload of these tests: 50 workers with jobs of 20 ms (10 to 30 ms, so that they are not
// synchronized), so 2,500 jobs a second; a queue for 1,000, which is 400 ms of work; callers wait
// for 100 ms.
const (
	workers  = 50
	service  = 20 * time.Millisecond
	capacity = int(time.Second/service) * workers
	patient  = 100 * time.Millisecond
)

func overloadConfig(cfg pool.Config) pool.Config {
	cfg.Min, cfg.Max, cfg.Queue = workers, workers, 1000
	return cfg
}

type outcome struct {
	offered, full int

	mu         sync.Mutex // of what the jobs note
	shed, good int
	waits      []time.Duration // how long those waited
}

// submitAtRate submits jobs at a multiple of the capacity for the duration d, and waits until
// none is left. It records waits after the duration from.
func submitAtRate(t *testing.T, p *pool.Pool, times float64, d, from time.Duration) *outcome {
	t.Helper()
	o := &outcome{}
	origin := time.Now()
	perMs := times * float64(capacity) / 1000
	for ms := 0; time.Duration(ms)*time.Millisecond < d; ms++ {
		for o.offered < int(perMs*float64(ms+1)) {
			job, begin := o.offered, time.Now()
			o.offered++
			err := p.TrySubmitTask(pool.Task{Job: &droppable{
				run: func(context.Context) {
					if waited := time.Since(begin); begin.Sub(origin) >= from {
						o.update(func() { o.waits = append(o.waits, waited) })
					}
					time.Sleep(service/2 + time.Duration(job*7919%21)*service/20)
					if time.Since(begin) <= patient {
						o.update(func() { o.good++ })
					}
				},
				dropped: func(why error) {
					if !errors.Is(why, pool.ErrShed) {
						t.Errorf("dropped: %v; expected ErrShed", why)
					}
					if waited := time.Since(begin); waited < 5*time.Millisecond && p.Stats().Queued < 990 {
						t.Errorf("shed after %v; expected more than the target of 5 ms", waited)
					}
					o.update(func() { o.shed++ })
				},
			}})
			if err != nil {
				o.full++
			}
		}
		synctest.Wait()
		time.Sleep(time.Millisecond)
	}
	for p.Stats().Queued+p.Stats().Running > 0 {
		time.Sleep(time.Millisecond)
	}
	synctest.Wait()
	return o
}

func (o *outcome) update(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
}

type droppable struct {
	run     func(context.Context)
	dropped func(error)
}

func (d *droppable) Run(ctx context.Context) { d.run(ctx) }
func (d *droppable) Dropped(why error)       { d.dropped(why) }

func (o *outcome) String() string {
	return fmt.Sprintf("offered %d, full %d, shed %d, good %d, wait p99 %v, max %v", o.offered, o.full, o.shed, o.good, o.waitQuantile(0.99), o.waitQuantile(1))
}

func (o *outcome) waitQuantile(q float64) time.Duration {
	if len(o.waits) == 0 {
		return 0
	}
	w := slices.Clone(o.waits)
	slices.Sort(w)
	return w[int(q*float64(len(w)-1))]
}

// A pool that can run all jobs sheds nothing, also in bursts that take longer than the target but
// less than the interval.
func TestCalmPoolShedsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPool(t, overloadConfig(pool.Config{}))
		o := submitAtRate(t, p, 0.9, 3*time.Second, 0)
		if s := p.Stats(); o.good != o.offered || s.Shed+s.Full != 0 || s.Overloaded {
			t.Errorf("at 0.9 of capacity: %v, %+v", o, s)
		}
		for range 20 {
			burst := make([]recordedJob, 4*workers) // 60 ms until the last one begins
			for i := range burst {
				burst[i] = recordedJob{t: t, name: "of a burst", do: func(context.Context) { time.Sleep(service) }}
				mustSubmitTask(t, p, pool.Task{Job: &burst[i]})
			}
			time.Sleep(90 * time.Millisecond)
			for i := range burst {
				burst[i].expectRan()
			}
			if p.Stats().Overloaded {
				t.Error("overloaded after a burst")
			}
		}
		if s := p.Stats(); s.Shed+s.Full != 0 {
			t.Errorf("after bursts: shed %d, full %d; expected none", s.Shed, s.Full)
		}
	})
}

// In any overload, jobs that run have not waited long, and nearly the full capacity is useful.
// Without the rules nothing is: the queue is long, and each job has waited for all of it.
func TestOverloadKeepsLatency(t *testing.T) {
	for _, n := range []int{2, 8} {
		t.Run(fmt.Sprint(n, " processors"), func(t *testing.T) {
			setProcessors(t, n)
			testOverloadLatency(t)
		})
	}
}

func testOverloadLatency(t *testing.T) {
	for _, c := range []struct {
		times float64
		limit time.Duration
	}{
		{1.2, 50 * time.Millisecond}, // it comes and goes
		{2, 10 * time.Millisecond},
		{10, 15 * time.Millisecond},
	} {
		t.Run(fmt.Sprintf("%v of capacity", c.times), func(t *testing.T) {
			cfg := overloadConfig(pool.Config{})
			cfg.Target = 5 * time.Millisecond
			synctest.Test(t, func(t *testing.T) { expectLowLatency(t, cfg, c.times, c.limit) })
			// The default target is the duration of these jobs.
			synctest.Test(t, func(t *testing.T) {
				expectLowLatency(t, overloadConfig(pool.Config{}), c.times, max(c.limit, 25*time.Millisecond))
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		p := startPool(t, overloadConfig(pool.Config{FixedLimit: true, KeepQueued: true, FIFO: true}))
		if o := submitAtRate(t, p, 10, 3*time.Second, 500*time.Millisecond); o.good > 3*capacity/4 || o.waitQuantile(0.99) < 2*patient || o.shed != 0 {
			t.Errorf("without rules: %v: the test shows nothing", o)
		}
	})
}

func expectLowLatency(t *testing.T, cfg pool.Config, times float64, limit time.Duration) {
	p := startPool(t, cfg)
	o := submitAtRate(t, p, times, 3*time.Second, 500*time.Millisecond)
	if o.good < 3*capacity*95/100 {
		t.Errorf("%v; expected %d good ones", o, 3*capacity*95/100)
	}
	if p99 := o.waitQuantile(0.99); p99 > limit {
		t.Errorf("%v; expected a p99 of the wait of at most %v", o, limit)
	}
	if s := p.Stats(); s.Shed == 0 || s.Shed != uint64(o.shed) || s.Full != uint64(o.full) || o.good+o.shed+o.full > o.offered {
		t.Errorf("%v, but shed %d, full %d in Stats", o, s.Shed, s.Full)
	}
	if times == 10 && o.full < 10*o.shed {
		t.Errorf("%v: accepted only to be shed", o)
	}
}

// An overload begins when jobs have waited longer than the target for all of the interval, not
// earlier. Only during an overload the newest jobs run first.
func TestOverloadBeginsAndEnds(t *testing.T) {
	setProcessors(t, 2)
	synctest.Test(t, func(t *testing.T) {
		p := startPool(t, overloadConfig(pool.Config{}))
		for range 2 { // the first leaves no state: the second takes as long to begin
			if o := submitAtRate(t, p, 2, 45*time.Millisecond, 0); o.shed != 0 {
				t.Errorf("%v: something was shed before the interval was over", o)
			}
			time.Sleep(time.Second)
			if p.Stats().Overloaded {
				t.Error("overloaded without work")
			}
		}
		seen := make(chan int)
		go func() {
			n := 0
			for range 20 {
				time.Sleep(50 * time.Millisecond)
				if p.Stats().Overloaded {
					n++
				}
			}
			seen <- n
		}()
		o := submitAtRate(t, p, 2, time.Second, 0)
		if n := <-seen; n < 12 || o.shed == 0 {
			t.Errorf("overloaded in %d of 20 samples, %v; expected nearly always after the first 100 ms", n, o)
		}
		time.Sleep(time.Second)
		shed := p.Stats().Shed
		if p.Stats().Overloaded {
			t.Error("still overloaded a second after the last job")
		}
		const all, half = 4 * workers, 2 * workers // half is whole rounds: the jobs of one begin in any order
		order := make(chan int, all)
		for i := range all {
			mustSubmit(t, p, func(context.Context) {
				order <- i
				time.Sleep(time.Millisecond)
			})
			synctest.Wait()
		}
		time.Sleep(time.Second)
		early := 0
		for range half {
			if <-order < half {
				early++
			}
		}
		// With several shards that order is approximate. With the newest first, only jobs that
		// found a worker at once would be among them.
		if early < half*3/4 {
			t.Errorf("after the overload: of the first %d that ran, %d came first; expected order of arrival", half, early)
		}
		if s := p.Stats(); s.Shed != shed {
			t.Errorf("%d were shed after the overload", s.Shed-shed)
		}
	})
}

// Each rule can be disabled alone.
func TestRulesOff(t *testing.T) {
	for name, c := range map[string]struct {
		cfg   pool.Config
		times float64
		from  time.Duration // when recording begins
		ok    func(o *outcome) bool
	}{
		// Jobs from the first milliseconds are the oldest until the end.
		"nothing is shed, the newest run at once and others wait for long": {pool.Config{KeepQueued: true}, 10, 0, func(o *outcome) bool {
			return o.shed == 0 && o.waitQuantile(0.5) <= 50*time.Millisecond && o.waitQuantile(1) >= time.Second
		}},
		"nothing is shed, all wait for the queue": {pool.Config{KeepQueued: true, FIFO: true}, 2, 500 * time.Millisecond, func(o *outcome) bool {
			return o.shed == 0 && o.waitQuantile(0.1) >= 200*time.Millisecond
		}},
		// The target, plus a tick of the controller or two until it acts; with KeepQueued it would
		// be a second.
		"jobs that run have waited up to the target": {pool.Config{FIFO: true}, 10, 500 * time.Millisecond, func(o *outcome) bool {
			return o.shed != 0 && o.waitQuantile(0.99) <= 30*time.Millisecond
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := startPool(t, overloadConfig(c.cfg))
			o := submitAtRate(t, p, c.times, 3*time.Second, c.from)
			if s := p.Stats(); !c.ok(o) || s.Shed != uint64(o.shed) {
				t.Errorf("%+v: %v, wait p10 %v, median %v; expected: %s", c.cfg, o, o.waitQuantile(0.1), o.waitQuantile(0.5), name)
			}
		})
	}
}

// Nothing is shed if the target is longer than any wait.
func TestTargetIsRespected(t *testing.T) {
	for _, target := range []time.Duration{50 * time.Millisecond, 200 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			cfg := overloadConfig(pool.Config{})
			cfg.Target, cfg.Interval = target, time.Second
			p := startPool(t, cfg)
			o := submitAtRate(t, p, 2, 4*time.Second, 2*time.Second)
			if p99 := o.waitQuantile(0.99); p99 > 2*target || o.shed == 0 {
				t.Errorf("target %v: %v", target, o)
			}
		})
	}
}
