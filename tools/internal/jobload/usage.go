package jobload

import (
	"os"
	"runtime/metrics"
	"time"

	"github.com/myriad-go/myriad/tools/internal/sample"
)

// processUsage is the resource usage of this process since its start.
type processUsage struct {
	sample.Process
	gcSeconds float64 // processor time of the garbage collector until its last cycle
	// schedulerLatencies counts the times for which goroutines were runnable before they ran.
	schedulerLatencies *metrics.Float64Histogram
}

// ownProcessUsage returns the resource usage of this process. Unknown figures are 0.
func ownProcessUsage() (u processUsage) {
	s, _ := sample.TakeSample(sample.CPU|sample.Memory|sample.Switches, os.Getpid())
	u.Process = s.SumOfProcesses()
	read := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/sched/latencies:seconds"}}
	metrics.Read(read)
	if v := read[0].Value; v.Kind() == metrics.KindFloat64 {
		u.gcSeconds = v.Float64()
	}
	if v := read[1].Value; v.Kind() == metrics.KindFloat64Histogram {
		u.schedulerLatencies = v.Float64Histogram()
	}
	return u
}

// schedulerLatencyQuantile returns an upper bound of the q-quantile of scheduler latencies. The first parameter is the
// usage at the period's start.
func (u processUsage) schedulerLatencyQuantile(before processUsage, q float64) time.Duration {
	h := u.schedulerLatencies
	if h == nil || before.schedulerLatencies == nil {
		return 0
	}
	total := uint64(0)
	for i := range h.Counts {
		total += h.Counts[i] - before.schedulerLatencies.Counts[i]
	}
	rest := uint64(float64(total) * (1 - q))
	for i := len(h.Counts) - 1; i > 0 && total > 0; i-- {
		n := h.Counts[i] - before.schedulerLatencies.Counts[i]
		if n > rest { // the last bucket has no finite bound
			return time.Duration(h.Buckets[min(i+1, len(h.Buckets)-2)] * float64(time.Second))
		}
		rest -= n
	}
	return 0
}
