// Package collector describes Prometheus metrics as a table of functions that read one snapshot.
package collector

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const Namespace = "myriad_"

// Metric is a Prometheus metric that is computed from a snapshot of type S. The function Each calls emit once for each
// combination of label values, with the metric's value and the label values in the order of Labels.
type Metric[S any] struct {
	Name, Help string
	Kind       prometheus.ValueType
	Labels     []string
	Each       func(s *S, emit func(value float64, labels ...string))
}

// Distribution is a histogram or a summary that is computed from a snapshot of type S.
type Distribution[S any] struct {
	Name, Help string
	Of         func(s *S, d *prometheus.Desc) prometheus.Metric
}

type number interface {
	~int | ~int64 | ~uint64 | ~float64
}

// Gauge returns a gauge with one value. The given function computes the value from a snapshot.
func Gauge[S any, N number](name, help string, of func(*S) N) Metric[S] {
	return Metric[S]{name, help, prometheus.GaugeValue, nil, func(s *S, emit func(float64, ...string)) { emit(float64(of(s))) }}
}

// Counter returns a counter with one value. The given function computes the value from a snapshot.
func Counter[S any, N number](name, help string, of func(*S) N) Metric[S] {
	m := Gauge(name, help, of)
	m.Kind = prometheus.CounterValue
	return m
}

// NewMetricByLabel returns a metric with one label. valuesByLabel computes the metric for each value of the label.
func NewMetricByLabel[S any, N number](name, help string, kind prometheus.ValueType, label string, valuesByLabel func(*S) map[string]N) Metric[S] {
	return Metric[S]{name, help, kind, []string{label}, func(s *S, emit func(float64, ...string)) {
		for l, n := range valuesByLabel(s) {
			emit(float64(n), l)
		}
	}}
}

func BoolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Collector implements prometheus.Collector. It is safe for concurrent use if the function that takes its snapshots is
// safe for concurrent use.
type Collector[S any] struct {
	source        func() S // called once per scrape
	err           error    // reason why registration fails
	metrics       []Metric[S]
	distributions []Distribution[S]
	descs         []*prometheus.Desc // descriptions of the metrics, then of the distributions
}

// NewCollector returns a collector of metrics whose names begin with prefix. Each metric also has the given labels. The
// collector calls the function snapshot once per scrape. reserved is the label that Prometheus itself adds to
// histograms or summaries. If labels contains the reserved label, the collector cannot be registered.
func NewCollector[S any](prefix string, labels prometheus.Labels, reserved string, snapshot func() S,
	metrics []Metric[S], distributions []Distribution[S],
) *Collector[S] {
	c := &Collector[S]{source: snapshot, metrics: metrics, distributions: distributions}
	if _, ok := labels[reserved]; ok {
		c.err = errors.New("metrics: label " + reserved + " is reserved for histograms and summaries; expected another name")
	}
	for _, m := range metrics {
		c.descs = append(c.descs, prometheus.NewDesc(prefix+m.Name, m.Help, m.Labels, labels))
	}
	for _, d := range distributions {
		c.descs = append(c.descs, prometheus.NewDesc(prefix+d.Name, d.Help, nil, labels))
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *Collector[S]) Describe(to chan<- *prometheus.Desc) {
	if c.err != nil {
		to <- prometheus.NewInvalidDesc(c.err)
		return
	}
	for _, d := range c.descs {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector[S]) Collect(to chan<- prometheus.Metric) {
	s := c.source()
	for i, m := range c.metrics {
		m.Each(&s, func(value float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(c.descs[i], m.Kind, value, labels...)
		})
	}
	for i, d := range c.distributions {
		to <- d.Of(&s, c.descs[len(c.metrics)+i])
	}
}

// NewHistogramMetric returns a histogram with the given number and sum of values. countPerBucket contains the number of
// values in each bucket. The function upperBound returns the upper bound of bucket i. The last bucket has no upper
// bound, so upperBound is not called for this bucket.
func NewHistogramMetric[N int64 | uint64](d *prometheus.Desc, count N, sum time.Duration, countPerBucket []N, upperBound func(i int) time.Duration) prometheus.Metric {
	upTo := make(map[float64]uint64, len(countPerBucket))
	var below N
	for i, n := range countPerBucket[:len(countPerBucket)-1] {
		below += n
		upTo[upperBound(i).Seconds()] = uint64(below)
	}
	return prometheus.MustNewConstHistogram(d, uint64(count), sum.Seconds(), upTo)
}

// NewFailingCollector returns a collector that cannot be registered. Registration fails with err.
func NewFailingCollector[S any](err error) *Collector[S] { return &Collector[S]{err: err} }
