package loadmetrics

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/myriad-go/myriad/tools/internal/collector/collectortest"
	"github.com/myriad-go/myriad/tools/internal/sample"
	"github.com/myriad-go/myriad/tools/load"
)

func newObserved(labels prometheus.Labels, intervals ...load.Interval) *Collector {
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

// newFullInterval returns an interval with a unique value in each exported figure.
func newFullInterval() (i load.Interval, want map[string]string) {
	want = make(map[string]string)
	next := int64(1e6) // above whatever else there is
	usage := func(process string) load.Usage {
		var told struct {
			CPU, GCPause                    time.Duration
			RSS, Anonymous, Goroutines, GCs int64
			Descriptors                     int
		}
		collectortest.FillWithUniqueValues(reflect.ValueOf(&told).Elem(), process, &next, want)
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
			collectortest.FillWithUniqueValues(v.Field(n), name, &next, want)
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

// Each figure of an interval appears in the output, recognized by its unique value.
func TestEveryFieldOfAnIntervalIsTold(t *testing.T) {
	i, want := newFullInterval()
	delete(want, "To") // next to interval_seconds, which is the same as From is 0
	for _, text := range []string{"127.0.0.1:9000", "open loop", "uring", "5000"} {
		want["plan: "+text] = text
	}
	collectortest.CheckEachValueOnce(t, newObserved(nil, i), want, 40)
}

// Counters add up over a run; gauges and quantiles are those of the last interval. The next run resets them.
func TestIntervalsAddUp(t *testing.T) {
	interval := func(n time.Duration, server time.Duration) load.Interval {
		return load.Interval{
			From: (n - 1) * time.Second, To: n * n * time.Second, Open: 5 - int64(n), Counts: load.Counts{Answered: 10 * int64(n)},
			Errors:    map[string]int64{"reset": int64(n)},
			Generator: load.Usage{Process: sample.Process{User: n * time.Second}},
			Server:    &load.Usage{Process: sample.Process{User: server}},
			Latency:   load.Latency{Count: 10 * int64(n), Mean: n * time.Second, P99: 3 * n * time.Second},
		}
	}
	c := newObserved(nil, interval(1, time.Second), interval(2, 4*time.Second))
	checkFigures(t, c, map[string]float64{
		"connections": 3, "messages_answered_total": 30, "errors_total": 3, "interval_seconds": 3, "run_seconds": 4,
		"cpu_seconds_total generator": 3, "cpu_seconds_total server": 5,
		"latency_seconds count": 30, "latency_seconds sum": 50, "latency_seconds 0.99": 6,
	})
	c.Observe(load.Event{Phase: load.Began})
	checkFigures(t, c, map[string]float64{
		"messages_answered_total": 0, "cpu_seconds_total generator": 0, "latency_seconds 0.99": math.NaN(),
	})
	if n := len(collectortest.Scrape(t, c)["myriad_load_cpu_seconds_total"].Metric); n != 1 {
		t.Errorf("%d processes without a server; want 1", n)
	}
}

// checkFigures compares figures, named by metric and, if there are several, a label or a quantile.
func checkFigures(t *testing.T, c *Collector, want map[string]float64) {
	t.Helper()
	got := make(map[string]float64)
	for name, family := range collectortest.Scrape(t, c) {
		name = strings.TrimPrefix(name, "myriad_load_")
		for _, m := range family.Metric {
			got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			for _, l := range m.Label {
				got[name+" "+l.GetValue()] = got[name]
			}
			if s := m.Summary; s != nil {
				got[name+" count"], got[name+" sum"] = float64(s.GetSampleCount()), s.GetSampleSum()
				for _, q := range s.Quantile {
					got[fmt.Sprint(name, " ", q.GetQuantile())] = q.GetValue()
				}
			}
		}
	}
	for name, want := range want {
		if got, ok := got[name]; !ok || got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}

// The number of causes is limited.
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

// Observing and scraping are concurrent; the race detector checks them.
func TestLoadIsObservedAndScraped(t *testing.T) {
	c := newObserved(nil)
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
	interval, _ := newFullInterval()
	collectortest.Lint(t, newObserved(nil, interval))
}

func TestLabels(t *testing.T) {
	collectortest.CheckConstLabels(t, "myriad_load_connections", func(l prometheus.Labels) prometheus.Collector { return newObserved(l) },
		"target", "mode", "model", "stage", "cause", "process", "quantile", "\xff")
}
