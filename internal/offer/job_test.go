package offer

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/pool"
)

// TestDeadline has jobs end just in time and just too late, and one that panics.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := plan(10, 400*time.Millisecond, 0)
		r := newRun(p, nil)
		r.side = fake{func(j *Job) Answer {
			switch j.number {
			case 1:
				time.Sleep(p.Deadline)
			case 2:
				time.Sleep(p.Deadline + 1)
			case 3:
				r.tasks.all.bytes = -1
			}
			j.Do()
			return Accepted
		}}
		for i := range uint64(4) {
			r.submit(r.window, i, r.now(), 0)
		}
		got := r.result(r.window)
		wantSums(t, got)
		if got.Finished != 4 || got.Good != 3 || got.Panicked != 1 || got.Max != p.Deadline+1 {
			t.Errorf("got %+v, want three good of four, of which one panicked", got)
		}
	})
}

// TestTwice has a pool end a job twice.
func TestTwice(t *testing.T) {
	for name, again := range map[string]func(j *Job){"do": (*Job).Do, "expired": (*Job).Expired, "shed": (*Job).Shed} {
		var h hold
		r := newRun(plan(1, time.Second, 0), fake{h.try})
		r.submit(r.window, 0, r.now(), 0)
		h.jobs[0].Do()
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			again(h.jobs[0])
		}()
	}
}

// TestContext has a job's context end at the job's deadline, for those who ask the time
// and those who wait. It is not another job's then.
func TestContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := plan(1, time.Second, 0)
		var h hold
		r := newRun(p, fake{h.try})
		r.submit(r.window, 0, r.now(), 0)
		ctx := h.jobs[0].Context()
		want := time.Now().Add(p.Deadline)
		if at, ok := ctx.Deadline(); !ok || !at.Equal(want) {
			t.Errorf("deadline %v, %v, want %v", at, ok, want)
		}
		child, cancel := context.WithCancel(ctx) // with a goroutine, but for AfterFunc
		defer cancel()
		time.Sleep(p.Deadline - 1)
		synctest.Wait()
		if ctx.Err() != nil || child.Err() != nil {
			t.Errorf("ended before its time: %v, %v", ctx.Err(), child.Err())
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) || !errors.Is(child.Err(), context.DeadlineExceeded) {
			t.Errorf("not ended: %v, %v", ctx.Err(), child.Err())
		}
		<-ctx.Done()
		h.jobs[0].Do()
		for i := range uint64(10) { // one of them may be the same job
			r.submit(r.window, 1+i, r.now(), 0)
			if h.jobs[1+i].Context() == ctx {
				t.Error("a context that somebody waited for was used again")
			}
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
	r := newRun(p, side)
	blocked, started := make(chan struct{}), make(chan struct{})
	o := side.(ours)
	for err := pool.ErrFull; err != nil; { // until there is a worker
		err = o.TrySubmit(func(context.Context) {
			close(started)
			<-blocked
		})
	}
	<-started
	r.submit(r.window, 0, r.now(), 0)
	r.submit(r.window, 1, r.now()-int64(time.Hour), 0) // it has ended long ago
	close(blocked)
	side.Close()
	r.submit(r.window, 2, r.now(), 0)
	got := r.result(r.window)
	if got.Causes["full"] != 1 || got.Causes["expired"] != 1 || got.Causes["closed"] != 1 {
		t.Errorf("got %v, want one each of full, expired and closed", got.Causes)
	}
}
