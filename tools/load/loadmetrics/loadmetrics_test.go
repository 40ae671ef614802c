package loadmetrics

import (
	"fmt"
	"math"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/myriad-go/myriad/tools/internal/collector/collectortest"
	"github.com/myriad-go/myriad/tools/internal/sample"
	"github.com/myriad-go/myriad/tools/load"
)

// observed is a collector that was told of a plan and of intervals.
func observed(labels prometheus.Labels, intervals ...load.Interval) *Collector {
	c := New(labels)
	c.Observe(load.Event{Phase: load.Began, Plan: &load.Plan{
		Targets: []string{"127.0.0.1:9000", "127.0.0.1:9001"}, Mode: "open loop", Model: "uring", Connections: 5000,
	}})
	for _, i := range intervals {
		c.Observe(load.Event{Phase: load.Progress, Interval: &i})
	}
	c.Observe(load.Event{Phase: load.Done, Result: &load.Result{}})
	return c
}

// fullInterval has a value of its own in each figure that is told.
func fullInterval() (i load.Interval, want map[string]string) {
	want = make(map[string]string)
	next := int64(1e6) // above whatever else there is
	usage := func(process string) load.Usage {
		var told struct {
			CPU, GCPause                    time.Duration
			RSS, Anonymous, Goroutines, GCs int64
			Descriptors                     int
		}
		collectortest.Fill(reflect.ValueOf(&told).Elem(), process, &next, want)
		return load.Usage{Goroutines: told.Goroutines, GCs: told.GCs, GCPause: told.GCPause,
			Process: sample.Process{System: told.CPU, RSS: told.RSS, Anonymous: told.Anonymous, Descriptors: told.Descriptors}}
	}
	v := reflect.ValueOf(&i).Elem()
	for n := range v.NumField() {
		name := v.Type().Field(n).Name
		switch name {
		case "From", "Histograms": // To less the length, and what agents send their coordinator
		case "Errors":
			i.Errors = map[string]int64{"refused": next + 1000}
			want["a cause"], want["its number"] = "refused", fmt.Sprint(float64(next+1000))
		case "Generator":
			i.Generator = usage(name)
		case "Server":
			server := usage(name)
			i.Server = &server
		default:
			collectortest.Fill(v.Field(n), name, &next, want)
		}
	}
	for _, l := range []*load.Latency{&i.Latency, &i.Connect} {
		l.Mean = 2 * time.Second // of which the sum is told
	}
	for _, name := range []string{"Latency", "Connect"} {
		delete(want, name+".Mean")
	}
	return i, want
}

// Each figure of an interval is found in the output, by a value that only it has.
func TestEveryFieldOfAnIntervalIsTold(t *testing.T) {
	i, want := fullInterval()
	delete(want, "To") // next to interval_seconds, which is the same as From is 0
	for _, text := range []string{"127.0.0.1:9000", "open loop", "uring", "5000"} {
		want["plan: "+text] = text
	}
	collectortest.WantTold(t, observed(nil, i), want, 40)
}

