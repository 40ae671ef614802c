package doctor

import (
	"math"
	"math/bits"
)

// This file has arithmetic that neither overflows nor goes below zero: Facts may
// come from anywhere, and some settings are the largest number there is.

// satSub is a-b, 0 at least.
func satSub(a, b int64) int64 {
	switch {
	case b < 0:
		return satAdd(a, -max(b, -math.MaxInt64))
	case a <= b:
		return 0
	}
	return a - b
}

// satAdd is a+b, Unlimited at most.
func satAdd(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return Unlimited
	}
	return a + b
}

// satMul is a*b, Unlimited at most. Neither is negative.
func satMul(a, b int64) int64 { return mulDiv(a, b, 1) }

// mulDiv is a*b/c, Unlimited at most. None is negative, and c is not zero.
func mulDiv(a, b, c int64) int64 {
	high, low := bits.Mul64(uint64(max(a, 0)), uint64(max(b, 0)))
	if high >= uint64(c) {
		return Unlimited
	}
	quotient, _ := bits.Div64(high, low, uint64(c))
	return int64(min(quotient, math.MaxInt64))
}

// ceilDiv is a/b, rounded up.
func ceilDiv(a, b int64) int64 {
	if a <= 0 {
		return 0
	}
	return (a-1)/b + 1
}

// addHeadroom is a value for a setting of which n is needed: an eighth more, rounded up
// to a number that is easily read.
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

// largestFit is the largest number of connections that fits, if whenever some fit all
// fewer do: 0 if not even one fits, Unlimited if as many fit as a plan can have.
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
