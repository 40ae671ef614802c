package metrics

import (
	"errors"
	"runtime/metrics"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// namespace begins the name of each metric.
const namespace = "myriad_"

// metric is a metric of what S says: emit is called for each of its values, with those of
// its labels.
type metric[S any] struct {
	name, help string
	kind       prometheus.ValueType
	labels     []string
	each       func(s *S, emit func(value float64, labels ...string))
}

// distribution is a histogram or a summary of what S says.
type distribution[S any] struct {
	name, help string
	of         func(s *S, d *prometheus.Desc) prometheus.Metric
}

type number interface {
	~int | ~int64 | ~uint64 | ~float64
}

// gauge is a metric with one value, of what is now.
func gauge[S any, N number](name, help string, of func(*S) N) metric[S] {
	return metric[S]{name, help, prometheus.GaugeValue, nil, func(s *S, emit func(float64, ...string)) { emit(float64(of(s))) }}
}

// counter is a metric with one value, which only grows.
func counter[S any, N number](name, help string, of func(*S) N) metric[S] {
	m := gauge(name, help, of)
	m.kind = prometheus.CounterValue
	return m
}

// labelled is a metric with a value for each value of a label.
func labelled[S any, N number](name, help string, kind prometheus.ValueType, label string, of func(*S) map[string]N) metric[S] {
	return metric[S]{name, help, kind, []string{label}, func(s *S, emit func(float64, ...string)) {
		for l, n := range of(s) {
			emit(float64(n), l)
		}
	}}
}

// flag is 1 for true.
func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// collector is a source with the descriptions of its metrics.
type collector[S any] struct {
	source        func() S // called once a scrape
	wrong         error    // why it can't be registered
	metrics       []metric[S]
	distributions []distribution[S]
	descs         []*prometheus.Desc // of the metrics, and then of the distributions
}

// newCollector makes a collector of metrics whose names begin with a prefix. The label
// that distributions have of their own is reserved.
func newCollector[S any](prefix string, labels prometheus.Labels, reserved string, source func() S,
	metrics []metric[S], distributions []distribution[S],
) *collector[S] {
	c := &collector[S]{source: source, metrics: metrics, distributions: distributions}
	if _, ok := labels[reserved]; ok {
		c.wrong = errors.New("metrics: the label " + reserved + " is that of histograms and summaries; expected another name")
	}
	for _, m := range metrics {
		c.descs = append(c.descs, prometheus.NewDesc(prefix+m.name, m.help, m.labels, labels))
	}
	for _, d := range distributions {
		c.descs = append(c.descs, prometheus.NewDesc(prefix+d.name, d.help, nil, labels))
	}
	return c
}

// Describe is for the registry.
func (c *collector[S]) Describe(to chan<- *prometheus.Desc) {
	if c.wrong != nil {
		to <- prometheus.NewInvalidDesc(c.wrong)
		return
	}
	for _, d := range c.descs {
		to <- d
	}
}

// Collect is for the registry.
func (c *collector[S]) Collect(to chan<- prometheus.Metric) {
	s := c.source()
	for i, m := range c.metrics {
		m.each(&s, func(value float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(c.descs[i], m.kind, value, labels...)
		})
	}
	for i, d := range c.distributions {
		to <- d.of(&s, c.descs[len(c.metrics)+i])
	}
}

// histogram turns counts for each bucket into Prometheus's, which are of all up to a bound,
// in seconds. The last bucket has no bound: it is what the count of all has more.
func histogram[N int64 | uint64](d *prometheus.Desc, count N, sum time.Duration, buckets []N, bound func(i int) time.Duration) prometheus.Metric {
	upTo := make(map[float64]uint64, len(buckets))
	var below N
	for i, n := range buckets[:len(buckets)-1] {
		below += n
		upTo[bound(i).Seconds()] = uint64(below)
	}
	return prometheus.MustNewConstHistogram(d, uint64(count), sum.Seconds(), upTo)
}

// goMemory is the heap in use and the stacks of this process, in bytes. Reading it does
// not stop the world, as runtime.ReadMemStats does.
func goMemory() (sum uint64) {
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/stacks:bytes"},
	}
	metrics.Read(samples)
	for _, s := range samples {
		if s.Value.Kind() == metrics.KindUint64 {
			sum += s.Value.Uint64()
		}
	}
	return sum
}
