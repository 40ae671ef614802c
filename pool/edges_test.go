package pool

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// These are edges that a reviewer has found sharp.

// trusted has a pool trust its jobs.
func trusted(p *Pool) {
	for !p.trust.quick() {
		done := make(chan struct{})
		p.TrySubmit(func(context.Context) { close(done) })
		<-done
	}
}

// held has a worker run a job until release is called.
func held(p *Pool) (release func()) {
	in, out := make(chan struct{}), make(chan struct{})
	p.TrySubmit(func(context.Context) { close(in); <-out })
	<-in
	return func() { close(out) }
}

func made(t *testing.T, cfg Config) *Pool {
	t.Helper()
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A job that does not come back while all others are quick: these count on its worker
// for a little, and then no more.
func TestLongJobAmongQuickOnes(t *testing.T) {
	p := made(t, Config{Max: 64})
	defer p.Close(context.Background())
	trusted(p)
	defer held(p)()
	slow := 0
	for i := range 60 {
		at, done := time.Now(), make(chan struct{})
		p.TrySubmit(func(context.Context) { close(done) })
		<-done
		if i >= 30 && p.stuck.Load() == 0 && p.trust.quick() && time.Since(at) > 5*time.Millisecond {
			slow++
		}
		time.Sleep(time.Millisecond)
	}
	if slow > 0 {
		t.Errorf("%d jobs have waited for the tender, long after the long one began", slow)
	}
	if p.stuck.Load() == 0 && p.trust.quick() {
		t.Error("jobs are trusted, and nobody knows that one has not come back")
	}
}

// No task waits while a worker is parked, whenever it came: workers that have just
// begun, search, and park, in a bubble where no tender helps because no time passes.
func TestNobodySleepsWhileTasksWait(t *testing.T) {
	for i := range 300 {
		synctest.Test(t, func(t *testing.T) {
			const workers = 5
			p := made(t, Config{Min: workers, Max: workers, Queue: 64})
			gate := make(chan struct{})
			for range i % 7 {
				runtime.Gosched()
			}
			for range workers {
				if err := p.TrySubmitTask(Task{Job: Func(func(context.Context) { <-gate })}); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			if s := p.Stats(); s.Running != workers || s.Queued != 0 {
				t.Errorf("%d run and %d wait, with %d workers idle", s.Running, s.Queued, s.Idle)
			}
			close(gate)
			p.Close(context.Background())
		})
	}
}

// Whoever gives a worker something to do wakes the tender.
func TestPushStirsTender(t *testing.T) {
	p := made(t, Config{Min: 2, Max: 64})
	defer p.Close(context.Background())
	trusted(p)
	for !p.dozing.Load() {
		time.Sleep(time.Millisecond)
	}
	in, out := make(chan struct{}), make(chan struct{})
	p.push(&Task{Job: Func(func(context.Context) { close(in); <-out })}) // as when wants was false a moment before
	<-in
	defer close(out)
	done := make(chan struct{})
	p.TrySubmit(func(context.Context) { close(done) })
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Errorf("lost; the tender dozes: %v", p.dozing.Load())
	}
}

// Who is made to give way makes room, also where more wait than there is room for.
func TestPressAboveRoom(t *testing.T) {
	s := newShard(4, 0)
	low := make([]Task, 35)
	for i := range low {
		low[i] = Task{Job: number(i), Priority: Low}
	}
	s.restore(low, 1)
	for i := range 40 {
		ok, victim := s.press(&Task{Job: number(i), Priority: High}, 1)
		if ok != (victim != nil) {
			t.Fatalf("accepted %v, and %v had to give way", ok, victim)
		}
	}
	if s.n != 35 {
		t.Errorf("%d tasks, want 35 as before", s.n)
	}
}

// What is put back comes first again, in order.
func TestRestore(t *testing.T) {
	s := newShard(4, 0)
	for i := range 4 {
		s.add(10+i, 5, Normal, 0)
	}
	s.restore([]Task{{Job: number(1)}, {Job: number(2), Ctx: context.Background()}, {Job: number(3)}}, 1)
	got, _ := s.all(5, 9)
	want(t, "what was put back before what waits", got, 1, 2, 3, 10, 11, 12, 13)
}

// Room that shedding makes is told to those who wait for it.
func TestSweepWakesWaiter(t *testing.T) {
	p := made(t, Config{Max: 1, Queue: 4})
	defer p.Close(context.Background())
	defer held(p)()
	for range 4 {
		p.TrySubmit(func(context.Context) {})
	}
	done := make(chan error, 1)
	go func() { done <- p.Submit(context.Background(), func(context.Context) {}) }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Errorf("Submit waits; %+v", p.Stats())
	}
}

// Close drops what is in batches, too, also when a worker fills one meanwhile.
func TestDropLeavesNoBatch(t *testing.T) {
	p := made(t, Config{Min: 1, Max: 1, Queue: 1 << 14}) // each shard has room for all
	p.trust.needs.Store(-1)
	release := held(p)
	in, out := make(chan struct{}), make(chan struct{})
	var ran atomic.Int64
	s := &p.shards[len(p.shards)-1]
	s.mu.Lock()
	for i := range 200 {
		s.push(&Task{Job: Func(func(context.Context) {
			if i == 0 {
				close(in)
				<-out
			}
			ran.Add(1)
		})}, p.now(), 0)
	}
	s.mu.Unlock()
	release()
	<-in // with a batch
	n := len(p.drop())
	close(out)
	if _, err := p.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if ran.Load() != 1 || n != 199 {
		t.Errorf("dropped %d, and %d ran, want 199 and 1", n, ran.Load())
	}
}

