// Package histogram counts durations in buckets that are powers of two: coarse, and as
// cheap as one addition. Who counts keeps the buckets, atomically or not.
package histogram

import (
	"math"
	"math/bits"
	"time"
)

// BucketIndex is the bucket of d among n: the first holds up to a microsecond, each further
// one up to twice as much, and the last everything longer, too.
func BucketIndex(d time.Duration, buckets int) int {
	if d <= time.Microsecond {
		return 0
	}
	return min(bits.Len64(uint64((d-1)/time.Microsecond)), buckets-1)
}

// UpperBound is the upper bound of bucket i.
func UpperBound(bucket int) time.Duration { return time.Microsecond << bucket }

// Quantile is an upper bound of the duration that a share q of those counted do not
// exceed: at most twice as much, unless that is in the last bucket. It is 0 for none.
func Quantile[T int64 | uint64](buckets []T, q float64) time.Duration {
	var count T
	for _, n := range buckets {
		count += n
	}
	if count == 0 {
		return 0
	}
	rank := max(1, T(math.Ceil(q*float64(count))))
	for i, n := range buckets {
		if rank <= n {
			return UpperBound(i)
		}
		rank -= n
	}
	return UpperBound(len(buckets) - 1)
}
