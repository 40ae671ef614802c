package offer

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/pool"
)

// made is a lane of a generator with a side.
func made(p Plan, try func(j *Job) Answer) *lane { return newGenerator(newRun(p), fake{try}).newLane() }

// counted offers a job that is due now.
func (l *lane) counted(j *Job) { l.offer(j, l.next.Add(1)-1, l.run.now()) }

// TestDeadline has jobs end just in time and just too late.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := plan(1, time.Second, 0)
		g := made(p, (&hold{}).try)
		for _, after := range []time.Duration{0, p.Deadline, p.Deadline + 1} {
			j := g.take()
			g.counted(j)
			time.Sleep(after)
			j.Do()
		}
		r := g.run.result(g.generator, &g.run.window)
		if r.Finished != 3 || r.Good != 2 || r.Max != p.Deadline+1 {
			t.Errorf("got %+v, want two good of three", r)
		}
	})
}

// TestPanic contains the panic of a job.
func TestPanic(t *testing.T) {
	g := made(plan(1, time.Second, 0), (&hold{}).try)
	g.run.tasks.all.bytes = -1
	j := g.take()
	g.counted(j)
	j.Do()
	r := g.run.result(g.generator, &g.run.window)
	wantSums(t, r)
	if r.Panicked != 1 || r.Finished != 1 {
		t.Errorf("got %+v, want one that panicked", r)
	}
}

// TestTwice has a pool end a job twice.
func TestTwice(t *testing.T) {
	for name, again := range map[string]func(j *Job){"do": (*Job).Do, "expired": (*Job).Expired, "shed": (*Job).Shed} {
		g := made(plan(1, time.Second, 0), (&hold{}).try)
		j := g.take()
		g.counted(j)
		j.Do()
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			again(j)
		}()
	}
}

// TestReuse uses ended and rejected jobs again, and keeps no more than the bound.
func TestReuse(t *testing.T) {
	const kept = 10
	var h hold
	g := made(plan(1, time.Second, 0), h.try)
	g.run.mostKept = kept
	for range 3 * kept {
		g.counted(g.take())
	}
	first := map[*Job]bool{}
	for _, j := range h.jobs {
		if len(first) < kept {
			first[j] = true
		}
		j.Do()
	}
	for i := range kept {
		if j := g.take(); !first[j] {
			t.Fatalf("take %d: not a job that has ended", i)
		} else {
			delete(first, j)
		}
	}
	if n := g.made.Load(); n != 3*kept {
		t.Fatalf("%d jobs made, want %d", n, 3*kept)
	}
	g.take()
	if n := g.made.Load(); n != 3*kept+1 {
		t.Errorf("more than %d jobs kept", kept)
	}

	g = made(plan(1, time.Second, 0), func(*Job) Answer { return Full })
	for range 100 {
		g.counted(g.take())
	}
	if n := g.made.Load(); n != 1 {
		t.Errorf("%d jobs made for rejections, want 1", n)
	}
}

// TestContext has a job's context end at the job's deadline, for those who ask the
// time and those who wait.
func TestContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := plan(1, time.Second, 0)
		g := made(p, (&hold{}).try)
		j := g.take()
		g.counted(j)
		ctx := j.Context()
		want := time.Now().Add(p.Deadline)
		if at, ok := ctx.Deadline(); !ok || !at.Equal(want) {
			t.Errorf("deadline %v, %v, want %v", at, ok, want)
		}
		child, cancel := context.WithCancel(ctx) // with a goroutine, but for AfterFunc
		defer cancel()
		done := ctx.Done()
		time.Sleep(p.Deadline - 1)
		synctest.Wait()
		if ctx.Err() != nil || child.Err() != nil || isClosed(done) {
			t.Errorf("ended before its time: %v, %v", ctx.Err(), child.Err())
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) || !errors.Is(child.Err(), context.DeadlineExceeded) || !isClosed(done) || !isClosed(ctx.Done()) {
			t.Errorf("not ended: %v, %v", ctx.Err(), child.Err())
		}
	})
}

