package admin

import (
	"math"
	"testing"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

func TestQuantile(t *testing.T) {
	var none, some, beyond tcp.Histogram
	if q := quantileSecondsOrNaN(none, 0.99); !math.IsNaN(q) {
		t.Errorf("of nothing it is %v, want none", q)
	}
	some.Count, some.Buckets[0], some.Buckets[10] = 100, 98, 2
	if q := quantileSecondsOrNaN(some, 0.98); q != 1e-6 {
		t.Errorf("98 of 100 are at most %v s, want 1 µs", q)
	}
	if q := quantileSecondsOrNaN(some, 0.99); q != 1024e-6 {
		t.Errorf("p99 is %v s, want 1.024 ms", q)
	}
	beyond.Count, beyond.Buckets[tcp.Buckets-1] = 1, 1
	if q := quantileSecondsOrNaN(beyond, 0.5); q < 8 || math.IsInf(q, 0) {
		t.Errorf("of one beyond all bounds it is %v s", q)
	}
}

// A counter that shrank, because a worker process was killed, has not grown.
func TestShrunk(t *testing.T) {
	if r := growthPerSecondOrNaN(10, 4, time.Second); r != 0 {
		t.Errorf("a second: %v, want 0", r)
	}
	if r := growthPerSecondOrNaN(10, 40, 10*time.Second); r != 3 {
		t.Errorf("a second: %v, want 3", r)
	}
	var before, now tcp.Histogram
	before.Buckets[3], now.Buckets[3], now.Buckets[5] = 7, 4, 2
	if h := histogramGrowth(before, now); h.Count != 2 || h.Buckets[3] != 0 || h.Buckets[5] != 2 {
		t.Errorf("it has got %+v", h)
	}
}
