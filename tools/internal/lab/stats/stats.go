// Package stats computes the median of repeated rounds and its confidence interval.
//
// With 6 or more rounds, the 95 % interval lies between order statistics, without any assumption about the
// distribution. It is computed by golang.org/x/perf/benchmath, as in benchstat. With 2 to 5 rounds, no such interval
// exists. The margin (±) is then the range of the values times a factor from E. Lord, "The use of range in place of
// standard deviation in the t-test", Biometrika 34, 1947, which assumes normally distributed values. Such an interval
// is wide. One round has no interval.
package stats

import (
	"math"
	"slices"

	"golang.org/x/perf/benchmath"
)

// Never is the latency of a job that never ran. It is larger than any other latency. It is a finite number, because
// JSON cannot represent infinity.
const Never = math.MaxFloat64

// IsNeverLatency reports whether v is Never. It also returns true for the mean of Never and a smaller latency, because
// Median computes such means.
func IsNeverLatency(v float64) bool { return v >= Never/4 }

const confidence = 0.95

// rangeFactors maps the number of values in a sample to a factor. The factor times the range (maximum - minimum) is
// half the width of the 95 % confidence interval.
var rangeFactors = map[int]float64{2: 6.353, 3: 1.304, 4: 0.717, 5: 0.507}

// Median returns the median of the values. For an even number of values, it is the mean of the two middle ones. Without
// values, Median returns false.
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

// MedianConfidenceMargin returns the margin (±) of the median's 95 % confidence interval, in the unit of the values. It
// returns false if there are fewer than two values or if a value is Never.
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

// RelativeMedianMargin returns MedianConfidenceMargin as a fraction of the median. It returns false if there is no
// margin or if the median is not positive.
func RelativeMedianMargin(values []float64) (float64, bool) {
	middle, ok := Median(values)
	m, ok2 := MedianConfidenceMargin(values)
	if !ok || !ok2 || middle <= 0 {
		return 0, false
	}
	return m / middle, true
}

// RatiosOfSameRounds returns the ratio of a value to its base value for each round. Both maps have the number of the
// round as their key. A round is skipped if its base value is missing or not positive, or if one of its two values is
// Never.
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
