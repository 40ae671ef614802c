package doctor

import (
	"math"
	"math/bits"
)

// This file has saturating arithmetic: Facts may come from anywhere, and some settings
// are the largest possible number.

// satSub returns a-b, at least 0.
func satSub(a, b int64) int64 {
	switch {
	case b < 0:
		return satAdd(a, -max(b, -math.MaxInt64))
	case a <= b:
		return 0
	}
	return a - b
}

// satAdd returns a+b, at most Unlimited.
func satAdd(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return Unlimited
	}
	return a + b
}

// satMul returns a*b, at most Unlimited. Neither may be negative.
func satMul(a, b int64) int64 { return mulDiv(a, b, 1) }

// mulDiv returns a*b/c, at most Unlimited. None may be negative, nor c zero.
func mulDiv(a, b, c int64) int64 {
	high, low := bits.Mul64(uint64(max(a, 0)), uint64(max(b, 0)))
	if high >= uint64(c) {
		return Unlimited
	}
	quotient, _ := bits.Div64(high, low, uint64(c))
	return int64(min(quotient, math.MaxInt64))
}

// ceilDiv returns a/b, rounded up.
func ceilDiv(a, b int64) int64 {
	if a <= 0 {
		return 0
	}
	return (a-1)/b + 1
}

// addHeadroom returns a value for a setting of which n is needed: an eighth more, rounded up to a
// readable number.
func addHeadroom(n int64) int64 {
	n = satAdd(n, n/8)
	if n > math.MaxInt64/2 {
		return Unlimited
	}
	step := int64(1)
	for step*128 <= n {
		step *= 2
	}
	return ceilDiv(n, step) * step
}

// largestFit returns the largest number of connections for which the monotonic fits is true: 0 if
// not even one fits, Unlimited if the maximum of a plan fits.
func largestFit(fits func(connections int64) bool) int64 {
	low, high := int64(0), int64(maxConnections)
	if fits(high) {
		return Unlimited
	}
	for high-low > 1 {
		if middle := low + (high-low)/2; fits(middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}
