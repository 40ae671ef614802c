package doctor

import (
	"math"
	"math/bits"
	"strconv"
	"strings"

	"github.com/myriad-go/myriad/internal/format"
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

// withHeadroom is a value for a setting of which n is needed: an eighth more, rounded up
// to a number that is easily read.
func withHeadroom(n int64) int64 {
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

// number reads a setting that is one number.
func (x *exam) number(name string) (int64, bool) {
	n, ok := x.numbers(name, 1)
	if !ok {
		return 0, false
	}
	return n[0], true
}

// numbers reads a setting of so many numbers, none below zero; false if it is not
// there or something else.
func (x *exam) numbers(name string, count int) ([]int64, bool) {
	fields := strings.Fields(x.f.Sysctls[name])
	if len(fields) != count {
		return nil, false
	}
	list := make([]int64, count)
	for i, field := range fields {
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return nil, false
		}
		list[i] = int64(min(n, math.MaxInt64))
	}
	return list, true
}

// sysctl is the change of a setting.
func (x *exam) sysctl(name, to string) Change {
	return Change{Kind: Sysctl, Name: name, From: x.f.Sysctls[name], To: to}
}

// limited writes a limit, of which -1 is none.
func limited(n int64) string {
	if n < 0 || n == Unlimited {
		return "none"
	}
	return format.Count(n)
}
