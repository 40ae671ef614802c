package metrics

import (
	"errors"
	"maps"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/myriad-go/myriad/load"
)

// maxCauses bounds the causes of errors that are told apart; what has another one
// counts as "other".
const maxCauses = 64

// NewLoadCollector gives a run of the load generator to Prometheus: what Observe
// was told. The labels, if any, are put on each of its metrics, so that several
// runs can be told apart. Registering it fails if a label's name is not one, or is
// taken: target, mode, model, stage, cause, process and quantile are.
//
// Counters grow with each interval of the run (load.Config.ProgressEvery); they
// begin anew with a run's first event. Gauges are of the end of the last interval.
// myriad_load_latency_seconds and myriad_load_connect_seconds are summaries: their
// count and sum are of the run, but the quantiles are those of the last interval,
// quantile 0 its least and 1 its greatest, and NaN where it had none. Quantiles
// can't be added up: for those of the whole run, or of several generators, take
// the run's result.
//
//	messages answered a second:         rate(myriad_load_messages_answered_total[1m])
//	99th percentile, last interval:     myriad_load_latency_seconds{quantile="0.99"}
//	CPUs that the generator keeps busy: rate(myriad_load_cpu_seconds_total{process="generator"}[1m])
func NewLoadCollector(labels prometheus.Labels) *LoadCollector {
	c := &LoadCollector{state: newLoadState()}
	if _, ok := labels["quantile"]; ok {
		c.wrong = errors.New("metrics: the label quantile is the summaries' own; expected another name")
	}
	desc := func(name, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc(loadNamespace+name, help, variable, labels)
	}
	for _, m := range loadMetrics {
		c.metrics = append(c.metrics, desc(m.name, m.help))
	}
	for _, m := range processMetrics {
		c.processes = append(c.processes, desc(m.name, m.help, "process"))
	}
	for _, s := range loadSummaries {
		c.summaries = append(c.summaries, desc(s.name, s.help))
	}
	c.errors = desc("errors_total", "What went wrong, by cause: of attempts to connect, of connections and of answers.", "cause")
	c.stage = desc("stage", "Always 1; the label stage is what the run does.", "stage")
	c.info = desc("info", "Always 1; target is the first of the addresses that are loaded, mode what sends messages, model what the generator runs on.",
		"target", "mode", "model")
	return c
}

// loadNamespace begins the name of each metric of a run.
const loadNamespace = namespace + "load_"

// LoadCollector is what NewLoadCollector makes. Its methods are safe for
// concurrent use.
type LoadCollector struct {
	wrong                         error // why it can't be registered
	metrics, processes, summaries []*prometheus.Desc
	errors, stage, info           *prometheus.Desc

	mu    sync.Mutex
	state loadState
}

// loadState is a run so far.
type loadState struct {
	plan           load.Plan
	last           load.Interval
	counts         map[int]int64 // of the whole run, by the place in load.Counters
	causes         map[string]int64
	own, server    time.Duration // processor time
	latency, setup durations
}

func newLoadState() loadState { return loadState{counts: make(map[int]int64)} }

// durations are the count and the sum, in seconds, of a whole run.
type durations struct {
	count uint64
	sum   float64
}

func (d *durations) add(l load.Latency) {
	d.count += uint64(l.Count)
	d.sum += float64(l.Count) * l.Mean.Seconds()
}

// Observe takes an event of a run. It is for load.Config.Observe, and is quick.
func (c *LoadCollector) Observe(e load.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.Phase == load.Began {
		c.state = newLoadState()
	}
	if e.Plan != nil {
		c.state.plan = *e.Plan
	}
	if e.Interval != nil {
		c.state.add(*e.Interval)
	}
}

// add adds an interval up.
func (s *loadState) add(i load.Interval) {
	s.last = i
	for k, c := range load.Counters {
		if n, ok := c.Of(&i); ok && !c.Gauge {
			s.counts[k] += n
		}
	}
	if s.causes == nil {
		s.causes = make(map[string]int64)
	}
	for cause, n := range i.Errors {
		cause = strings.ToValidUTF8(cause, "?") // as labels have to be
		if _, known := s.causes[cause]; !known && len(s.causes) >= maxCauses {
			cause = "other"
		}
		s.causes[cause] += n
	}
	s.own += i.Generator.CPU
	if i.Server != nil {
		s.server += i.Server.CPU
	}
	s.latency.add(i.Latency)
	s.setup.add(i.Connect)
}

// Describe is for the registry.
func (c *LoadCollector) Describe(to chan<- *prometheus.Desc) {
	if c.wrong != nil {
		to <- prometheus.NewInvalidDesc(c.wrong)
		return
	}
	for _, list := range [][]*prometheus.Desc{c.metrics, c.processes, c.summaries, {c.errors, c.stage, c.info}} {
		for _, d := range list {
			to <- d
		}
	}
}

