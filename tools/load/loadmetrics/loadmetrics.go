// Package loadmetrics exports the figures of a load generator's run to Prometheus.
package loadmetrics

import (
	"maps"
	"math"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/myriad-go/myriad/tools/internal/collector"
	"github.com/myriad-go/myriad/tools/load"
)

const maxCauses = 64

// New returns a Prometheus collector for a run of the load generator. Pass the run's events to its method Observe. The
// optional labels are added to each metric, to distinguish several runs. Registration fails if a label's name is
// invalid or reserved. The reserved names are target, mode, model, stage, cause, process and quantile.
//
// Counters grow after each interval of the run (load.Config.ProgressEvery). The first event of a run resets them.
// Gauges have the values at the end of the last interval. myriad_load_latency_seconds and myriad_load_connect_seconds
// are summaries. Their count and sum cover the run. Their quantiles cover the last interval; they are NaN if it has no
// values. Quantile 0 is the minimum and quantile 1 the maximum. Quantiles cannot be aggregated: for a whole run or
// several generators, use the run's result.
//
//	messages answered per second:       rate(myriad_load_messages_answered_total[1m])
//	99th percentile, last interval:     myriad_load_latency_seconds{quantile="0.99"}
//	CPUs that the generator keeps busy: rate(myriad_load_cpu_seconds_total{process="generator"}[1m])
func New(labels prometheus.Labels) *Collector {
	c := new(Collector)
	c.Collector = collector.NewCollector(collector.Namespace+"load_", labels, "quantile", c.cloneState, listMetrics(), loadSummaries)
	return c
}

// Collector exports the figures of a run. Its methods are safe for concurrent use.
type Collector struct {
	*collector.Collector[loadState]

	mu    sync.Mutex
	state loadState
}

func (c *Collector) cloneState() loadState {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.state
	s.causes = maps.Clone(s.causes)
	return s
}

type loadState struct {
	plan             load.Plan
	last, run        load.Interval // the last interval, and the sum of all intervals (without their causes)
	causes           map[string]int64
	latency, connect durations
}

// durations contains the number of measured times, and their sum in seconds.
type durations struct {
	count uint64
	sum   float64
}

func (d *durations) addLatency(l load.Latency) {
	d.count += uint64(l.Count)
	d.sum += float64(l.Count) * l.Mean.Seconds()
}

// Observe records an event of a run and returns quickly. Use it as load.Config.Observe.
func (c *Collector) Observe(e load.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.Phase == load.Began {
		c.state = loadState{}
	}
	if e.Plan != nil {
		c.state.plan = *e.Plan
	}
	if e.Interval != nil {
		c.state.addInterval(*e.Interval)
	}
}

func (s *loadState) addInterval(i load.Interval) {
	s.causes = load.AddCauses(s.causes, i.Errors, maxCauses)
	i.Errors, i.Histograms = nil, nil
	s.last = i
	s.run.Join(i)
	s.latency.addLatency(i.Latency)
	s.connect.addLatency(i.Connect)
}

func quantilesInSeconds(l load.Latency) map[float64]float64 {
	to := make(map[float64]float64)
	for _, p := range load.LatencyPoints {
		switch {
		case p.Quantile < 0:
		case l.Count == 0:
			to[p.Quantile] = math.NaN()
		default:
			to[p.Quantile] = p.Of(&l).Seconds()
		}
	}
	return to
}

func listMetrics() []collector.Metric[loadState] {
	all := []collector.Metric[loadState]{
		collector.Gauge("connections_wanted", "Connections that the run opens.", func(s *loadState) int { return s.plan.Connections }),
		collector.Gauge("run_seconds", "Duration of the run at the end of the last interval.", func(s *loadState) float64 { return s.last.To.Seconds() }),
		collector.Gauge("interval_seconds", "Duration of the last interval.", func(s *loadState) float64 { return (s.last.To - s.last.From).Seconds() }),

		collector.NewMetricByLabel("errors_total", "Failures by cause: of connection attempts, connections and answers.",
			prometheus.CounterValue, "cause", func(s *loadState) map[string]int64 { return s.causes }),
		{Name: "stage", Help: "Always 1; the label stage is the current stage of the run.", Kind: prometheus.GaugeValue, Labels: []string{"stage"},
			Each: func(s *loadState, emit func(float64, ...string)) {
				if s.last.Stage != "" {
					emit(1, s.last.Stage)
				}
			}},
		{Name: "info", Help: "Always 1; target is the first target address, mode the way to send messages, model the generator's I/O model.", Kind: prometheus.GaugeValue, Labels: []string{"target", "mode", "model"},
			Each: func(s *loadState, emit func(float64, ...string)) {
				if len(s.plan.Targets) > 0 {
					emit(1, strings.ToValidUTF8(s.plan.Targets[0], "?"), s.plan.Mode, s.plan.Model)
				}
			}},
	}
	for _, c := range load.Counters {
		m := collector.Counter(c.Metric, c.Help, func(s *loadState) int64 { n, _ := c.Of(&s.run); return n })
		if c.Gauge {
			m.Kind = prometheus.GaugeValue
		}
		if c.Metric != "" {
			all = append(all, m)
		}
	}
	for _, f := range load.UsageFigures {
		kind := prometheus.GaugeValue
		if strings.HasSuffix(f.Metric, "_total") {
			kind = prometheus.CounterValue
		}
		all = append(all, collector.Metric[loadState]{Name: f.Metric, Help: f.Help, Kind: kind, Labels: []string{"process"}, Each: func(s *loadState, emit func(float64, ...string)) {
			emit(f.Of(&s.run.Generator), "generator")
			if s.last.Server != nil {
				emit(f.Of(s.run.Server), "server")
			}
		}})
	}
	return all
}

var loadSummaries = []collector.Distribution[loadState]{
	{Name: "latency_seconds", Help: "Time to the last byte of an answer; the quantiles are of the last interval.",
		Of: func(s *loadState, d *prometheus.Desc) prometheus.Metric {
			return newSummary(d, s.latency, s.last.Latency)
		}},
	{Name: "connect_seconds", Help: "Time to establish a connection; the quantiles are of the last interval.",
		Of: func(s *loadState, d *prometheus.Desc) prometheus.Metric {
			return newSummary(d, s.connect, s.last.Connect)
		}},
}

func newSummary(d *prometheus.Desc, all durations, last load.Latency) prometheus.Metric {
	return prometheus.MustNewConstSummary(d, all.count, all.sum, quantilesInSeconds(last))
}
