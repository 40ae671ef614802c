package metrics

import (
	"fmt"
	"regexp"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// runtimeMetrics selects metrics of the Go runtime that Prometheus's collector does not export by default. These
// metrics cover CPU time, the live heap, waits of goroutines for threads and locks, and pauses of the whole program.
const runtimeMetrics = `^/(` +
	`cpu/classes/(gc/total|scavenge/total|idle|user|total)` +
	`|gc/(heap/(live|goal)|limiter/last-enabled)` +
	`|sched/(latencies|goroutines/(runnable|running|not-in-go)|pauses/total/(gc|other))` +
	`|sync/mutex/wait/total` +
	`):`

// RegisterProcess registers Prometheus's collectors of the Go runtime (go_*: garbage collection, goroutines, memory,
// scheduling) and of the process (process_*: CPU, memory and descriptors, where the system reports them). Both cover
// the whole process, so they must be registered only once per registry, even with several servers.
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
