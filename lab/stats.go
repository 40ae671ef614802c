package lab

import "slices"

// median returns the middle of the values, the mean of the two middle ones
// when their number is even, and false when there are none.
func median(values []float64) (float64, bool) {
	if len(values) == 0 {
		return 0, false
	}
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half], true
	}
	return (sorted[half-1] + sorted[half]) / 2, true
}

// ratios divides each value by the base's value of the same round. A round
// that lacks either of them, or whose base is not positive, gives none.
func ratios(byRound, base map[int]float64) []float64 {
	var found []float64
	for round, value := range byRound {
		if b, ok := base[round]; ok && b > 0 {
			found = append(found, value/b)
		}
	}
	return found
}
