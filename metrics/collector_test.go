package metrics

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/myriad-go/myriad"
)

// fixed is a Source that always says the same.
type fixed myriad.Stats

func (f *fixed) Stats() myriad.Stats { return myriad.Stats(*f) }

// gather scrapes a server with the given Stats.
func gather(t *testing.T, stats myriad.Stats, labels prometheus.Labels) map[string]*dto.MetricFamily {
	t.Helper()
	s := fixed(stats)
	return scrape(t, NewServerCollector(&s, labels))
}

// scrape gives what a collector tells, by name.
func scrape(t *testing.T, c prometheus.Collector) map[string]*dto.MetricFamily {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(c); err != nil {
		t.Fatal(err)
	}
	found, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	byName := make(map[string]*dto.MetricFamily)
	for _, f := range found {
		byName[f.GetName()] = f
	}
	return byName
}

// fill gives each figure below v a value of its own: whole seconds for durations
// and a text for the one string. It returns what is to be found in the output,
// by the field's name.
func fill(v reflect.Value, path string, next *int64, want map[string]string) {
	switch {
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), path+"."+v.Type().Field(i).Name, next, want)
		}
		return
	case v.Kind() == reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), fmt.Sprintf("%s[%d]", path, i), next, want)
		}
		return
	}
	*next++
	switch {
	case v.Type() == reflect.TypeFor[time.Duration]():
		v.SetInt(*next * int64(time.Second))
		want[path] = fmt.Sprint(float64(*next))
	case v.CanUint():
		v.SetUint(uint64(*next))
		want[path] = fmt.Sprint(float64(*next))
	case v.CanInt():
		v.SetInt(*next)
		want[path] = fmt.Sprint(float64(*next))
	case v.Kind() == reflect.String:
		v.SetString(fmt.Sprint("text ", *next))
		want[path] = v.String()
	case v.Kind() == reflect.Bool: // a test of its own
	default:
		panic("fill: " + path + " is of a kind that this test does not know: " + v.Kind().String())
	}
}

// said collects every value and text in the output; of histograms what each
// bucket has by itself.
func said(families map[string]*dto.MetricFamily) map[string]int {
	values := make(map[string]int)
	for _, f := range families {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				values[l.GetValue()]++
			}
			if h := m.Histogram; h != nil {
				values[fmt.Sprint(float64(h.GetSampleCount()))]++
				values[fmt.Sprint(h.GetSampleSum())]++
				var before uint64
				for _, b := range h.Bucket {
					values[fmt.Sprint(float64(b.GetCumulativeCount()-before))]++
					before = b.GetCumulativeCount()
				}
				continue
			}
			values[fmt.Sprint(m.Gauge.GetValue()+m.Counter.GetValue())]++ // one of them is 0
		}
	}
	return values
}

// TestEveryFieldIsTold finds each field of Stats in the output, by a value that
// only it has.
func TestEveryFieldIsTold(t *testing.T) {
	var stats myriad.Stats
	want := make(map[string]string)
	next := int64(1e6) // above whatever else there is
	fill(reflect.ValueOf(&stats).Elem(), "Stats", &next, want)
	// The last bucket is told as what Count has more than the others.
	for _, h := range []string{"Stats.HandlerTime", "Stats.Lag"} {
		delete(want, fmt.Sprintf("%s.Buckets[%d]", h, myriad.Buckets-1))
	}
	got := said(gather(t, stats, nil))
	for field, value := range want {
		if got[value] != 1 {
			t.Errorf("%s, which is %s, was told %d times; want once", field, value, got[value])
		}
	}
	if len(want) < 90 {
		t.Errorf("only %d figures were looked for", len(want))
	}
}

func TestDraining(t *testing.T) {
	for draining, want := range map[bool]float64{false: 0, true: 1} {
		if got := gather(t, myriad.Stats{Draining: draining}, nil)["myriad_draining"].Metric[0].Gauge.GetValue(); got != want {
			t.Errorf("draining %v: myriad_draining is %v, want %v", draining, got, want)
		}
	}
}

func TestHistogram(t *testing.T) {
	stats := myriad.Stats{Lag: myriad.Histogram{Count: 10, Sum: 90 * time.Second}}
	stats.Lag.Buckets[0], stats.Lag.Buckets[2], stats.Lag.Buckets[myriad.Buckets-1] = 1, 2, 7
	h := gather(t, stats, nil)["myriad_loop_lag_seconds"].Metric[0].Histogram
	if h.GetSampleCount() != 10 || h.GetSampleSum() != 90 {
		t.Errorf("got %d in all, %v s; want 10, 90 s", h.GetSampleCount(), h.GetSampleSum())
	}
	wantFirst := []struct {
		bound float64
		count uint64
	}{{1e-6, 1}, {2e-6, 1}, {4e-6, 3}, {8e-6, 3}}
	for i, want := range wantFirst {
		if b := h.Bucket[i]; math.Abs(b.GetUpperBound()-want.bound) > 1e-12 || b.GetCumulativeCount() != want.count {
			t.Errorf("bucket %d: got %d up to %v s, want %d up to %v s", i, b.GetCumulativeCount(), b.GetUpperBound(), want.count, want.bound)
		}
	}
	last := h.Bucket[len(h.Bucket)-1]
	if len(h.Bucket) != myriad.Buckets-1 || last.GetCumulativeCount() != 3 || last.GetUpperBound() != 8.388608 {
		t.Errorf("last of %d buckets: %d up to %v s; want 3 up to 8.388608 s in the last of %d, the rest only in the count of all",
			len(h.Bucket), last.GetCumulativeCount(), last.GetUpperBound(), myriad.Buckets-1)
	}
}

