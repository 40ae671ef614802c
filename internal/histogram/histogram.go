// Package histogram counts durations in buckets whose upper bounds are 1, 2, 4, 8 µs and so on. The result is coarse,
// but recording costs one addition. Callers own the buckets and may update them atomically.
package histogram

import (
	"math"
	"math/bits"
	"time"
)

// BucketIndex returns the index of the bucket for d, out of bucketCount buckets. Bucket 0 is for durations up to 1 µs.
// The upper bound doubles from each bucket to the next. The last bucket also counts all longer durations.
func BucketIndex(d time.Duration, bucketCount int) int {
	if d <= time.Microsecond {
		return 0
	}
	return min(bits.Len64(uint64((d-1)/time.Microsecond)), bucketCount-1)
}

func BucketUpperBound(bucket int) time.Duration { return time.Microsecond << bucket }

// QuantileUpperBound returns the upper bound of the bucket that contains the q-quantile, for q from 0 to 1. If the
// quantile is in the last bucket, its true value may exceed the result, because the last bucket has no upper bound. If
// all buckets are 0, the result is 0.
func QuantileUpperBound[T int64 | uint64](buckets []T, q float64) time.Duration {
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
			return BucketUpperBound(i)
		}
		rank -= n
	}
	return BucketUpperBound(len(buckets) - 1)
}
