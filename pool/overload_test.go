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
	waits      []time.Duration // how long those waited that have run
}

// submitAtRate submits jobs at a multiple of the capacity for the duration d, and waits until
// none is left. It records waits after the duration from.
func submitAtRate(t *testing.T, p *pool.Pool, times float64, d, from time.Duration) *outcome {
	t.Helper()
	o := &outcome{}
	origin := time.Now()
	perMs := times * float64(capacity) / 1000
	for ms := range int(d / time.Millisecond) {
		for ; o.offered < int(perMs*float64(ms+1)); o.offered++ {
			job, begin := o.offered, time.Now()
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
	waitForIdle(p)
	synctest.Wait()
	slices.Sort(o.waits)
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
	return fmt.Sprintf("offered %d, full %d, shed %d, good %d, wait p10 %v, median %v, p99 %v, max %v",
		o.offered, o.full, o.shed, o.good, o.wait(0.1), o.wait(0.5), o.wait(0.99), o.wait(1))
}

// wait returns a quantile of the waits.
func (o *outcome) wait(q float64) time.Duration { return o.waits[int(q*float64(len(o.waits)-1))] }

// A pool that can run all jobs sheds nothing, also in bursts that take longer than the target but
// less than the interval.
func TestCalmPoolShedsNothing(t *testing.T) {
	inBubble(t, overloadConfig(pool.Config{}), func(t *testing.T, p *pool.Pool) {
		o := submitAtRate(t, p, 0.9, 3*time.Second, 0)
		if s := p.Stats(); o.good != o.offered || s.Overloaded {
			t.Errorf("at 0.9 of capacity: %v, %+v", o, s)
		}
		for range 20 {
			mustSubmit(t, p, 4*workers, sleepFor(service)) // 60 ms until the last one begins
			time.Sleep(90 * time.Millisecond)
			if s := p.Stats(); s.Overloaded || s.Running+s.Queued > 0 {
				t.Errorf("after a burst: overloaded %v, running %d, queued %d", s.Overloaded, s.Running, s.Queued)
			}
		}
		if s := p.Stats(); s.Shed+s.Full != 0 {
			t.Errorf("after bursts: shed %d, full %d; expected none", s.Shed, s.Full)
		}
	})
}

// In any overload, jobs that run have not waited long, and nearly the full capacity is useful. Each rule can be
// disabled alone. Without the rules the queue is long, and each job has waited for all of it.
func TestOverload(t *testing.T) {
	const ms, half, second = time.Millisecond, 500 * time.Millisecond, time.Second
	shortWait := func(most time.Duration) func(o *outcome) bool {
		return func(o *outcome) bool { return o.wait(0.99) <= most && o.shed > 0 }
	}
	lowLatency := func(most time.Duration) func(o *outcome) bool {
		return func(o *outcome) bool { return o.good >= 3*capacity*95/100 && shortWait(most)(o) }
	}
	for name, c := range map[string]struct {
		cfg   pool.Config
		times float64
		from  time.Duration // when recording of waits begins
		ok    func(o *outcome) bool
	}{
		"low latency, also if the overload comes and goes": {pool.Config{Target: 5 * ms}, 1.2, half, lowLatency(50 * ms)},
		"low latency": {pool.Config{Target: 5 * ms}, 2, half, lowLatency(10 * ms)},
		"few accepted to be shed": {pool.Config{Target: 5 * ms}, 10, half, func(o *outcome) bool {
			return lowLatency(15*ms)(o) && o.full >= 10*o.shed
		}},
		// The default target is the duration of these jobs.
		"low latency with the default target": {pool.Config{}, 2, half, lowLatency(25 * ms)},
		"waits of up to twice a short target": {pool.Config{Target: 50 * ms, Interval: second}, 2, 2 * second, shortWait(100 * ms)},
		"waits of up to twice a long target":  {pool.Config{Target: 200 * ms, Interval: second}, 2, 2 * second, shortWait(400 * ms)},
		// Jobs from the first milliseconds are the oldest until the end.
		"nothing shed, a short wait for the newest": {pool.Config{KeepQueued: true}, 10, 0, func(o *outcome) bool {
			return o.shed == 0 && o.wait(0.5) <= 50*ms && o.wait(1) >= second
		}},
		"nothing shed, a wait for the queue": {pool.Config{KeepQueued: true, FIFO: true}, 2, half, func(o *outcome) bool {
			return o.shed == 0 && o.wait(0.1) >= 200*ms
		}},
		// The target, plus a tick of the controller or two until it acts; with KeepQueued it would
		// be a second.
		"waits of up to the target": {pool.Config{FIFO: true}, 10, half, shortWait(30 * ms)},
		"nothing in time without rules": {
			pool.Config{FixedLimit: true, KeepQueued: true, FIFO: true}, 10, half, func(o *outcome) bool {
				return o.good <= 3*capacity/4 && o.wait(0.99) >= 2*patient && o.shed == 0
			},
		},
	} {
		for _, processors := range []int{2, 8} {
			t.Run(fmt.Sprintf("%s/%d", name, processors), func(t *testing.T) {
				setProcessors(t, processors)
				inBubble(t, overloadConfig(c.cfg), func(t *testing.T, p *pool.Pool) {
					o := submitAtRate(t, p, c.times, 3*time.Second, c.from)
					if !c.ok(o) {
						t.Errorf("%+v, %v of capacity: %v; expected: %s", c.cfg, c.times, o, name)
					}
					s := p.Stats()
					if s.Shed != uint64(o.shed) || s.Full != uint64(o.full) || o.good+o.shed+o.full > o.offered {
						t.Errorf("%v, but shed %d, full %d in Stats", o, s.Shed, s.Full)
					}
				})
			})
		}
	}
}

// An overload begins when jobs have waited longer than the target for all of the interval, not
// earlier.
func TestOverloadBeginsAndEnds(t *testing.T) {
	setProcessors(t, 2)
	inBubble(t, overloadConfig(pool.Config{}), func(t *testing.T, p *pool.Pool) {
		for range 2 { // the first leaves no state: the second takes as long to begin
			if o := submitAtRate(t, p, 2, 45*time.Millisecond, 0); o.shed != 0 {
				t.Errorf("%v: something was shed before the interval was over", o)
			}
			time.Sleep(time.Second)
			if p.Stats().Overloaded {
				t.Error("overloaded without work")
			}
		}
		samples := 0 // in which it is overloaded
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for range 20 {
				if time.Sleep(50 * time.Millisecond); p.Stats().Overloaded {
					samples++
				}
			}
		}()
		o := submitAtRate(t, p, 2, time.Second, 0)
		if <-ended; samples < 12 || o.shed == 0 {
			t.Errorf("overloaded in %d of 20 samples, %v; expected nearly always after the first 100 ms", samples, o)
		}
		time.Sleep(time.Second)
		if p.Stats().Overloaded {
			t.Error("still overloaded a second after the last job")
		}
	})
}
