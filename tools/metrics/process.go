package metrics

import (
	"fmt"
	"regexp"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// runtimeMetrics is a regular expression for those metrics of the Go runtime that RegisterProcess exports, but that
// Prometheus's collector does not export by default.
const runtimeMetrics = `^/(` +
	`cpu/classes/(gc/total|scavenge/total|idle|user|total)` +
	`|gc/(heap/(live|goal)|limiter/last-enabled)` +
	`|sched/(latencies|goroutines/(runnable|running|not-in-go)|pauses/total/(gc|other))` +
	`|sync/mutex/wait/total` +
	`):`

// RegisterProcess registers Prometheus's collectors of the Go runtime and of the process. Metrics of the runtime, go_*,
// cover garbage collection, goroutines, memory and scheduling. Metrics of the process, process_*, cover CPU, memory and
// descriptors, if the system reports them.
//
// Call RegisterProcess only once per registry, even with several servers, because the metrics cover the whole process.
func RegisterProcess(r prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile(runtimeMetrics)})),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
	}
	return nil
}
