package metrics

import (
	"fmt"
	"regexp"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// runtimeMetrics are those of the Go runtime that say something of a server,
// beside those that Prometheus's collector always gives: where CPU time goes,
// what the garbage collector found alive, whether goroutines wait for a thread or
// a lock, and how long everything stands still.
const runtimeMetrics = `^/(` +
	`cpu/classes/(gc/total|scavenge/total|idle|user|total)` +
	`|gc/(heap/(live|goal)|limiter/last-enabled)` +
	`|sched/(latencies|goroutines/(runnable|running|not-in-go)|pauses/total/(gc|other))` +
	`|sync/mutex/wait/total` +
	`):`

// RegisterProcess registers what is to be known of this process: Prometheus's
// collectors of the Go runtime (go_*: garbage collection, goroutines, memory,
// scheduling) and of the process (process_*: CPU, memory, descriptors; where the
// system tells). Both are of the whole process: register them once in each
// registry, whatever the number of servers.
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
