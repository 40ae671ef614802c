package pool

import (
	"runtime"
	"runtime/metrics"
)

// load is how busy the processors are, as Go's scheduler sees it.
type load struct{ samples []metrics.Sample }

func newLoad() load {
	return load{[]metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"}}}
}

// crowd is how many goroutines are ready to run and don't, for each processor. Those
// that became ready when the caller did, by the same timer, are let run before: what
// stays are those that have to wait.
func (l *load) crowd() float64 {
	runtime.Gosched()
	metrics.Read(l.samples)
	v := l.samples[0].Value
	if v.Kind() != metrics.KindUint64 {
		return 0
	}
	return float64(v.Uint64()) / float64(runtime.GOMAXPROCS(0))
}
