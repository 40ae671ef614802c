package metrics

import (
	"fmt"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
)

// fixed is a Source that always says the same.
type fixed tcp.Stats

func (f *fixed) Stats() tcp.Stats { return tcp.Stats(*f) }

// fixedPool is a PoolSource that always says the same.
type fixedPool pool.Stats

func (f *fixedPool) Stats() pool.Stats { return pool.Stats(*f) }

// fixedHub is a HubSource that always says the same.
type fixedHub hub.Stats

func (f *fixedHub) Stats() hub.Stats { return hub.Stats(*f) }

var (
	_ PoolSource = (*pool.Pool)(nil)
	_ HubSource  = (*hub.Hub)(nil)
)

func ofServer(stats tcp.Stats) prometheus.Collector {
	return NewServerCollector((*fixed)(&stats), nil)
}

func ofPool(stats pool.Stats) prometheus.Collector {
	return NewPoolCollector((*fixedPool)(&stats), nil)
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
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), path, next, want)
		return
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), path+"[0]", next, want)
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
			switch {
			case m.Histogram != nil:
				values[fmt.Sprint(float64(m.Histogram.GetSampleCount()))]++
				values[fmt.Sprint(m.Histogram.GetSampleSum())]++
				var before uint64
				for _, b := range m.Histogram.Bucket {
					values[fmt.Sprint(float64(b.GetCumulativeCount()-before))]++
					before = b.GetCumulativeCount()
				}
			case m.Summary != nil:
				values[fmt.Sprint(float64(m.Summary.GetSampleCount()))]++
				for _, q := range m.Summary.Quantile {
					values[fmt.Sprint(q.GetValue())]++
				}
			default: // one of them is 0
				values[fmt.Sprint(m.Gauge.GetValue()+m.Counter.GetValue())]++
			}
		}
	}
	return values
}

// wantTold finds each of the fields in the output, by a value that only it has.
func wantTold(t *testing.T, c prometheus.Collector, fields map[string]string, least int) {
	t.Helper()
	got := said(scrape(t, c))
	for field, value := range fields {
		if got[value] != 1 {
			t.Errorf("%s, which is %s, was told %d times; want once", field, value, got[value])
		}
	}
	if len(fields) < least {
		t.Errorf("only %d figures were looked for", len(fields))
	}
}

// TestEveryFieldIsTold fills the Stats of a server, of a pool and of a hub. The last bucket of a
// histogram is told as what Count has more than the others.
func TestEveryFieldIsTold(t *testing.T) {
	var stats tcp.Stats
	fields, next := make(map[string]string), int64(1e6) // above whatever else there is
	fill(reflect.ValueOf(&stats).Elem(), "Stats", &next, fields)
	for _, h := range []string{"HandlerTime", "Lag"} {
		delete(fields, fmt.Sprintf("Stats.%s.Buckets[%d]", h, tcp.Buckets-1))
	}
	wantTold(t, ofServer(stats), fields, 90)

	var ofJobs pool.Stats
	fields = make(map[string]string)
	fill(reflect.ValueOf(&ofJobs).Elem(), "Stats", &next, fields)
	for _, h := range []string{"Wait", "Service"} {
		delete(fields, fmt.Sprintf("Stats.%s.Buckets[%d]", h, pool.Buckets-1))
	}
	wantTold(t, ofPool(ofJobs), fields, 14+2*pool.Buckets)

	var ofHub fixedHub
	fields = make(map[string]string)
	fill(reflect.ValueOf(&ofHub).Elem(), "Stats", &next, fields)
	delete(fields, "Stats.Cluster.Nodes[0].Name") // a label of several
	wantTold(t, NewHubCollector(&ofHub, nil), fields, 18+9+3+8)
}

func TestConditions(t *testing.T) {
	for is, want := range map[bool]float64{false: 0, true: 1} {
		for name, c := range map[string]prometheus.Collector{
			"myriad_draining":        ofServer(tcp.Stats{Draining: is}),
			"myriad_pool_overloaded": ofPool(pool.Stats{Overloaded: is}),
		} {
			if got := scrape(t, c)[name].Metric[0].Gauge.GetValue(); got != want {
				t.Errorf("%s is %v where it is %v, want %v", name, got, is, want)
			}
		}
	}
}

