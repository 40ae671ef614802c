package histogram

import (
	"testing"
	"time"
)

func TestBucket(t *testing.T) {
	const n = 10
	for d, want := range map[time.Duration]int{
		-time.Second: 0, 0: 0, 1: 0, time.Microsecond: 0, time.Microsecond + 1: 1, 2 * time.Microsecond: 1,
		2*time.Microsecond + 1: 2, 256 * time.Microsecond: 8, 512 * time.Microsecond: 9, time.Hour: 9,
	} {
		if got := BucketIndex(d, n); got != want {
			t.Errorf("%v is in bucket %d; expected %d", d, got, want)
		}
	}
	for i := range n {
		if BucketIndex(BucketUpperBound(i), n) != i {
			t.Errorf("bound %v is not in its bucket %d", BucketUpperBound(i), i)
		}
	}
}

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		buckets []uint64
		q       float64
		want    time.Duration
	}{
		{nil, 0.5, 0},
		{[]uint64{0, 0}, 1, 0},
		{[]uint64{1}, 0, time.Microsecond},
		{[]uint64{1}, 1, time.Microsecond},
		{[]uint64{99, 0, 0, 1}, 0.98, time.Microsecond},
		{[]uint64{99, 0, 0, 1}, 0.99, time.Microsecond},
		{[]uint64{99, 0, 0, 1}, 0.995, 8 * time.Microsecond},
		{[]uint64{99, 0, 0, 1}, 1, 8 * time.Microsecond},
		{[]uint64{0, 5}, 0, 2 * time.Microsecond},
	} {
		if got := QuantileUpperBound(c.buckets, c.q); got != c.want {
			t.Errorf("quantile %v of %v is %v; expected %v", c.q, c.buckets, got, c.want)
		}
	}
}
