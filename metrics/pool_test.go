package metrics

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/myriad-go/myriad/pool"
)

// fixedPool is a PoolSource that always says the same.
type fixedPool pool.Stats

func (f *fixedPool) Stats() pool.Stats { return pool.Stats(*f) }

// gatherPool scrapes a pool with the given Stats.
func gatherPool(t *testing.T, stats pool.Stats, labels prometheus.Labels) map[string]*dto.MetricFamily {
	t.Helper()
	s := fixedPool(stats)
	return scrape(t, NewPoolCollector(&s, labels))
}

// Each field of a pool's Stats is found in the output, by a value that only it has.
func TestEveryFieldOfAPoolIsTold(t *testing.T) {
	var stats pool.Stats
	want := make(map[string]string)
	next := int64(1e6) // above whatever else there is
	fill(reflect.ValueOf(&stats).Elem(), "Stats", &next, want)
	for _, h := range []string{"Stats.Wait", "Stats.Service"} { // the last is what Count has more than the others
		delete(want, fmt.Sprintf("%s.Buckets[%d]", h, pool.Buckets-1))
	}
	got := said(gatherPool(t, stats, nil))
	for field, value := range want {
		if got[value] != 1 {
			t.Errorf("%s, which is %s, was told %d times; want once", field, value, got[value])
		}
	}
	if len(want) < 14+2*pool.Buckets {
		t.Errorf("only %d figures were looked for", len(want))
	}
}

func TestOverloaded(t *testing.T) {
	for overloaded, want := range map[bool]float64{false: 0, true: 1} {
		got := gatherPool(t, pool.Stats{Overloaded: overloaded}, nil)["myriad_pool_overloaded"].Metric[0].Gauge.GetValue()
		if got != want {
			t.Errorf("overloaded %v: myriad_pool_overloaded is %v, want %v", overloaded, got, want)
		}
	}
}

func TestPoolHistogram(t *testing.T) {
	stats := pool.Stats{Wait: pool.Histogram{Count: 10, Sum: 90 * time.Second}}
	stats.Wait.Buckets[0], stats.Wait.Buckets[2], stats.Wait.Buckets[pool.Buckets-1] = 1, 2, 7
	h := gatherPool(t, stats, nil)["myriad_pool_wait_seconds"].Metric[0].Histogram
	if h.GetSampleCount() != 10 || h.GetSampleSum() != 90 {
		t.Errorf("got %d in all, %v s; want 10, 90 s", h.GetSampleCount(), h.GetSampleSum())
	}
	for i, want := range []struct {
		bound float64
		count uint64
	}{{1e-6, 1}, {2e-6, 1}, {4e-6, 3}, {8e-6, 3}} {
		if b := h.Bucket[i]; math.Abs(b.GetUpperBound()-want.bound) > 1e-12 || b.GetCumulativeCount() != want.count {
			t.Errorf("bucket %d: got %d up to %v s, want %d up to %v s", i, b.GetCumulativeCount(), b.GetUpperBound(), want.count, want.bound)
		}
	}
	if last := h.Bucket[len(h.Bucket)-1]; len(h.Bucket) != pool.Buckets-1 || last.GetCumulativeCount() != 3 {
		t.Errorf("%d buckets, the last has %d up to %v s; want %d, and 3", len(h.Bucket), last.GetCumulativeCount(), last.GetUpperBound(), pool.Buckets-1)
	}
}

// The names and types follow the rules of OpenMetrics.
func TestPoolNames(t *testing.T) {
	problems, err := testutil.CollectAndLint(NewPoolCollector(&fixedPool{}, nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// Two pools are told apart by a label, and a pool is found next to a server.
func TestPoolLabels(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	for _, c := range []prometheus.Collector{
		NewPoolCollector(&fixedPool{}, prometheus.Labels{"pool": "a"}), NewPoolCollector(&fixedPool{}, prometheus.Labels{"pool": "b"}),
		NewServerCollector(&fixed{Open: 1}, nil),
	} {
		if err := r.Register(c); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := testutil.GatherAndCount(r, "myriad_pool_workers"); err != nil || n != 2 {
		t.Errorf("two pools in one registry: %d times myriad_pool_workers, %v; want 2", n, err)
	}
}

func TestRegisteringAPoolRefuses(t *testing.T) {
	good := &fixedPool{}
	for what, c := range map[string]prometheus.Collector{
		"no source":          NewPoolCollector(nil, nil),
		"a name that is bad": NewPoolCollector(good, prometheus.Labels{"\xff": "x"}),
		"the label state":    NewPoolCollector(good, prometheus.Labels{"state": "x"}),
		"the label outcome":  NewPoolCollector(good, prometheus.Labels{"outcome": "x"}),
		"the label cause":    NewPoolCollector(good, prometheus.Labels{"cause": "x"}),
		"the label le":       NewPoolCollector(good, prometheus.Labels{"le": "x"}),
	} {
		if err := prometheus.NewRegistry().Register(c); err == nil {
			t.Errorf("%s: registered; want an error", what)
		}
	}
}

// A pool itself is a source.
func TestRealPool(t *testing.T) {
	p, err := pool.New(pool.Config{Max: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Submit(context.Background(), func(context.Context) {}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(NewPoolCollector(p, nil))
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "myriad_pool_jobs_accepted_total" && f.Metric[0].Counter.GetValue() == 1 {
			return
		}
	}
	t.Errorf("a job was accepted, and is not told of: %v", families)
}