// TestContextOfNextJob keeps an ended context from a job that comes later.
func TestContextOfNextJob(t *testing.T) {
	for name, wait := range map[string]func(context.Context){
		"nobody": func(context.Context) {},
		"Done":   func(ctx context.Context) { ctx.Done() },
		"child":  func(ctx context.Context) { _, cancel := context.WithCancel(ctx); cancel() },
	} {
		synctest.Test(t, func(t *testing.T) {
			p := plan(1, time.Second, 0)
			g := made(p, (&hold{}).try)
			j := g.take()
			g.counted(j)
			ctx := j.Context()
			wait(ctx)
			j.Do()
			next := g.take()
			time.Sleep(p.Deadline)
			g.counted(next)
			if next != j || next.Context().Err() != nil {
				t.Errorf("%s: the next job is another (%v), or too late at once", name, next != j)
			}
			if kept := next.Context() == ctx; kept != (name == "nobody") {
				t.Errorf("%s: the same context: %v", name, kept)
			}
			if name != "nobody" && ctx.Err() == nil {
				t.Errorf("%s: a context that somebody waited for was used again", name)
			}
		})
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestLimit has jobs end, and begin, too late to be counted.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := made(plan(1, time.Second, time.Minute), (&hold{}).try)
		late, later := l.take(), l.take()
		l.counted(late)
		l.counted(later)
		late.Do()
		before := time.Now()
		later.Do()
		if took := time.Since(before); took > 0 {
			t.Errorf("a job did something for %v after the limit", took)
		}
		r := l.run.result(l.generator, &l.run.window)
		wantSums(t, r)
		if r.Finished != 0 || r.Unfinished != 2 {
			t.Errorf("got %+v, want two unfinished", r)
		}
	})
}

// TestBehind has a lane begin 30 ms late: all that is due is submitted at once, and
// what is later than 10 ms counts so. Latencies and deadlines know nothing of that.
func TestBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := plan(1000, 50*time.Millisecond, 0)
		p.Deadline = time.Millisecond
		l := made(p, func(j *Job) Answer {
			if at, _ := j.Context().Deadline(); time.Until(at) != p.Deadline {
				t.Errorf("job %d: the context ends in %v, want %v", j.number, time.Until(at), p.Deadline)
			}
			j.Do()
			return Accepted
		})
		l.run.start = time.Now().Add(-30 * time.Millisecond)
		begin := time.Now()
		l.open(t.Context(), 0)
		took := time.Since(begin)
		r := l.run.result(l.generator, &l.run.window)
		if r.Offered != 50 || r.Late != 20 || took != 19*time.Millisecond {
			t.Errorf("%d offered, %d late, in %v; want 50 and 20 in 19ms", r.Offered, r.Late, took)
		}
		if most := 30 * time.Millisecond; r.LateP99 < most*28/30 || r.LateP99 > most || r.Max != 0 || r.Good != 50 {
			t.Errorf("late by %v, latencies up to %v, %d good; want 28ms to 30ms, 0s and all good", r.LateP99, r.Max, r.Good)
		}
	})
}

// TestOurs has our pool give each of its answers.
func TestOurs(t *testing.T) {
	p := plan(1, time.Minute, 0)
	p.Queue, p.Deadline = 0, time.Minute
	side, err := newOurs(p)
	if err != nil {
		t.Fatal(err)
	}
	l := newGenerator(newRun(p), side).newLane()
	blocked := make(chan struct{})
	started := make(chan struct{})
	o := side.(ours)
	for err := pool.ErrFull; err != nil; { // until there is a worker
		err = o.TrySubmit(func(context.Context) {
			close(started)
			<-blocked
		})
	}
	<-started
	l.counted(l.take())
	l.run.start = time.Now().Add(-time.Hour) // due an hour after that
	l.offer(l.take(), l.next.Add(1), 0)
	close(blocked)
	side.Close()
	l.counted(l.take())
	r := l.run.result(l.generator, &l.run.window)
	if r.Causes["full"] != 1 || r.Causes["expired"] != 1 || r.Causes["closed"] != 1 {
		t.Errorf("got %v, want one each of full, expired and closed", r.Causes)
	}
}
