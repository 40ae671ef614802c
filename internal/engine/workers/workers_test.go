package workers

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type work func()

func (w work) Run() { w() }

// The pool takes as much as its workers and its queue hold, refuses the next,
// runs all that it took, and has room again.
func TestBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 3
		p := New(n)
		release := make(chan struct{})
		var ran atomic.Int64
		block := work(func() { <-release; ran.Add(1) })
		for i := range 2 * n {
			if !p.TrySubmit(block) {
				t.Fatalf("piece %d of %d is refused", i+1, 2*n)
			}
			synctest.Wait()
		}
		if p.TrySubmit(block) {
			t.Errorf("%d workers with a queue of %d take %d pieces of work", n, n, 2*n+1)
		}
		if got := p.Workers(); got != n {
			t.Errorf("%d workers, want %d", got, n)
		}
		close(release)
		synctest.Wait()
		if got := ran.Load(); got != 2*n {
			t.Errorf("%d pieces have run, want %d", got, 2*n)
		}
		if !p.TrySubmit(block) {
			t.Error("an idle pool refuses")
		}
		p.Close()
	})
}

// Idle workers end, little by little.
func TestShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(100)
		release := make(chan struct{})
		for range 100 {
			p.TrySubmit(work(func() { <-release }))
		}
		close(release)
		synctest.Wait()
		if p.Workers() != 100 {
			t.Fatalf("%d workers after 100 pieces of work at once, want 100", p.Workers())
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if p.Workers() != 0 {
			t.Errorf("%d workers after a minute without work, want none", p.Workers())
		}
		p.Close()
	})
}

// Work that comes when the only worker has been told to end, and has not yet,
// runs all the same.
func TestWorkWhileEnding(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that the worker has not run in between
	p := New(1)
	defer p.Close()
	for range 100 {
		ran := make(chan struct{}, 2)
		w := work(func() { ran <- struct{}{} })
		p.TrySubmit(w)
		<-ran
		for p.spare.Load() != 1 {
			runtime.Gosched() // until it waits
		}
		p.spare.Add(-1) // as tend does
		p.work <- nil
		if !p.TrySubmit(w) {
			t.Fatal("an idle pool refuses")
		}
		select {
		case <-ran:
		case <-time.After(10 * time.Second):
			t.Fatal("work is left in the channel, and nobody takes it")
		}
	}
}

// What was taken runs, whatever Close does.
func TestCloseRunsAll(t *testing.T) {
	p := New(2)
	var ran atomic.Int64
	taken := int64(0)
	for range 1000 {
		if p.TrySubmit(work(func() { ran.Add(1) })) {
			taken++
		}
	}
	p.Close()
	p.Close()
	if ran.Load() != taken {
		t.Errorf("%d of %d pieces that were taken have run", ran.Load(), taken)
	}
}

func BenchmarkTrySubmit(b *testing.B) {
	p := New(64)
	defer p.Close()
	var done sync.WaitGroup
	w := work(done.Done)
	for b.Loop() {
		done.Add(1)
		if !p.TrySubmit(w) {
			done.Done()
		}
	}
	done.Wait()
}
