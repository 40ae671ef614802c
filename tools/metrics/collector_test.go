package metrics

import (
	"fmt"
	"math"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/internal/collector/collectortest"
)

type fixedServer tcp.Stats

func (f *fixedServer) Stats() tcp.Stats { return tcp.Stats(*f) }

type fixedPool pool.Stats

func (f *fixedPool) Stats() pool.Stats { return pool.Stats(*f) }

type fixedHub hub.Stats

func (f *fixedHub) Stats() hub.Stats { return hub.Stats(*f) }

var (
	_ PoolSource = (*pool.Pool)(nil)
	_ HubSource  = (*hub.Hub)(nil)
)

func newServerCollector(stats tcp.Stats) prometheus.Collector {
	return NewServerCollector((*fixedServer)(&stats), nil)
}

func newPoolCollector(stats pool.Stats) prometheus.Collector {
	return NewPoolCollector((*fixedPool)(&stats), nil)
}

// TestEveryFieldIsTold fills the Stats of a server, of a pool and of a hub. The last bucket of a
// histogram is told as what Count has more than the others.
func TestEveryFieldIsTold(t *testing.T) {
	var stats tcp.Stats
	fields, next := make(map[string]string), int64(1e6) // above whatever else there is
	collectortest.FillWithUniqueValues(reflect.ValueOf(&stats).Elem(), "Stats", &next, fields)
	for _, h := range []string{"HandlerTime", "Lag"} {
		delete(fields, fmt.Sprintf("Stats.%s.Buckets[%d]", h, tcp.Buckets-1))
	}
	collectortest.CheckEachValueOnce(t, newServerCollector(stats), fields, 90)

	var ofJobs pool.Stats
	fields = make(map[string]string)
	collectortest.FillWithUniqueValues(reflect.ValueOf(&ofJobs).Elem(), "Stats", &next, fields)
	for _, h := range []string{"Wait", "Service"} {
		delete(fields, fmt.Sprintf("Stats.%s.Buckets[%d]", h, pool.Buckets-1))
	}
	collectortest.CheckEachValueOnce(t, newPoolCollector(ofJobs), fields, 14+2*pool.Buckets)

	var ofHub fixedHub
	fields = make(map[string]string)
	collectortest.FillWithUniqueValues(reflect.ValueOf(&ofHub).Elem(), "Stats", &next, fields)
	delete(fields, "Stats.Cluster.Nodes[0].Name") // a label of several
	collectortest.CheckEachValueOnce(t, NewHubCollector(&ofHub, nil), fields, 18+9+3+8)
}

func TestConditions(t *testing.T) {
	for is, want := range map[bool]float64{false: 0, true: 1} {
		for name, c := range map[string]prometheus.Collector{
			"myriad_draining":        newServerCollector(tcp.Stats{Draining: is}),
			"myriad_pool_overloaded": newPoolCollector(pool.Stats{Overloaded: is}),
		} {
			if got := collectortest.Scrape(t, c)[name].Metric[0].Gauge.GetValue(); got != want {
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
		{"myriad_loop_lag_seconds", newServerCollector(stats), tcp.Buckets - 1},
		{"myriad_pool_wait_seconds", newPoolCollector(ofJobs), pool.Buckets - 1},
	} {
		h := collectortest.Scrape(t, c.collector)[c.name].Metric[0].Histogram
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
		if _, ok := collectortest.Scrape(t, newServerCollector(stats))[name]; ok {
			t.Errorf("%s: %s is there; want it left out", what, name)
		}
	}
	held := make([]byte, 64<<20)
	runtime.GC() // so that nothing else counts, such as what an earlier run held
	got := collectortest.Scrape(t, newServerCollector(tcp.Stats{Open: 2}))[name].Metric[0].Gauge.GetValue()
	if got < float64(len(held))/2 || got > float64(len(held))*3/4 {
		t.Errorf("with %d bytes held and 2 connections: %v bytes for each; want half of it and not much more", len(held), got)
	}
	held[0] = 1 // it lives until here
}

func TestLint(t *testing.T) {
	for _, c := range []prometheus.Collector{newServerCollector(tcp.Stats{Open: 1}), newPoolCollector(pool.Stats{}), NewHubCollector(&fixedHub{}, nil)} {
		collectortest.Lint(t, c)
	}
}

func TestLabels(t *testing.T) {
	collectortest.CheckConstLabels(t, "myriad_connections", func(l prometheus.Labels) prometheus.Collector { return NewServerCollector(&fixedServer{Open: 1}, l) },
		"state", "cause", "le", "model", "\xff")
	collectortest.CheckConstLabels(t, "myriad_pool_workers", func(l prometheus.Labels) prometheus.Collector { return NewPoolCollector(&fixedPool{}, l) },
		"state", "outcome", "cause", "le", "\xff")
	collectortest.CheckConstLabels(t, "myriad_hub_subscriptions", func(l prometheus.Labels) prometheus.Collector { return NewHubCollector(&fixedHub{}, l) },
		"kind", "cause", "le", "\xff")
	for _, c := range []prometheus.Collector{NewServerCollector(nil, nil), NewPoolCollector(nil, nil), NewHubCollector(nil, nil)} {
		if err := prometheus.NewRegistry().Register(c); err == nil {
			t.Errorf("%T without a source: registered; want an error", c)
		}
	}
}

func TestRegisterProcess(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	testkit.RequireNoError(t, RegisterProcess(r))
	families := testkit.Must(r.Gather())(t)
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
