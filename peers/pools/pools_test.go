// Package pools compares myriad's pool with others, by benchmarks. README.md of
// the folder above says how to run them.
package pools

import (
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkSubmit is an empty job with a Submit that waits for room. The time is
// that until all jobs have run, so that a queue hides nothing.
func BenchmarkSubmit(b *testing.B) { compare(b, func() {}, false, submitAll) }

// BenchmarkSubmitMicrosecond is the same with a job that computes for about 1 µs.
func BenchmarkSubmitMicrosecond(b *testing.B) { compare(b, microsecond, false, submitAll) }

// BenchmarkTrySubmit is an empty job that is submitted until it is accepted: an
// op is an accepted job, rejected/op is how often it was not before.
func BenchmarkTrySubmit(b *testing.B) { compare(b, func() {}, true, tryAll) }

// BenchmarkTrySubmitMicrosecond is the same with a job that computes for about 1 µs.
func BenchmarkTrySubmitMicrosecond(b *testing.B) { compare(b, microsecond, true, tryAll) }

// BenchmarkFlood is a TrySubmit to a pool that is full and whose workers are all
// blocked: an op is a rejection, but for the share of accepted/op.
func BenchmarkFlood(b *testing.B) {
	each(b, func(c contender) bool { return c.room > 0 }, func(b *testing.B, c contender, submitters int) {
		full := fill(b, c)
		rejected := together(submitters, b.N, b.ResetTimer, func(n int) int { return flood(full.subject, n) })
		b.StopTimer()
		full.release(b)
		b.ReportMetric(float64(b.N-rejected)/float64(b.N), "accepted/op")
	})
}

// compare is a benchmark of jobs that run.
func compare(b *testing.B, f func(), trying bool, submit func(testing.TB, subject, int) int) {
	each(b, func(contender) bool { return true }, func(b *testing.B, c contender, submitters int) {
		s := open(b, c, f, trying)
		rejected := together(submitters, b.N, b.ResetTimer, func(n int) int { return submit(b, s, n) })
		drain(b, s)
		b.StopTimer()
		end(b, s)
		if trying {
			b.ReportMetric(float64(rejected)/float64(b.N), "rejected/op")
		}
		if s, ok := s.(*ours); ok {
			s.report(b)
		}
		if n := s.lost(); n > 0 {
			b.Errorf("%d of %d accepted jobs did not run: the time is not that of the jobs", n, b.N)
		}
	})
}

// each runs a benchmark for every number of submitters and every contender that
// takes part. Their names are keys and values for benchstat.
func each(b *testing.B, takesPart func(contender) bool, bench func(*testing.B, contender, int)) {
	for _, submitters := range []int{2, 100, 10_000} {
		b.Run("submitters="+strconv.Itoa(submitters), func(b *testing.B) {
			for _, c := range contenders {
				if takesPart(c) {
					b.Run("pool="+c.name, func(b *testing.B) {
						b.ReportAllocs()
						bench(b, c, submitters)
					})
				}
			}
		})
	}
}

// together has n jobs submitted by so many goroutines, an equal share by each, and
// returns the sum of what part returns. It starts the goroutines, calls begin, and
// then lets all of them go. Shares are fixed because otherwise the few that are
// scheduled first would submit everything.
func together(submitters, n int, begin func(), part func(n int) int) int {
	var ready, ended sync.WaitGroup
	var sum atomic.Int64
	gate := make(chan struct{})
	ready.Add(submitters)
	for i := range submitters {
		share := (n + i) / submitters
		ended.Go(func() {
			ready.Done()
			<-gate
			sum.Add(int64(part(share)))
		})
	}
	ready.Wait()
	begin()
	close(gate)
	ended.Wait()
	return int(sum.Load())
}

// submitAll submits n jobs.
func submitAll(tb testing.TB, s subject, n int) int {
	for range n {
		if err := s.submit(); err != nil {
			tb.Errorf("a job was not accepted: %v", err)
			break
		}
	}
	return 0
}

// tryAll has n jobs accepted and returns how often one was not.
func tryAll(_ testing.TB, s subject, n int) (rejected int) {
	for range n {
		for !s.try() {
			rejected++
			runtime.Gosched()
		}
	}
	return rejected
}

// flood tries n times and returns how often in vain.
func flood(s subject, n int) (rejected int) {
	for range n {
		if !s.try() {
			rejected++
		}
	}
	return rejected
}

// open opens a contender with f as its job.
func open(tb testing.TB, c contender, f func(), trying bool) subject {
	tb.Helper()
	s, err := c.open(jobOf(f), trying)
	if err != nil {
		tb.Fatalf("opening %s: %v", c.name, err)
	}
	return s
}

func drain(tb testing.TB, s subject) {
	tb.Helper()
	if err := s.drain(); err != nil {
		tb.Errorf("draining: %v", err)
	}
}

func end(tb testing.TB, s subject) {
	tb.Helper()
	if err := s.end(); err != nil {
		tb.Errorf("ending: %v", err)
	}
}

// fullPool is a pool whose workers are blocked and that takes no more jobs.
type fullPool struct {
	subject
	gate     chan struct{}
	accepted int
	began    atomic.Int64 // jobs
}

// fill fills a pool.
func fill(tb testing.TB, c contender) *fullPool {
	tb.Helper()
	p := &fullPool{gate: make(chan struct{})}
	p.subject = open(tb, c, func() {
		p.began.Add(1)
		<-p.gate
	}, true)
	for deadline := time.Now().Add(patience); ; runtime.Gosched() {
		blocked := p.began.Load() == workers // asked before the pool says that it is full
		switch {
		case p.try():
			p.accepted++
		case blocked:
			return p
		case time.Now().After(deadline):
			began := p.began.Load()
			p.release(tb)
			tb.Fatalf("%s is full with %d jobs, and %d workers run one; expected %d", c.name, p.accepted, began, workers)
		}
	}
}

// release lets the workers go on, and ends the pool.
func (p *fullPool) release(tb testing.TB) {
	tb.Helper()
	close(p.gate)
	drain(tb, p.subject)
	end(tb, p.subject)
}

// microsecond computes for about 1 µs: 500 steps, each of which needs the last.
func microsecond() {
	x := uint64(88172645463325252)
	for range 500 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	if x == 0 {
		panic("xorshift does not become 0")
	}
}

// TestContenders has every contender show that it runs each accepted job before it
// is drained, and that it bounds workers and queue as the comparison needs it.
func TestContenders(t *testing.T) {
	const submitters, n = 100, 10_050
	for _, c := range contenders {
		t.Run(c.name, func(t *testing.T) {
			for name, submit := range map[string]func(testing.TB, subject, int) int{"submit": submitAll, "try": tryAll} {
				var ran atomic.Int64
				s := open(t, c, func() {
					runtime.Gosched() // what does not wait for jobs has time to show it
					ran.Add(1)
				}, name == "try")
				together(submitters, n, func() {}, func(n int) int { return submit(t, s, n) })
				drain(t, s)
				if ran := int(ran.Load()); ran+s.lost() != n {
					t.Errorf("%s: %d of %d jobs ran, and %d did not by the pool's account", name, ran, n, s.lost())
				}
				end(t, s)
			}
			if c.room > 0 {
				testFull(t, c)
			}
		})
	}
}

func testFull(t *testing.T, c contender) {
	p := fill(t, c)
	const n = 1000
	p.accepted += n - flood(p.subject, n)
	if lost := p.lost(); p.accepted < c.room || p.accepted > c.room+c.slack+lost {
		t.Errorf("full with %d jobs, of which %d were shed; expected %d to %d without those", p.accepted, lost, c.room, c.room+c.slack)
	}
	if began := p.began.Load(); began != workers {
		t.Errorf("%d workers run a job; expected %d", began, workers)
	}
	p.release(t)
	if ran := int(p.began.Load()); ran+p.lost() != p.accepted {
		t.Errorf("%d of %d jobs ran, and %d did not by the pool's account", ran, p.accepted, p.lost())
	}
}