func TestHistograms(t *testing.T) {
	stats := tcp.Stats{Lag: tcp.Histogram{Count: 10, Sum: 90 * time.Second}}
	stats.Lag.Buckets[0], stats.Lag.Buckets[2], stats.Lag.Buckets[tcp.Buckets-1] = 1, 2, 7
	ofJobs := pool.Stats{Wait: pool.Histogram{Count: 10, Sum: 90 * time.Second}}
	ofJobs.Wait.Buckets[0], ofJobs.Wait.Buckets[2], ofJobs.Wait.Buckets[pool.Buckets-1] = 1, 2, 7
	for _, c := range []struct {
		name      string
		collector prometheus.Collector
		buckets   int
	}{
		{"myriad_loop_lag_seconds", ofServer(stats), tcp.Buckets - 1},
		{"myriad_pool_wait_seconds", ofPool(ofJobs), pool.Buckets - 1},
	} {
		h := scrape(t, c.collector)[c.name].Metric[0].Histogram
		if h.GetSampleCount() != 10 || h.GetSampleSum() != 90 {
			t.Errorf("%s: got %d in all, %v s; want 10, 90 s", c.name, h.GetSampleCount(), h.GetSampleSum())
		}
		for i, want := range []struct {
			bound float64
			count uint64
		}{{1e-6, 1}, {2e-6, 1}, {4e-6, 3}, {8e-6, 3}} {
			if b := h.Bucket[i]; math.Abs(b.GetUpperBound()-want.bound) > 1e-12 || b.GetCumulativeCount() != want.count {
				t.Errorf("%s, bucket %d: got %d up to %v s, want %d up to %v s", c.name, i, b.GetCumulativeCount(), b.GetUpperBound(), want.count, want.bound)
			}
		}
		if last := h.Bucket[len(h.Bucket)-1]; len(h.Bucket) != c.buckets || last.GetCumulativeCount() != 3 {
			t.Errorf("%s: %d buckets, the last with %d; want %d, and 3: the rest is in the count of all alone", c.name, len(h.Bucket), last.GetCumulativeCount(), c.buckets)
		}
	}
}

func TestMemoryPerConnection(t *testing.T) {
	const name = "myriad_memory_per_connection_bytes"
	for what, stats := range map[string]tcp.Stats{
		"no connection":    {},
		"worker processes": {Open: 10, Processes: 2},
	} {
		if _, ok := scrape(t, ofServer(stats))[name]; ok {
			t.Errorf("%s: %s is there; want it left out", what, name)
		}
	}
	held := make([]byte, 64<<20)
	runtime.GC() // so that nothing else counts, such as what an earlier run held
	got := scrape(t, ofServer(tcp.Stats{Open: 2}))[name].Metric[0].Gauge.GetValue()
	if got < float64(len(held))/2 || got > float64(len(held))*3/4 {
		t.Errorf("with %d bytes held and 2 connections: %v bytes for each; want half of it and not much more", len(held), got)
	}
	held[0] = 1 // it lives until here
}

// The names, units, types and help texts follow the rules of Prometheus and OpenMetrics.
func TestLint(t *testing.T) {
	interval, _ := fullInterval()
	for _, c := range []prometheus.Collector{ofServer(tcp.Stats{Open: 1}), ofPool(pool.Stats{}), NewHubCollector(&fixedHub{}, nil), observed(nil, interval)} {
		problems, err := testutil.CollectAndLint(c)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
		for name := range scrape(t, c) {
			if !strings.HasPrefix(name, "myriad_") {
				t.Errorf("%s does not begin with myriad_", name)
			}
		}
	}
}

// Two of a kind are told apart by a label, which each metric has, and one of each kind fits
// in a registry. Labels that metrics have themselves are refused.
func TestLabels(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	for _, kind := range []struct {
		metric string
		of     func(labels prometheus.Labels) prometheus.Collector
		taken  []string
	}{
		{"myriad_connections", func(l prometheus.Labels) prometheus.Collector { return NewServerCollector(&fixed{Open: 1}, l) },
			[]string{"state", "cause", "le", "model", "\xff"}},
		{"myriad_pool_workers", func(l prometheus.Labels) prometheus.Collector { return NewPoolCollector(&fixedPool{}, l) },
			[]string{"state", "outcome", "cause", "le", "\xff"}},
		{"myriad_hub_subscriptions", func(l prometheus.Labels) prometheus.Collector { return NewHubCollector(&fixedHub{}, l) },
			[]string{"kind", "cause", "le", "\xff"}},
		{"myriad_load_connections", func(l prometheus.Labels) prometheus.Collector { return observed(l) },
			[]string{"target", "mode", "model", "stage", "cause", "process", "quantile", "\xff"}},
	} {
		for _, name := range []string{"a", "b"} {
			if err := r.Register(kind.of(prometheus.Labels{"name": name})); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := testutil.GatherAndCount(r, kind.metric); err != nil || n != 2 {
			t.Errorf("two in one registry: %d times %s, %v; want 2", n, kind.metric, err)
		}
		for name, f := range scrape(t, kind.of(prometheus.Labels{"name": "a"})) {
			for _, m := range f.Metric {
				if !slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetName() == "name" && l.GetValue() == "a" }) {
					t.Errorf("%s has the labels %v; want name=a among them", name, m.Label)
				}
			}
		}
		for _, label := range kind.taken {
			if err := prometheus.NewRegistry().Register(kind.of(prometheus.Labels{label: "x"})); err == nil {
				t.Errorf("%s with the label %q: registered; want an error", kind.metric, label)
			}
		}
	}
	for _, c := range []prometheus.Collector{NewServerCollector(nil, nil), NewPoolCollector(nil, nil), NewHubCollector(nil, nil)} {
		if err := prometheus.NewRegistry().Register(c); err == nil {
			t.Errorf("%T without a source: registered; want an error", c)
		}
	}
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
