package offer

import (
	"context"
	"testing"
	"time"
)

// refuser rejects every job.
type refuser struct{}

func (refuser) Try(*Job) Answer { return Full }
func (refuser) Workers() int    { return 0 }
func (refuser) Close()          {}

// BenchmarkOffer is what the generator takes for a job that is rejected, without
// what the pool takes.
func BenchmarkOffer(b *testing.B) {
	g := newGenerator(newRun(Plan{Work: Published, Wait: -1, CPU: -1, Bytes: -1, Deadline: time.Second, Drain: time.Hour, Rate: 1e9, Duration: time.Duration(b.N)}), refuser{})
	g.run.start = time.Now().Add(-time.Minute) // all are due
	b.ReportAllocs()
	b.ResetTimer()
	g.newLane().open(context.Background(), 0)
	if n := g.next.Load(); n < uint64(b.N) {
		b.Fatalf("%d offered of %d", n, b.N)
	}
}

// BenchmarkAccepted is what generator and job take together for a job that does
// nothing and is accepted, on one goroutine.
func BenchmarkAccepted(b *testing.B) {
	g := newGenerator(newRun(Plan{Work: Published, Wait: 0, CPU: -1, Bytes: 0, Deadline: time.Second, Drain: time.Hour, Rate: 1e9, Duration: time.Duration(b.N)}), direct{})
	g.run.start = time.Now().Add(-time.Minute)
	b.ReportAllocs()
	b.ResetTimer()
	g.newLane().open(context.Background(), 0)
	if n := g.run.window.ended(); n < uint64(b.N) {
		b.Fatalf("%d ended of %d", n, b.N)
	}
}

// direct runs each job at once.
type direct struct{}

func (direct) Try(j *Job) Answer {
	j.Do()
	return Accepted
}
func (direct) Workers() int { return 0 }
func (direct) Close()       {}
