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
