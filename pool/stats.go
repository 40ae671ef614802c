package pool

import (
	"math"
	"math/bits"
	"time"
)

// Stats are a pool's counters at one moment. They count since New, but for those
// that say "now". Of jobs that are being submitted or are ending at that moment a
// count may be off by as many.
type Stats struct {
	// Workers is how many workers there are now, Idle how many of them wait
	// for a job, and Limit how many there may be.
	Workers, Idle, Limit int
	// Queued is how many jobs wait for a worker now, Running how many run.
	Queued, Running int
	// Overloaded says that jobs have waited too long, so that the newest run
	// first and old ones are shed.
	Overloaded bool

	// Accepted counts jobs that were accepted: those that have finished,
	// expired, been shed and been dropped, and those that wait or run now.
	Accepted uint64
	// Finished counts jobs that have run, Panicked those of them that have
	// panicked.
	Finished, Panicked uint64
	// Expired counts jobs whose context ended while they waited, Shed those
	// that were shed, and Dropped those that Close has dropped.
	Expired, Shed, Dropped uint64
	// Full, Late and Closed count jobs that were not accepted: the queue was
	// full; their context had ended, also while they waited for room; the pool
	// was closed.
	Full, Late, Closed uint64

	// Wait is how long jobs have waited until they ran, and Service how long
	// they have run. Quick jobs are run in batches: for those of a batch the
	// wait is that of the first, and the service the mean.
	Wait, Service Histogram
}

// Buckets is how many buckets a Histogram has.
const Buckets = 36

// Histogram counts durations by size.
type Histogram struct {
	// Count is how many durations, Sum all of them together.
	Count uint64
	Sum   time.Duration
	// Buckets has in place i the durations that are at most Bound(i) and more
	// than the bound before. The last one has all longer ones, too.
	Buckets [Buckets]uint64
}

// Bound is the upper bound of a bucket: a microsecond for the first, and double
// the one before for each other.
func Bound(i int) time.Duration { return time.Microsecond << i }

// add counts a duration as often as n says.
func (h *Histogram) add(d time.Duration, n uint64) {
	h.Count += n
	h.Sum += d * time.Duration(n)
	h.Buckets[bucket(d)] += n
}

// bucket is where a duration is counted.
func bucket(d time.Duration) int {
	if d <= time.Microsecond {
		return 0
	}
	return min(bits.Len64(uint64((d-1)/time.Microsecond)), Buckets-1)
}

// merge adds another's counts.
func (h *Histogram) merge(o *Histogram) {
	h.Count += o.Count
	h.Sum += o.Sum
	for i, n := range o.Buckets {
		h.Buckets[i] += n
	}
}

// Mean is the mean of the durations, 0 for none.
func (h *Histogram) Mean() time.Duration {
	if h.Count == 0 {
		return 0
	}
	return h.Sum / time.Duration(h.Count)
}

// Quantile is an upper bound of what a share q of the durations is at most: at
// most twice as much as it is. It is 0 for none.
func (h *Histogram) Quantile(q float64) time.Duration {
	rank := max(1, uint64(math.Ceil(q*float64(h.Count))))
	for i, n := range h.Buckets {
		if rank <= n {
			return Bound(i)
		}
		rank -= n
	}
	return 0
}