// Counters add up over a run, gauges and quantiles are of the last interval.
func TestIntervalsAddUp(t *testing.T) {
	c := observed(nil,
		load.Interval{To: time.Second, Open: 5, Counts: load.Counts{Answered: 10}, Errors: map[string]int64{"reset": 1}, Generator: load.Usage{Process: sample.Process{User: time.Second}},
			Server: &load.Usage{Process: sample.Process{User: time.Second}}, Latency: load.Latency{Count: 10, Mean: time.Second, P99: 3 * time.Second}},
		load.Interval{From: time.Second, To: 3 * time.Second, Open: 4, Counts: load.Counts{Answered: 20}, Errors: map[string]int64{"reset": 2}, Generator: load.Usage{Process: sample.Process{User: 2 * time.Second}},
			Server: &load.Usage{Process: sample.Process{User: 4 * time.Second}}, Latency: load.Latency{Count: 30, Mean: 2 * time.Second, P99: 7 * time.Second}},
	)
	got := collectortest.Scrape(t, c)
	for name, want := range map[string]float64{
		"connections": 4, "messages_answered_total": 30, "errors_total": 3, "interval_seconds": 2, "run_seconds": 3,
	} {
		m := got["myriad_load_"+name].Metric[0]
		if v := m.Gauge.GetValue() + m.Counter.GetValue(); v != want {
			t.Errorf("%s: got %v, want %v", name, v, want)
		}
	}
	for _, m := range got["myriad_load_cpu_seconds_total"].Metric {
		want := map[string]float64{"generator": 3, "server": 5}[m.Label[0].GetValue()]
		if m.Counter.GetValue() != want {
			t.Errorf("CPU of the %s: got %v, want %v", m.Label[0].GetValue(), m.Counter.GetValue(), want)
		}
	}
	s := got["myriad_load_latency_seconds"].Metric[0].Summary
	if s.GetSampleCount() != 40 || s.GetSampleSum() != 70 {
		t.Errorf("latency: %d, %v s in all; want 40, 70 s", s.GetSampleCount(), s.GetSampleSum())
	}
	for _, q := range s.Quantile {
		if q.GetQuantile() == 0.99 && q.GetValue() != 7 {
			t.Errorf("99th percentile: got %v, want the last interval's 7", q.GetValue())
		}
	}
	// The next run begins anew, and has had no answer and no server yet.
	c.Observe(load.Event{Phase: load.Began})
	got = collectortest.Scrape(t, c)
	if v := got["myriad_load_messages_answered_total"].Metric[0].Counter.GetValue(); v != 0 {
		t.Errorf("%v answers at the beginning of the next run; want 0", v)
	}
	if n := len(got["myriad_load_cpu_seconds_total"].Metric); n != 1 {
		t.Errorf("%d processes without a server; want 1", n)
	}
	for _, q := range got["myriad_load_latency_seconds"].Metric[0].Summary.Quantile {
		if !math.IsNaN(q.GetValue()) {
			t.Errorf("quantile %v without answers: got %v, want NaN", q.GetQuantile(), q.GetValue())
		}
	}
}

// Causes without end take no memory without end.
func TestCausesAreBounded(t *testing.T) {
	c := New(nil)
	for i := range 3 * maxCauses {
		c.Observe(load.Event{Interval: &load.Interval{Errors: map[string]int64{fmt.Sprint("cause \xff", i): 1}}})
	}
	causes := collectortest.Scrape(t, c)["myriad_load_errors_total"].Metric
	sum := 0.0
	for _, m := range causes {
		sum += m.Counter.GetValue()
	}
	if len(causes) != maxCauses+1 || sum != 3*maxCauses {
		t.Errorf("%d causes, %v errors; want %d, %d", len(causes), sum, maxCauses+1, 3*maxCauses)
	}
}

// It is observed and scraped at a time; the race detector looks on.
func TestLoadIsObservedAndScraped(t *testing.T) {
	c := observed(nil)
	var both sync.WaitGroup
	both.Go(func() {
		for range 100 {
			c.Observe(load.Event{Interval: &load.Interval{Counts: load.Counts{Answered: 1}, Errors: map[string]int64{"x": 1}, Server: &load.Usage{}}})
		}
	})
	both.Go(func() {
		for range 100 {
			if _, err := testutil.CollectAndLint(c); err != nil {
				t.Error(err)
			}
		}
	})
	both.Wait()
	if got := collectortest.Scrape(t, c)["myriad_load_messages_answered_total"].Metric[0].Counter.GetValue(); got != 100 {
		t.Errorf("%v answers; want 100", got)
	}
}

func TestLint(t *testing.T) {
	interval, _ := fullInterval()
	collectortest.Lint(t, observed(nil, interval))
}

func TestLabels(t *testing.T) {
	collectortest.Labels(t, "myriad_load_connections", func(l prometheus.Labels) prometheus.Collector { return observed(l) },
		"target", "mode", "model", "stage", "cause", "process", "quantile", "\xff")
}
