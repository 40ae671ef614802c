package doctor

import (
	"math"
	"math/bits"
)

// Arithmetic saturates, because Facts can come from anywhere and some settings have the largest possible value.

func subtractDownToZero(a, b int64) int64 {
	switch {
	case b < 0:
		return saturatingAdd(a, -max(b, -math.MaxInt64))
	case a <= b:
		return 0
	}
	return a - b
}

// saturatingAdd returns a+b, but at most Unlimited.
func saturatingAdd(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return Unlimited
	}
	return a + b
}

// saturatingMul returns a*b, but at most Unlimited. a and b must be non-negative.
func saturatingMul(a, b int64) int64 { return saturatingMulDiv(a, b, 1) }

// saturatingMulDiv returns a*b/c, but at most Unlimited. a and b must be non-negative. c must be positive.
func saturatingMulDiv(a, b, c int64) int64 {
	high, low := bits.Mul64(uint64(max(a, 0)), uint64(max(b, 0)))
	if high >= uint64(c) {
		return Unlimited
	}
	quotient, _ := bits.Div64(high, low, uint64(c))
	return int64(min(quotient, math.MaxInt64))
}

func ceilDiv(a, b int64) int64 {
	if a <= 0 {
		return 0
	}
	return (a-1)/b + 1
}

// addEighthAndRoundUp returns 9/8 of n, rounded up to a number with few digits. Rounding adds at most 2 %.
func addEighthAndRoundUp(n int64) int64 {
	n = saturatingAdd(n, n/8)
	if n > math.MaxInt64/2 {
		return Unlimited
	}
	step := int64(1)
	for step*128 <= n {
		step *= 2
	}
	return ceilDiv(n, step) * step
}

// largestFittingConns returns the largest number of connections for which fits returns true. It returns Unlimited if
// fits(maxConnections) is true. If fits returns false for a number, it must return false for all larger numbers.
func largestFittingConns(fits func(connections int64) bool) int64 {
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
