package metrics

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tools/internal/collector"
)

// PoolSource provides the statistics of a pool. A *pool.Pool is a PoolSource.
type PoolSource interface {
	// Stats is called once per scrape, on any goroutine.
	Stats() pool.Stats
}

// NewPoolCollector returns a collector of a pool's statistics. The optional labels are added to each metric, to
// distinguish several pools in one process. The collector is safe for concurrent use and calls Stats once per scrape.
//
// Registering the collector fails if source is nil, or if a label name is invalid or reserved. The reserved names are
// state, outcome, cause and le.
func NewPoolCollector(source PoolSource, labels prometheus.Labels) prometheus.Collector {
	if source == nil {
		return collector.NewFailingCollector[pool.Stats](errors.New("metrics: the source is nil; expected a *pool.Pool"))
	}
	return collector.NewCollector(collector.Namespace+"pool_", labels, "le", source.Stats, poolMetrics, poolHistograms)
}

var poolMetrics = []collector.Metric[pool.Stats]{
	collector.Gauge("workers_limit", "Current maximum number of workers.", func(s *pool.Stats) int { return s.Limit }),
	collector.Gauge("workers", "Workers.", func(s *pool.Stats) int { return s.Workers }),
	collector.Gauge("workers_idle", "Idle workers.", func(s *pool.Stats) int { return s.Idle }),
	collector.Gauge("overloaded", "1 while the pool sheds jobs because the queue delay is too high, otherwise 0.",
		func(s *pool.Stats) int { return collector.BoolToInt(s.Overloaded) }),
	collector.NewMetricByLabel("jobs", "Jobs by state: queued or running.", prometheus.GaugeValue, "state",
		func(s *pool.Stats) map[string]int { return map[string]int{"queued": s.Queued, "running": s.Running} }),
	collector.Counter("jobs_accepted_total", "Accepted jobs.", func(s *pool.Stats) uint64 { return s.Accepted }),
	collector.NewMetricByLabel("jobs_ended_total", "Accepted jobs by outcome: finished, context ended while queued (expired), shed because of overload (shed), "+
		"or pool closed (dropped).",
		prometheus.CounterValue, "outcome", func(s *pool.Stats) map[string]uint64 {
			return map[string]uint64{"finished": s.Finished, "expired": s.Expired, "shed": s.Shed, "dropped": s.Dropped}
		}),
	collector.Counter("jobs_panicked_total", "Jobs that panicked.", func(s *pool.Stats) uint64 { return s.Panicked }),
	collector.NewMetricByLabel("jobs_refused_total",
		"Rejected jobs by reason: the queue was full, their context had ended (late), or the pool was closed.",
		prometheus.CounterValue, "cause", func(s *pool.Stats) map[string]uint64 {
			return map[string]uint64{"full": s.Full, "late": s.Late, "closed": s.Closed}
		}),
}

var poolHistograms = []collector.Distribution[pool.Stats]{
	{Name: "wait_seconds", Help: "Time from submission to start.",
		Of: func(s *pool.Stats, d *prometheus.Desc) prometheus.Metric { return newPoolHistogramMetric(d, &s.Wait) }},
	{Name: "service_seconds", Help: "Duration of jobs.",
		Of: func(s *pool.Stats, d *prometheus.Desc) prometheus.Metric {
			return newPoolHistogramMetric(d, &s.Service)
		}},
}

func newPoolHistogramMetric(d *prometheus.Desc, h *pool.Histogram) prometheus.Metric {
	return collector.NewHistogramMetric(d, h.Count, h.Sum, h.Buckets[:], pool.Bound)
}
