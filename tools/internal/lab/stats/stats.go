// Package stats has the median of repeated rounds and its confidence interval.
//
// From 6 rounds on the interval of 95 % is that between order statistics, which assumes
// nothing of how values are distributed: it is golang.org/x/perf/benchmath's, as benchstat has
// it. No such interval exists for fewer rounds. For those the range of the values is multiplied by a factor of E. Lord, "The use of
// range in place of standard deviation in the t-test", Biometrika 34, 1947, which supposes
// that values are normal. It is larger than one would like, and has to be: three values say
// little of what the next three will be. One round has no interval.
package stats

import (
	"math"
	"slices"

	"golang.org/x/perf/benchmath"
)

// Never is the latency of jobs that never ran: larger than any other, and still valid in JSON.
const Never = math.MaxFloat64

// IsNeverLatency reports whether a value is Never, or the mean of it and another one.
func IsNeverLatency(v float64) bool { return v >= Never/4 }

const confidence = 0.95

// rangeFactors, by the number of values, multiplied by their range give half a confidence interval
// of 95 %.
var rangeFactors = map[int]float64{2: 6.353, 3: 1.304, 4: 0.717, 5: 0.507}

// Median returns the median of the values, the mean of the two middle ones if their number is even,
// and false if there are none.
func Median(values []float64) (float64, bool) {
	if len(values) == 0 {
		return 0, false
	}
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half], true
	}
	return sorted[half-1]/2 + sorted[half]/2, true
}

// MedianConfidenceMargin returns the ± of the median, in the unit of the values, and false if there are fewer
// than two values or one is Never.
func MedianConfidenceMargin(values []float64) (float64, bool) {
	n := len(values)
	if n < 2 || slices.ContainsFunc(values, IsNeverLatency) {
		return 0, false
	}
	if factor, ok := rangeFactors[n]; ok {
		return factor * (slices.Max(values) - slices.Min(values)), true
	}
	s := benchmath.AssumeNothing.Summary(newSample(values), confidence)
	return max(s.Center-s.Lo, s.Hi-s.Center), true
}

// RelativeMedianMargin returns the ± of the median as a fraction of it, and false if that is undefined.
func RelativeMedianMargin(values []float64) (float64, bool) {
	middle, ok := Median(values)
	m, ok2 := MedianConfidenceMargin(values)
	if !ok || !ok2 || middle <= 0 {
		return 0, false
	}
	return m / middle, true
}

// RatiosOfSameRounds divides each value by the base's value of the same round. Rounds without either
// value, or with a base that is not positive, are skipped.
func RatiosOfSameRounds(byRound, base map[int]float64) (found []float64) {
	for round, v := range byRound {
		if b, ok := base[round]; ok && b > 0 && !IsNeverLatency(b) && !IsNeverLatency(v) {
			found = append(found, v/b)
		}
	}
	return found
}

func newSample(values []float64) *benchmath.Sample {
	return benchmath.NewSample(slices.Clone(values), &benchmath.DefaultThresholds)
}
