// Package collectortest contains helpers for the tests of collectors.
package collectortest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/myriad-go/myriad/tools/internal/collector"
)

// Scrape returns the metrics of a collector by name.
func Scrape(t *testing.T, c prometheus.Collector) map[string]*dto.MetricFamily {
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

// FillWithUniqueValues sets each number, duration and string in v to a unique value, and adds an entry to the map
// valueByField for each of them. The key of the entry is the path of the field. The value is the text that a collector
// must output for the field. *lastUsed is the last number that FillWithUniqueValues has used.
func FillWithUniqueValues(v reflect.Value, path string, lastUsed *int64, valueByField map[string]string) {
	switch {
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			FillWithUniqueValues(v.Field(i), path+"."+v.Type().Field(i).Name, lastUsed, valueByField)
		}
		return
	case v.Kind() == reflect.Array:
		for i := range v.Len() {
			FillWithUniqueValues(v.Index(i), fmt.Sprintf("%s[%d]", path, i), lastUsed, valueByField)
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		FillWithUniqueValues(v.Elem(), path, lastUsed, valueByField)
		return
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		FillWithUniqueValues(v.Index(0), path+"[0]", lastUsed, valueByField)
		return
	}
	*lastUsed++
	switch {
	case v.Type() == reflect.TypeFor[time.Duration]():
		v.SetInt(*lastUsed * int64(time.Second))
		valueByField[path] = fmt.Sprint(float64(*lastUsed))
	case v.CanUint():
		v.SetUint(uint64(*lastUsed))
		valueByField[path] = fmt.Sprint(float64(*lastUsed))
	case v.CanInt():
		v.SetInt(*lastUsed)
		valueByField[path] = fmt.Sprint(float64(*lastUsed))
	case v.Kind() == reflect.String:
		v.SetString(fmt.Sprint("text ", *lastUsed))
		valueByField[path] = v.String()
	case v.Kind() == reflect.Bool: // tested separately
	default:
		panic("Fill: " + path + " is of a kind that this test does not know: " + v.Kind().String())
	}
}

func countMetricAndLabelValues(families map[string]*dto.MetricFamily) map[string]int {
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
			default: // one of the values is 0
				values[fmt.Sprint(m.Gauge.GetValue()+m.Counter.GetValue())]++
			}
		}
	}
	return values
}

// CheckEachValueOnce checks that the collector outputs each value in valueByField exactly once. valueByField is a map
// that FillWithUniqueValues has filled. The test fails if valueByField has fewer than minFields entries.
func CheckEachValueOnce(t *testing.T, c prometheus.Collector, valueByField map[string]string, minFields int) {
	t.Helper()
	got := countMetricAndLabelValues(Scrape(t, c))
	for field, value := range valueByField {
		if got[value] != 1 {
			t.Errorf("%s, which is %s, was told %d times; want once", field, value, got[value])
		}
	}
	if len(valueByField) < minFields {
		t.Errorf("only %d figures were looked for", len(valueByField))
	}
}

// Lint checks that names, units, types and help texts follow the rules of Prometheus and OpenMetrics.
func Lint(t *testing.T, c prometheus.Collector) {
	t.Helper()
	problems, err := testutil.CollectAndLint(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for name := range Scrape(t, c) {
		if !strings.HasPrefix(name, collector.Namespace) {
			t.Errorf("%s does not begin with %s", name, collector.Namespace)
		}
	}
}

// CheckConstLabels checks a collector's constant labels. Two collectors with different values of one label must fit
// into the same registry, and every metric must have the label. metric is the name of a metric that each collector
// outputs once. A collector with one of the reservedLabels labels must be rejected by a registry.
func CheckConstLabels(t *testing.T, metric string, newCollector func(prometheus.Labels) prometheus.Collector, reservedLabels ...string) {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	for _, name := range []string{"a", "b"} {
		if err := r.Register(newCollector(prometheus.Labels{"name": name})); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := testutil.GatherAndCount(r, metric); err != nil || n != 2 {
		t.Errorf("two in one registry: %d times %s, %v; want 2", n, metric, err)
	}
	for name, f := range Scrape(t, newCollector(prometheus.Labels{"name": "a"})) {
		for _, m := range f.Metric {
			if !slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetName() == "name" && l.GetValue() == "a" }) {
				t.Errorf("%s has the labels %v; want name=a among them", name, m.Label)
			}
		}
	}
	for _, label := range reservedLabels {
		if err := prometheus.NewRegistry().Register(newCollector(prometheus.Labels{label: "x"})); err == nil {
			t.Errorf("%s with the label %q: registered; want an error", metric, label)
		}
	}
}
