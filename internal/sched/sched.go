// Package sched reads the state of Go's scheduler.
package sched

import "runtime/metrics"

// Goroutines counts goroutines by their state. It is not safe for concurrent use.
type Goroutines struct {
	samples [2]metrics.Sample
}

func NewGoroutines() *Goroutines {
	return &Goroutines{[2]metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"}, {Name: "/sched/goroutines/running:goroutines"}}}
}

// Count returns the number of goroutines that wait for a processor and the number of goroutines that run. It takes
// about 100 ns.
func (g *Goroutines) Count() (runnable, running int) {
	metrics.Read(g.samples[:])
	return int(g.samples[0].Value.Uint64()), int(g.samples[1].Value.Uint64())
}

// Runnable returns the number of goroutines that wait for a processor.
func (g *Goroutines) Runnable() int {
	runnable, _ := g.Count()
	return runnable
}
