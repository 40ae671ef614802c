package pool

import (
	"runtime"
	"runtime/metrics"
)

// newCrowd makes a function that says how busy the processors are, as Go's scheduler
// sees it: how many goroutines are ready to run and don't, for each processor. Those
// that became ready when the caller did, by the same timer, are let run before: what
// stays are those that have to wait. It is for one caller at a time.
func newCrowd() func() float64 {
	samples := []metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"}}
	return func() float64 {
		runtime.Gosched()
		metrics.Read(samples)
		v := samples[0].Value
		if v.Kind() != metrics.KindUint64 {
			return 0
		}
		return float64(v.Uint64()) / float64(runtime.GOMAXPROCS(0))
	}
}

// blocking says whether jobs block, for a good part of their time: whether the workers
// that neither run nor are ready to run are more than a quarter of the busy ones, in the
// mean of recent readings.
type blocking struct{ share float64 }

// blocks is from which share of the busy workers on jobs block.
const blocks = 0.25

// look takes a reading into account.
func (b *blocking) look(r reading, procs int64) bool {
	if r.busy > 0 {
		share := max(0, 1-(1+r.crowd)*float64(procs)/float64(r.busy))
		b.share += (share - b.share) / 8
	}
	return b.share > blocks
}
