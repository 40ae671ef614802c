package admin

import (
	"math"
	"testing"
	"time"

	"github.com/myriad-go/myriad"
)

// The ring has the last ringRoom points in order, none of which is too old.
func TestRing(t *testing.T) {
	var r ring
	begin := time.Unix(1000, 0)
	at := func(i int) time.Time { return begin.Add(time.Duration(i) * time.Second / 2) } // twice as many as fit
	for i := range 3*ringRoom + 7 {
		r.add(point{at: at(i), open: float64(i)})
		if len(r.points) > ringRoom {
			t.Fatalf("%d points are kept, want at most %d", len(r.points), ringRoom)
		}
		last := min(i+1, ringRoom)
		all := r.since(at(i))
		if len(all) != last || all[last-1].open != float64(i) || all[0].open != float64(i-last+1) {
			t.Fatalf("after %d points there are %d, from %v to %v", i+1, len(all), all[0].open, all[len(all)-1].open)
		}
	}
	newest := at(3*ringRoom + 6)
	if all := r.since(newest.Add(ringTime)); len(all) != 1 {
		t.Errorf("of all but one too old points %d are told", len(all))
	}
	if all := r.since(newest.Add(ringTime + 1)); len(all) != 0 {
		t.Errorf("of points that are too old %d are told", len(all))
	}
}

func TestQuantile(t *testing.T) {
	var none, some, beyond myriad.Histogram
	if q := quantile(none, 0.99); !math.IsNaN(q) {
		t.Errorf("of nothing it is %v, want none", q)
	}
	some.Count, some.Buckets[0], some.Buckets[10] = 100, 98, 2
	if q := quantile(some, 0.98); q != 1e-6 {
		t.Errorf("98 of 100 are at most %v s, want 1 µs", q)
	}
	if q := quantile(some, 0.99); q != 1024e-6 {
		t.Errorf("p99 is %v s, want 1.024 ms", q)
	}
	beyond.Count, beyond.Buckets[myriad.Buckets-1] = 1, 1
	if q := quantile(beyond, 0.5); q < 8 || math.IsInf(q, 0) {
		t.Errorf("of one beyond all bounds it is %v s", q)
	}
}

// A counter that shrank, because a worker process was killed, has not grown.
func TestShrunk(t *testing.T) {
	if r := perSecond(10, 4, time.Second); r != 0 {
		t.Errorf("a second: %v, want 0", r)
	}
	if r := perSecond(10, 40, 10*time.Second); r != 3 {
		t.Errorf("a second: %v, want 3", r)
	}
	var before, now myriad.Histogram
	before.Buckets[3], now.Buckets[3], now.Buckets[5] = 7, 4, 2
	if h := grown(before, now); h.Count != 2 || h.Buckets[3] != 0 || h.Buckets[5] != 2 {
		t.Errorf("it has got %+v", h)
	}
}