// Collect is for the registry.
func (c *LoadCollector) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	s := c.state
	s.causes, s.counts = maps.Clone(s.causes), maps.Clone(s.counts)
	c.mu.Unlock()
	for i, m := range loadMetrics {
		to <- prometheus.MustNewConstMetric(c.metrics[i], m.kind, m.value(&s))
	}
	for i, m := range processMetrics {
		to <- prometheus.MustNewConstMetric(c.processes[i], m.kind, m.value(s.last.Generator, s.own), "generator")
		if s.last.Server != nil {
			to <- prometheus.MustNewConstMetric(c.processes[i], m.kind, m.value(*s.last.Server, s.server), "server")
		}
	}
	for i, m := range loadSummaries {
		all, last := m.value(&s)
		to <- prometheus.MustNewConstSummary(c.summaries[i], all.count, all.sum, quantiles(last))
	}
	for cause, n := range s.causes {
		to <- prometheus.MustNewConstMetric(c.errors, prometheus.CounterValue, float64(n), cause)
	}
	if s.last.Stage != "" {
		to <- prometheus.MustNewConstMetric(c.stage, prometheus.GaugeValue, 1, s.last.Stage)
	}
	if len(s.plan.Targets) > 0 {
		to <- prometheus.MustNewConstMetric(c.info, prometheus.GaugeValue, 1, strings.ToValidUTF8(s.plan.Targets[0], "?"), s.plan.Mode, s.plan.Model)
	}
}

// quantiles are those of an interval, in seconds.
func quantiles(l load.Latency) map[float64]float64 {
	to := map[float64]float64{
		0: l.Min.Seconds(), 0.5: l.P50.Seconds(), 0.75: l.P75.Seconds(), 0.9: l.P90.Seconds(), 0.95: l.P95.Seconds(),
		0.99: l.P99.Seconds(), 0.999: l.P999.Seconds(), 0.9999: l.P9999.Seconds(), 1: l.Max.Seconds(),
	}
	if l.Count == 0 {
		for q := range to {
			to[q] = math.NaN()
		}
	}
	return to
}

// loadMetric is a metric with one value.
type loadMetric struct {
	name, help string
	kind       prometheus.ValueType
	value      func(*loadState) float64
}

// loadMetrics are the counters of a run, and what else has one value.
var loadMetrics = append(countedMetrics(), []loadMetric{
	{"connections_wanted", "How many connections there are to be.", prometheus.GaugeValue,
		func(s *loadState) float64 { return float64(s.plan.Connections) }},
	{"run_seconds", "How long the run had taken at the end of the last interval.", prometheus.GaugeValue,
		func(s *loadState) float64 { return s.last.To.Seconds() }},
	{"interval_seconds", "How long the last interval was.", prometheus.GaugeValue,
		func(s *loadState) float64 { return (s.last.To - s.last.From).Seconds() }},
}...)

func countedMetrics() (all []loadMetric) {
	for i, c := range load.Counters {
		switch {
		case c.Metric == "":
		case c.Gauge:
			all = append(all, loadMetric{c.Metric, c.Help, prometheus.GaugeValue, func(s *loadState) float64 {
				n, _ := c.Of(&s.last)
				return float64(n)
			}})
		default:
			all = append(all, loadMetric{c.Metric, c.Help, prometheus.CounterValue, func(s *loadState) float64 { return float64(s.counts[i]) }})
		}
	}
	return all
}

// processMetrics have a value for the generator and, where its processes are known,
// one for the server.
var processMetrics = []struct {
	name, help string
	kind       prometheus.ValueType
	value      func(last load.Usage, cpu time.Duration) float64
}{
	{"cpu_seconds_total", "Processor time, of the server since the run began.", prometheus.CounterValue,
		func(_ load.Usage, cpu time.Duration) float64 { return cpu.Seconds() }},
	{"resident_memory_bytes", "Memory that the process has, 0 where that isn't known.", prometheus.GaugeValue,
		func(last load.Usage, _ time.Duration) float64 { return float64(last.Resident) }},
	{"anonymous_memory_bytes", "Memory of it that no file holds, heap and stacks, 0 where that isn't known.", prometheus.GaugeValue,
		func(last load.Usage, _ time.Duration) float64 { return float64(last.Anonymous) }},
	{"open_fds", "Descriptors that the process has open, 0 where that isn't known.", prometheus.GaugeValue,
		func(last load.Usage, _ time.Duration) float64 { return float64(last.Descriptors) }},
	{"goroutines", "Goroutines that the process has, 0 where that isn't known.", prometheus.GaugeValue,
		func(last load.Usage, _ time.Duration) float64 { return float64(last.Goroutines) }},
	{"gc_cycles_total", "Collections of garbage, 0 where that isn't known.", prometheus.CounterValue,
		func(last load.Usage, _ time.Duration) float64 { return float64(last.GCs) }},
	{"gc_pause_seconds_total", "How long collections of garbage stopped everything, 0 where that isn't known.", prometheus.CounterValue,
		func(last load.Usage, _ time.Duration) float64 { return last.GCPause.Seconds() }},
}

var loadSummaries = []struct {
	name, help string
	value      func(*loadState) (all durations, last load.Latency)
}{
	{"latency_seconds", "Time to the last byte of an answer; the quantiles are of the last interval.",
		func(s *loadState) (durations, load.Latency) { return s.latency, s.last.Latency }},
	{"connect_seconds", "Time to establish a connection; the quantiles are of the last interval.",
		func(s *loadState) (durations, load.Latency) { return s.setup, s.last.Connect }},
}
