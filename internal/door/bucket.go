package door

import (
	"sync"
	"time"
)

// A token in the bucket is so many units, so that a nanosecond brings a whole
// number of them, the rate, and none are lost by rounding.
const token = int64(time.Second)

// maxRate keeps the sums of units in 64 bits.
const maxRate = 1e9

// setBack is how far a clock goes back before it is followed. A thread that is
// late by so much does not come; if it does, the cost is one burst.
const setBack = time.Minute

// bucket is a token bucket, as in RFC 2697 (the one called C there). Full, it
// holds a second's worth.
type bucket struct {
	rate int64

	mu    sync.Mutex
	units int64
	last  time.Duration // when units was right
}

func newBucket(rate int) *bucket {
	r := int64(min(rate, maxRate))
	return &bucket{rate: r, units: r * token}
}

// take takes a token, or says when there is one.
func (b *bucket) take(now time.Duration) (wait time.Duration) {
	now = max(now, 0) // so that no difference overflows
	b.mu.Lock()
	defer b.mu.Unlock()
	switch passed := now - b.last; {
	case passed > 0:
		b.units = min(b.units+b.rate*int64(min(passed, time.Second)), b.rate*token)
		b.last = now
	case passed < -setBack:
		b.last = now
	}
	if b.units >= token {
		b.units -= token
		return 0
	}
	return time.Duration((token - b.units + b.rate - 1) / b.rate)
}
