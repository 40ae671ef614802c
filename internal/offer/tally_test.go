package offer

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"
)

// TestBuckets has each latency in the bucket whose bounds it is within, and those
// narrow.
func TestBuckets(t *testing.T) {
	before := int64(-1)
	for b := range buckets {
		least, most := before+1, bound(b)
		if bucket(least) != b || bucket(most) != b {
			t.Fatalf("bucket %d: %d and %d are in %d and %d", b, least, most, bucket(least), bucket(most))
		}
		if width := most - least; width > least/128 {
			t.Fatalf("bucket %d is %d to %d, wider than one in 128", b, least, most)
		}
		before = most
	}
	if last := time.Duration(before); last < maxTime {
		t.Errorf("the last bucket is up to %v, want %v at least", last, maxTime)
	}
	if bucket(-1) != 0 || bucket(math.MaxInt64) != buckets-1 {
		t.Errorf("out of range: %d and %d", bucket(-1), bucket(math.MaxInt64))
	}
}

// TestEndedIsCounted has a job that has ended be in all that is counted of it: the
// result is made as soon as the last one has.
func TestEndedIsCounted(t *testing.T) {
	b := book{tallies: make([]tally, 1)}
	for n := range uint64(5000) {
		go b.tallies[0].finish(1, 1, true, true)
		for b.ended() == n {
			runtime.Gosched()
		}
		if of := &b.tallies[0]; of.sum.Load() != int64(n+1) || of.panicked.Load() != n+1 || of.steady.Load() != n+1 {
			t.Fatalf("%d have ended: latencies of %d, %d panicked, %d steady", n+1, of.sum.Load(), of.panicked.Load(), of.steady.Load())
		}
	}
}

// TestQuantiles compares with sorted latencies.
func TestQuantiles(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	tallies := make([]tally, 4)
	var all []int64
	var sum int64
	for i := range 10_000 {
		ns := int64(math.Exp(random.Float64() * math.Log(float64(time.Minute))))
		all, sum = append(all, ns), sum+ns
		tallies[i%4].finish(ns, int64(time.Millisecond), true, i%100 == 0)
	}
	slices.Sort(all)
	var r Result
	collect(tallies, &r)
	for q, got := range map[float64]time.Duration{0.5: r.P50, 0.99: r.P99, 0.999: r.P999} {
		want := all[int(q*float64(len(all)-1))]
		if int64(got) < want || int64(got) > want+want/128 {
			t.Errorf("quantile %v is %d, want %d", q, got, want)
		}
	}
	good, _ := slices.BinarySearch(all, int64(time.Millisecond)+1)
	if int64(r.Max) != all[len(all)-1] || int64(r.Mean) != sum/int64(len(all)) ||
		r.Finished != 10_000 || r.Panicked != 100 || r.Good != uint64(good) {
		t.Errorf("got %+v, want max %d, mean %d, %d good", r, all[len(all)-1], sum/int64(len(all)), good)
	}
}
