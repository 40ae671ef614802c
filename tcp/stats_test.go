package tcp

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

type countersOnlyEngine struct {
	engine.Engine
	counts engine.Counts
}

func (e countersOnlyEngine) Loops() int              { return 3 }
func (e countersOnlyEngine) Counters() engine.Counts { return e.counts }

// countInts counts each integer in the fields of a struct.
func countInts(v reflect.Value, times map[int64]int) {
	switch v.Kind() {
	case reflect.Struct:
		for _, field := range v.Fields() {
			countInts(field, times)
		}
	case reflect.Array:
		for i := range v.Len() {
			countInts(v.Index(i), times)
		}
	case reflect.Int64:
		times[v.Int()]++
	}
}

// Each counter of the engines, which have different values here, appears in exactly one field of Stats.
func TestStatsHasEveryCounter(t *testing.T) {
	var n engine.Counts
	for i := range n {
		n[i] = 1_000_003 * int64(i+1)
	}
	times := map[int64]int{}
	stats := (&Server{engine: countersOnlyEngine{counts: n}, model: "counting"}).Stats()
	countInts(reflect.ValueOf(stats), times)
	for i, v := range n {
		want := 1
		if engine.Counter(i) == engine.AcceptPausedCount {
			want = 0 // AcceptingPaused is no number
		}
		expectEqual(t, fmt.Sprintf("fields of Stats that have counter %d", i), times[v], want)
	}
	if stats.Loops != 3 || stats.Model != "counting" {
		t.Errorf("Loops is %d and Model %q", stats.Loops, stats.Model)
	}
	for name, h := range map[string]Histogram{"HandlerTime": stats.HandlerTime, "Lag": stats.Lag} {
		var sum int64
		for _, b := range h.Buckets {
			sum += b
		}
		expectEqual(t, name+".Count", h.Count, sum)
	}
}

func TestHistogramBounds(t *testing.T) {
	var h Histogram
	if h.Bound(0) != time.Microsecond || h.Bound(3) != 8*time.Microsecond || h.Bound(Buckets-1) != Never {
		t.Errorf("bounds are %v, %v, %v", h.Bound(0), h.Bound(3), h.Bound(Buckets-1))
	}
	for i, d := range map[int]time.Duration{0: time.Microsecond, 1: 1500 * time.Nanosecond, 10: 1024 * time.Microsecond, Buckets - 1: time.Hour} {
		var c engine.Counters
		c.CountHandlerCall(d)
		var n engine.Counts
		c.AddToWithMaxAge(&n)
		if got := toHistogram(n.HandlerCallTimes()); got.Buckets[i] != 1 || got.Count != 1 || got.Sum != d {
			t.Errorf("%v is not in bucket %d: %+v", d, i, got)
		}
	}
}
