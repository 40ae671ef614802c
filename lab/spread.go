package lab

import (
	"fmt"
	"math"
	"slices"
)

// What is printed as ± is a confidence interval of 95 %: how far from the median of the
// rounds the median of endless rounds may lie. So two runs of the same scenario agree
// when their medians are no further apart than both ± together.
//
// From 6 rounds on it is the interval between order statistics, which assumes nothing of
// how values are distributed (W. R. Thompson, "On confidence ranges for the median",
// Annals of Mathematical Statistics 7, 1936; benchstat has the same). No such interval of
// 95 % exists for fewer rounds. For those the distance between the smallest and the
// largest value is multiplied by a factor of E. Lord, "The use of range in place of
// standard deviation in the t-test", Biometrika 34, 1947, which supposes that values are
// normal. It is larger than one would like, and has to be: three values say little of
// what the next three will be. One round has no ±: what a run does from second to second
// says nothing of what another run would do.
//
// TestSpreadAgrees draws runs from distributions, wide and narrow ones, and counts how
// many agree.

// rangeFactors are by the number of values: multiplied by their range they are half a
// confidence interval of 95 %.
var rangeFactors = map[int]float64{2: 6.353, 3: 1.304, 4: 0.717, 5: 0.507}

// margin returns the ± of the median of the values, in their unit, and false when there
// are fewer than two, or it is infinite: some are never.
func margin(values []float64) (float64, bool) {
	n := len(values)
	if n < 2 {
		return 0, false
	}
	sorted := slices.Sorted(slices.Values(values))
	if factor, ok := rangeFactors[n]; ok {
		return finite(factor * (sorted[n-1] - sorted[0]))
	}
	middle, _ := median(sorted)
	k := outermost(n)
	return finite(max(middle-sorted[k], sorted[n-1-k]-middle))
}

// finite is a value, and false where it is none that can be written.
func finite(v float64) (float64, bool) {
	if math.IsInf(v, 0) || math.IsNaN(v) {
		return 0, false
	}
	return v, true
}

// outermost is how many of n values, from 6 on, may be left out at each end so that the
// rest has the median between its ends in 95 of 100 cases: each value is below the median
// as often as a coin falls on one side.
func outermost(n int) int {
	const missed = 0.05
	logFactorial := func(k int) float64 {
		v, _ := math.Lgamma(float64(k) + 1)
		return v
	}
	for k, below := 0, 0.0; ; k++ {
		// That k of n coins fall so.
		below += math.Exp(logFactorial(n) - logFactorial(k) - logFactorial(n-k) - float64(n)*math.Ln2)
		if 2*below > missed {
			return k - 1
		}
	}
}

// fewRounds are so few that their ± can be larger than what it is of, which then says
// nothing of the value: it is not written.
const fewRounds = 5

// around writes the ± of the median as a part of it, none where there is none.
func around(values []float64) string {
	s, ok := spread(values)
	switch {
	case !ok:
		return none
	case s > 1 && len(values) <= fewRounds:
		return "too few rounds"
	}
	return fmt.Sprintf("±%.1f %%", s*100)
}

// spread returns the ± of the median as a part of it, and false when there are fewer
// than two values or it has no meaning.
func spread(values []float64) (float64, bool) {
	middle, ok := median(values)
	m, ok2 := margin(values)
	if !ok || !ok2 || middle <= 0 {
		return 0, false
	}
	return m / middle, true
}
