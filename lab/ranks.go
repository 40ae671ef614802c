package lab

import (
	"math"
	"slices"
)

// rankTest says how likely it is that two lists of values differ in their ranks by as
// much as they do, or more, if both are of the same distribution, whatever that is: the
// two-sided p of the test of H. B. Mann and D. R. Whitney, "On a test of whether one of
// two random variables is stochastically larger than the other", Annals of Mathematical
// Statistics 18, 1947. It is 1 where a list is empty. Up to exactRanks values are exact:
// all ways to divide them are counted, equal ones having the mean of their ranks. For
// more it is the normal approximation, corrected for equal values and for continuity.
func rankTest(a, b []float64) float64 {
	if len(a) == 0 || len(b) == 0 {
		return 1
	}
	ranks := ranksOf(slices.Concat(a, b))
	sum := 0
	for _, r := range ranks[:len(a)] {
		sum += r
	}
	if len(ranks) <= exactRanks {
		return exactP(ranks, len(a), sum)
	}
	return approximateP(ranks, len(a), sum)
}

// exactRanks is up to how many values are counted exactly.
const exactRanks = 50

// leastP is the least p that lists of so many values can have: all of one list below all of
// the other.
func leastP(n, m int) float64 {
	ways := 1.0
	for i := range min(n, m) {
		ways *= float64(n+m-i) / float64(i+1)
	}
	return min(2/ways, 1)
}

// ranksOf are twice the ranks of values, from 2 on, so that the mean of those of equal
// values is whole.
func ranksOf(values []float64) []int {
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		switch {
		case values[i] < values[j]:
			return -1
		case values[i] > values[j]:
			return 1
		}
		return 0
	})
	ranks := make([]int, len(values))
	for from := 0; from < len(order); {
		to := from + 1
		for to < len(order) && values[order[to]] == values[order[from]] {
			to++
		}
		for _, i := range order[from:to] {
			ranks[i] = from + 1 + to // ranks from+1 to to, their mean, twice
		}
		from = to
	}
	return ranks
}

// exactP counts of all ways to take n of the ranks those whose sum is at most, and at
// least, as high.
func exactP(ranks []int, n, sum int) float64 {
	most := 0
	for _, r := range ranks {
		most += r
	}
	ways := make([][]float64, n+1) // by how many are taken, and by their sum
	for i := range ways {
		ways[i] = make([]float64, most+1)
	}
	ways[0][0] = 1
	for _, r := range ranks {
		for k := n; k > 0; k-- {
			for s := most; s >= r; s-- {
				ways[k][s] += ways[k-1][s-r]
			}
		}
	}
	var below, above, all float64
	for s, w := range ways[n] {
		all += w
		if s <= sum {
			below += w
		}
		if s >= sum {
			above += w
		}
	}
	return min(2*min(below, above)/all, 1)
}

func approximateP(ranks []int, n, sum int) float64 {
	all, m := float64(len(ranks)), float64(len(ranks)-n)
	counts := make(map[int]float64)
	for _, r := range ranks {
		counts[r]++
	}
	ties := 0.0
	for _, t := range counts {
		ties += t*t*t - t
	}
	mean := float64(n) * (all + 1) / 2
	deviation := math.Sqrt(float64(n) * m / 12 * (all + 1 - ties/(all*(all-1))))
	off := math.Abs(float64(sum)/2-mean) - 0.5
	if deviation == 0 || off <= 0 {
		return 1
	}
	return math.Erfc(off / deviation / math.Sqrt2)
}