// A Submit that stands behind others sees that the pool is closed.
func TestSubmitAfterClose(t *testing.T) {
	p := made(t, Config{Max: 1, Queue: 1})
	release := held(p)
	p.TrySubmit(func(context.Context) {})
	p.queued.Add(1) // one that was woken in vain and has not come to its Add(-1)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p.Close(ctx)
	if err := p.Submit(context.Background(), func(context.Context) {}); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
	p.queued.Add(-1)
	release()
}

// New workers are for what waits, not for what comes.
func TestResizeServesWhatWaits(t *testing.T) {
	p := made(t, Config{Max: 1, Off: Adapting})
	defer p.Close(context.Background())
	defer held(p)()
	first := make(chan Priority, 2)
	for _, prio := range []Priority{High, Low} {
		p.TrySubmitTask(Task{Job: Func(func(context.Context) { first <- prio }), Priority: prio})
		if prio == High {
			p.Resize(0, 2)
		}
	}
	if <-first == Low {
		t.Error("Low ran while High waited")
	}
}

// A job whose end is the reason for the next one does not stand in its way for longer
// than a moment.
func TestNoQueueOneAfterTheOther(t *testing.T) {
	p := made(t, Config{Min: 1, Max: 1, Queue: NoQueue})
	defer p.Close(context.Background())
	refused := 0
	for i := range 1000 {
		done := make(chan struct{})
		for tries := 0; errors.Is(p.TrySubmit(func(context.Context) { close(done) }), ErrFull); tries++ {
			if refused++; tries > 10_000 {
				t.Fatalf("job %d is refused, a long moment after the one before has returned", i)
			}
			runtime.Gosched()
		}
		<-done
	}
	t.Logf("%d were refused, of which the next moment was right", refused)
}

// Min that JobBytes forbids is refused.
func TestMinAgainstJobBytes(t *testing.T) {
	cfg := Config{Min: 8, Max: 8, MemoryLimit: 1 << 30, JobBytes: 256 << 20}
	if _, err := New(cfg); !errors.Is(err, ErrBadConfig) {
		t.Errorf("got %v, want ErrBadConfig", err)
	}
	cfg.Min = 0
	p := made(t, cfg)
	defer p.Close(context.Background())
	if err := p.Resize(3, 8); !errors.Is(err, ErrBadConfig) {
		t.Errorf("Resize: got %v, want ErrBadConfig", err)
	}
}

func TestNilFunc(t *testing.T) {
	p := made(t, Config{})
	defer p.Close(context.Background())
	defer func() {
		if recover() == nil {
			t.Error("TrySubmit(nil) was accepted")
		}
	}()
	p.TrySubmit(nil)
}

// Workers that compute let others run between jobs. Those whose jobs block have waited
// for their turn when they come back, and take the next job at once.
func TestTurnBetweenJobs(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const workers = 64
	for _, c := range []struct {
		what   string
		crowd  float64 // goroutines that are ready, for each processor
		others bool    // are let run
	}{
		{"all jobs block", 0, false},
		{"half of them", workers / 2, false},
		{"all jobs compute", workers - 1, true},
	} {
		const rounds = 20
		others := 0 // in how many rounds the other one came first, but for whims of Go's scheduler
		for range rounds {
			synctest.Test(t, func(t *testing.T) {
				p := made(t, Config{Min: workers, Max: workers, Target: time.Hour})
				defer p.Close(context.Background())
				p.Crowd(c.crowd)
				order := make(chan bool, 2)
				p.TrySubmit(func(context.Context) {
					time.Sleep(time.Second)
					go func() { order <- true }() // ready when this job ends
				})
				for range workers - 1 {
					p.TrySubmit(func(context.Context) { time.Sleep(2 * time.Second) })
				}
				p.TrySubmit(func(context.Context) { order <- false })
				if <-order {
					others++
				}
				<-order
			})
		}
		if c.others != (others > rounds/2) {
			t.Errorf("%s: in %d of %d rounds another goroutine ran before the next job; expected %t for most", c.what, others, rounds, c.others)
		}
	}
}

// Among jobs that block a worker still lets others run when it has run short ones for
// long, which may have computed.
func TestTurnAfterShortJobs(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		const workers, jobs = 64, 100
		p := made(t, Config{Min: workers, Max: workers, Target: time.Hour})
		defer p.Close(context.Background())
		p.Crowd(0)
		for range workers - 1 {
			p.TrySubmit(func(context.Context) { time.Sleep(2 * time.Second) })
		}
		time.Sleep(time.Second)
		if !p.blocking.Load() {
			t.Fatal("jobs that sleep are not seen to block")
		}
		var others atomic.Int64
		started, turns := 0, 0
		for range jobs {
			p.TrySubmit(func(context.Context) {
				if started++; others.Load() == int64(started-1) {
					turns++ // the one that the job before has made ready has run
				}
				time.Sleep(quantum / 4)
				go func() { others.Add(1) }()
			})
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if started != jobs || turns < jobs/10 || turns > jobs/2 {
			t.Errorf("%d of %d jobs ran, and before %d of them others were let run; expected %d to %d", started, jobs, turns, jobs/10, jobs/2)
		}
	})
}
