package offer

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// tally is one shard of what is counted where jobs end. It is atomic, and on cache
// lines of its own.
type tally struct {
	finished, good, panicked, expired, shed atomic.Uint64
	steady                                  atomic.Uint64 // good, and ended within the window
	counted                                 atomic.Uint64 // finished, and in all that is counted of that
	sum, most                               atomic.Int64  // of the latencies, in ns
	latencies                               histogram
	_                                       [128]byte
}

// A histogram has linear ranges of 2^7 buckets, each double as wide as the one
// before, so that a bucket is less than 0.8 % wide (the layout of HdrHistogram,
// G. Tene). From 73 minutes on all is in the last.
const (
	fine    = 7
	longest = 42
	buckets = (longest - fine + 1) << fine
)

// histogram counts times. It is atomic.
type histogram [buckets]atomic.Uint64

// add counts a time in ns.
func (h *histogram) add(ns int64) { h[bucket(ns)].Add(1) }

// counts are what histograms have counted together.
type counts [buckets]uint64

// add adds what a histogram has counted, and returns how much that is.
func (c *counts) add(h *histogram) (added uint64) {
	for b := range h {
		n := h[b].Load()
		c[b] += n
		added += n
	}
	return added
}

// quantile is the time in ns that a part of so many counted ones are not above.
func (c *counts) quantile(q float64, counted uint64) int64 {
	if counted == 0 {
		return 0
	}
	rank := uint64(q * float64(counted-1))
	for b, n := range c {
		if rank < n {
			return bound(b)
		}
		rank -= n
	}
	return bound(buckets - 1)
}

// bucket is where a time is counted.
func bucket(ns int64) int {
	v := uint64(max(ns, 0))
	shift := max(bits.Len64(v)-fine-1, 0)
	return min(shift<<fine+int(v>>shift), buckets-1)
}

// bound is the greatest time that is counted in a bucket.
func bound(b int) int64 {
	shift := max(b>>fine-1, 0)
	return int64(b-shift<<fine+1)<<shift - 1
}

// finish counts a job that has run, and ended within the window or not. The counts in the order in which they are
// written and read are never fewer than those that they are parts of.
func (t *tally) finish(latency, deadline int64, within, panicked bool) {
	t.finished.Add(1)
	t.latencies.add(latency)
	t.sum.Add(latency)
	for most := t.most.Load(); latency > most; most = t.most.Load() {
		if t.most.CompareAndSwap(most, latency) {
			break
		}
	}
	if panicked {
		t.panicked.Add(1)
	}
	if latency <= deadline {
		t.good.Add(1)
		if within {
			t.steady.Add(1)
		}
	}
	t.counted.Add(1)
}

// collect writes what the tallies have counted to a Result.
func collect(tallies []tally, r *Result) {
	var latencies counts
	var counted uint64
	var sum, most int64
	for i := range tallies {
		t := &tallies[i]
		r.Good += t.good.Load()
		r.Panicked += t.panicked.Load()
		sum += t.sum.Load()
		counted += latencies.add(&t.latencies)
		most = max(most, t.most.Load())
		r.Finished += t.finished.Load()
		r.Expired += t.expired.Load()
		r.Shed += t.shed.Load()
	}
	if counted == 0 {
		return
	}
	r.Max = time.Duration(most)
	r.Mean = time.Duration(sum / int64(counted))
	quantile := func(q float64) time.Duration { return time.Duration(min(latencies.quantile(q, counted), most)) }
	r.P50, r.P99, r.P999 = quantile(0.5), quantile(0.99), quantile(0.999)
}