func TestMemoryPerConnection(t *testing.T) {
	const name = "myriad_memory_per_connection_bytes"
	for what, stats := range map[string]myriad.Stats{
		"no connection":    {},
		"worker processes": {Open: 10, Processes: 2},
	} {
		if _, ok := gather(t, stats, nil)[name]; ok {
			t.Errorf("%s: %s is there; want it left out", what, name)
		}
	}
	held := make([]byte, 64<<20)
	runtime.GC() // so that nothing else counts, such as what an earlier run held
	got := gather(t, myriad.Stats{Open: 2}, nil)[name].Metric[0].Gauge.GetValue()
	if got < float64(len(held))/2 || got > float64(len(held))*3/4 {
		t.Errorf("with %d bytes held and 2 connections: %v bytes for each; want half of it and not much more", len(held), got)
	}
	held[0] = 1 // it lives until here
}

// TestLint has Prometheus's own rules look at names, units and help texts.
func TestLint(t *testing.T) {
	s := fixed(myriad.Stats{Open: 1})
	problems, err := testutil.CollectAndLint(NewServerCollector(&s, nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for name := range gather(t, myriad.Stats{Open: 1}, nil) {
		if !strings.HasPrefix(name, "myriad_") {
			t.Errorf("%s does not begin with myriad_", name)
		}
	}
}

func TestLabels(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	for _, name := range []string{"chat", "files"} {
		s := fixed(myriad.Stats{Open: 1})
		if err := r.Register(NewServerCollector(&s, prometheus.Labels{"server": name})); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := testutil.GatherAndCount(r, "myriad_connections"); err != nil || n != 2 {
		t.Errorf("two servers in one registry: %d times myriad_connections, %v; want 2", n, err)
	}
	families := gather(t, myriad.Stats{Open: 1}, prometheus.Labels{"server": "chat"})
	for name, f := range families {
		for _, m := range f.Metric {
			labels := maps.Collect(func(yield func(string, string) bool) {
				for _, l := range m.Label {
					yield(l.GetName(), l.GetValue())
				}
			})
			if labels["server"] != "chat" {
				t.Errorf("%s has the labels %v; want server=chat among them", name, labels)
			}
		}
	}
}

func TestRegisteringRefuses(t *testing.T) {
	good := &fixed{}
	for what, c := range map[string]prometheus.Collector{
		"no source":          NewServerCollector(nil, nil),
		"a name that is bad": NewServerCollector(good, prometheus.Labels{"\xff": "x"}),
		"the label state":    NewServerCollector(good, prometheus.Labels{"state": "x"}),
		"the label cause":    NewServerCollector(good, prometheus.Labels{"cause": "x"}),
		"the label le":       NewServerCollector(good, prometheus.Labels{"le": "x"}),
		"the label model":    NewServerCollector(good, prometheus.Labels{"model": "x"}),
	} {
		if err := prometheus.NewRegistry().Register(c); err == nil {
			t.Errorf("%s: registered; want an error", what)
		}
	}
}

// TestConcurrentScrapes is for the race detector: collectors keep nothing.
func TestConcurrentScrapes(t *testing.T) {
	r := prometheus.NewRegistry()
	r.MustRegister(NewServerCollector(&fixed{Open: 1}, nil))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := r.Gather(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestRegisterProcess(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	if err := RegisterProcess(r); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]bool)
	for _, f := range families {
		got[f.GetName()] = true
	}
	for _, want := range []string{
		"go_goroutines", "go_gc_duration_seconds", "go_memstats_heap_inuse_bytes", "go_gc_gomemlimit_bytes",
		"go_cpu_classes_gc_total_cpu_seconds_total", "go_gc_heap_live_bytes", "go_gc_limiter_last_enabled_gc_cycle",
		"go_sched_latencies_seconds", "go_sched_pauses_total_gc_seconds", "go_sync_mutex_wait_total_seconds_total",
	} {
		if !got[want] {
			t.Errorf("%s is missing", want)
		}
	}
	if err := RegisterProcess(r); err == nil {
		t.Error("registered twice in one registry; want an error")
	}
}
