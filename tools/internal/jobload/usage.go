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
	// gcSeconds and busySeconds are the processor time of the garbage collector and of all goroutines, until the
	// collector's last cycle. Go's runtime estimates them, so they are comparable only with each other.
	gcSeconds, busySeconds float64
	// schedulerLatencies counts the times for which goroutines were runnable before they ran.
	schedulerLatencies *metrics.Float64Histogram
}

// ownProcessUsage returns the resource usage of this process. Unknown figures are 0.
func ownProcessUsage() (u processUsage) {
	s, _ := sample.TakeSample(sample.CPU|sample.Memory|sample.Switches, os.Getpid())
	u.Process = s.SumOfProcesses()
	read := []metrics.Sample{
		{Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/cpu/classes/total:cpu-seconds"}, {Name: "/cpu/classes/idle:cpu-seconds"},
		{Name: "/sched/latencies:seconds"},
	}
	metrics.Read(read)
	seconds := func(i int) float64 {
		if read[i].Value.Kind() != metrics.KindFloat64 {
			return 0
		}
		return read[i].Value.Float64()
	}
	u.gcSeconds, u.busySeconds = seconds(0), seconds(1)-seconds(2)
	if v := read[3].Value; v.Kind() == metrics.KindFloat64Histogram {
		u.schedulerLatencies = v.Float64Histogram()
	}
	return u
}

// schedulerLatencyQuantile returns an upper bound of the q-quantile of Go's scheduler latencies between two times.
// before is the usage at the earlier time, and u is the usage at the later time. If the latencies are unknown, the
// result is 0.
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
