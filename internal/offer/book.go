package offer

import (
	"runtime"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// behind is how much later than due a submission counts as late.
	behind = int64(10 * time.Millisecond)
	// longest is the longest time that histograms tell from longer ones, precision their
	// significant digits: 2 are less than 0.8 %.
	longest, precision = int64(73 * time.Minute), 2
)

// book counts the jobs of the warm-up, or those of the window.
type book struct {
	tallies []tally

	mu       sync.Mutex // guards what follows, of submissions
	offered  uint64
	rejected [answers]uint64
	late     uint64
	lateness *hdrhistogram.Histogram
}

// tally is a shard of what is counted where jobs end.
type tally struct {
	mu                                              sync.Mutex
	finished, good, steady, panicked, expired, shed uint64
	sum, most                                       int64 // of the latencies, in ns
	latencies                                       *hdrhistogram.Histogram
	_                                               [128]byte
}

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, longest, precision) }

func newBook() *book {
	b := &book{tallies: make([]tally, 2*runtime.GOMAXPROCS(0)), lateness: newHistogram()}
	for i := range b.tallies {
		b.tallies[i].latencies = newHistogram()
	}
	return b
}

// tally is the shard of a job.
func (b *book) tally(number uint64) *tally { return &b.tallies[number%uint64(len(b.tallies))] }

// offer counts a job that is submitted, late by so much.
func (b *book) offer(late int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.offered++
	_ = b.lateness.RecordValue(min(late, longest))
	if late > behind {
		b.late++
	}
}

func (b *book) reject(a Answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rejected[a]++
}

// accepted is how many jobs the pool has, or has had.
func (b *book) accepted() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.offered
	for _, rejected := range b.rejected {
		n -= rejected
	}
	return n
}

// each visits the shards.
func (b *book) each(visit func(*tally)) {
	for i := range b.tallies {
		t := &b.tallies[i]
		t.mu.Lock()
		visit(t)
		t.mu.Unlock()
	}
}

// ended is how many jobs have ended.
func (b *book) ended() (n uint64) {
	b.each(func(t *tally) { n += t.finished + t.expired + t.shed })
	return n
}

// steady is how many jobs were good and have ended within the window.
func (b *book) steady() (n uint64) {
	b.each(func(t *tally) { n += t.steady })
	return n
}

// collect writes what was counted to a Result. The ends are read before the submissions,
// so that never more have ended than were accepted.
func (b *book) collect(r *Result) {
	latencies, sum, most := newHistogram(), int64(0), int64(0)
	b.each(func(t *tally) {
		r.Finished += t.finished
		r.Good += t.good
		r.Steady += t.steady
		r.Panicked += t.panicked
		r.Expired += t.expired
		r.Shed += t.shed
		sum, most = sum+t.sum, max(most, t.most)
		latencies.Merge(t.latencies)
	})
	if r.Finished > 0 {
		quantile := func(q float64) time.Duration {
			return time.Duration(min(latencies.ValueAtQuantile(q), most))
		}
		r.P50, r.P99, r.P999, r.Max = quantile(50), quantile(99), quantile(99.9), time.Duration(most)
		r.Mean = time.Duration(sum / int64(r.Finished))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, n := range b.rejected {
		if n > 0 {
			if r.Causes == nil {
				r.Causes = map[string]uint64{}
			}
			r.Causes[causes[i]] = n
			r.Rejected += n
		}
	}
	r.Offered, r.Late = b.offered, b.late
	r.LateP99 = time.Duration(b.lateness.ValueAtQuantile(99))
	r.Accepted = r.Offered - r.Rejected
	r.Unfinished = r.Accepted - r.Finished - r.Expired - r.Shed
}
