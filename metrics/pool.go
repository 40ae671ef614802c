package metrics

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/myriad-go/myriad/pool"
)

// PoolSource is where the figures of a pool come from: a *pool.Pool.
type PoolSource interface {
	// Stats is called once a scrape, from any goroutine.
	Stats() pool.Stats
}

// NewPoolCollector gives the Stats of a pool to Prometheus. The labels, if any, are
// put on each of its metrics, so that several pools of one process can be told
// apart. Registering it fails if source is nil or a label's name is not one, or is
// taken: state, outcome, cause and le are. It is safe for concurrent use, and asks
// for Stats once a scrape.
func NewPoolCollector(source PoolSource, labels prometheus.Labels) prometheus.Collector {
	c := &poolCollector{source: source}
	if _, ok := labels["le"]; ok {
		c.wrong = errors.New("metrics: the label le is the histograms' own; expected another name")
	}
	if source == nil {
		c.wrong = errors.New("metrics: the source is nil; expected a *pool.Pool")
	}
	for _, m := range poolMetrics {
		var label []string
		if m.label != "" {
			label = []string{m.label}
		}
		c.metrics = append(c.metrics, prometheus.NewDesc(poolNamespace+m.name, m.help, label, labels))
	}
	for _, h := range poolHistograms {
		c.histograms = append(c.histograms, prometheus.NewDesc(poolNamespace+h.name, h.help, nil, labels))
	}
	return c
}

// poolNamespace begins the name of each metric of a pool.
const poolNamespace = namespace + "pool_"

// poolCollector is a PoolSource with the descriptions of its metrics, in the order
// of the tables.
type poolCollector struct {
	source              PoolSource
	wrong               error // why it can't be registered
	metrics, histograms []*prometheus.Desc
}

// Describe is for the registry.
func (c *poolCollector) Describe(to chan<- *prometheus.Desc) {
	if c.wrong != nil {
		to <- prometheus.NewInvalidDesc(c.wrong)
		return
	}
	for _, list := range [][]*prometheus.Desc{c.metrics, c.histograms} {
		for _, d := range list {
			to <- d
		}
	}
}

// Collect is for the registry.
func (c *poolCollector) Collect(to chan<- prometheus.Metric) {
	stats := c.source.Stats()
	for i, m := range poolMetrics {
		for _, v := range m.values {
			var labels []string
			if m.label != "" {
				labels = []string{v.label}
			}
			to <- prometheus.MustNewConstMetric(c.metrics[i], m.kind, v.value(&stats), labels...)
		}
	}
	for i, h := range poolHistograms {
		to <- constPoolHistogram(c.histograms[i], h.value(&stats))
	}
}

// constPoolHistogram is constHistogram for a pool's.
func constPoolHistogram(d *prometheus.Desc, h *pool.Histogram) prometheus.Metric {
	upTo := make(map[float64]uint64, len(h.Buckets))
	var sum uint64
	for i, n := range h.Buckets[:len(h.Buckets)-1] {
		sum += n
		upTo[pool.Bound(i).Seconds()] = sum
	}
	return prometheus.MustNewConstHistogram(d, h.Count, h.Sum.Seconds(), upTo)
}

// poolMetric is a metric with a value for each value of its label, or with one.
type poolMetric struct {
	name, help, label string
	kind              prometheus.ValueType
	values            []poolValue
}

type poolValue struct {
	label string
	value func(*pool.Stats) float64
}

// one is the value of a metric that has no label.
func one(value func(*pool.Stats) float64) []poolValue { return []poolValue{{"", value}} }

var poolMetrics = []poolMetric{
	{"workers_limit", "How many workers there may be now.", "", prometheus.GaugeValue,
		one(func(s *pool.Stats) float64 { return float64(s.Limit) })},
	{"workers", "Workers that there are now.", "", prometheus.GaugeValue,
		one(func(s *pool.Stats) float64 { return float64(s.Workers) })},
	{"workers_idle", "Workers that wait for a job now.", "", prometheus.GaugeValue,
		one(func(s *pool.Stats) float64 { return float64(s.Idle) })},
	{"overloaded", "1 while jobs have waited too long, so that the newest run first and old ones are shed; otherwise 0.",
		"", prometheus.GaugeValue, one(func(s *pool.Stats) float64 { return float64(flag(s.Overloaded)) })},
	{"jobs", "Jobs that wait for a worker now (queued), or run.", "state", prometheus.GaugeValue, []poolValue{
		{"queued", func(s *pool.Stats) float64 { return float64(s.Queued) }},
		{"running", func(s *pool.Stats) float64 { return float64(s.Running) }},
	}},
	{"jobs_accepted_total", "Jobs that were accepted.", "", prometheus.CounterValue,
		one(func(s *pool.Stats) float64 { return float64(s.Accepted) })},
	{"jobs_ended_total", "Accepted jobs by what became of them: they have run (finished), their context ended while they waited " +
		"(expired), they were shed because of overload, or dropped because the pool was closed.",
		"outcome", prometheus.CounterValue, []poolValue{
			{"finished", func(s *pool.Stats) float64 { return float64(s.Finished) }},
			{"expired", func(s *pool.Stats) float64 { return float64(s.Expired) }},
			{"shed", func(s *pool.Stats) float64 { return float64(s.Shed) }},
			{"dropped", func(s *pool.Stats) float64 { return float64(s.Dropped) }},
		}},
	{"jobs_panicked_total", "Jobs that have run and panicked.", "", prometheus.CounterValue,
		one(func(s *pool.Stats) float64 { return float64(s.Panicked) })},
	{"jobs_refused_total", "Jobs that were not accepted: the queue was full, their context had ended before (late), or the pool was closed.",
		"cause", prometheus.CounterValue, []poolValue{
			{"full", func(s *pool.Stats) float64 { return float64(s.Full) }},
			{"late", func(s *pool.Stats) float64 { return float64(s.Late) }},
			{"closed", func(s *pool.Stats) float64 { return float64(s.Closed) }},
		}},
}

var poolHistograms = []struct {
	name, help string
	value      func(*pool.Stats) *pool.Histogram
}{
	{"wait_seconds", "How long jobs have waited until they ran; of quick ones that are run together, the first.",
		func(s *pool.Stats) *pool.Histogram { return &s.Wait }},
	{"service_seconds", "How long jobs have run; of quick ones that are run together, the mean.",
		func(s *pool.Stats) *pool.Histogram { return &s.Service }},
}
