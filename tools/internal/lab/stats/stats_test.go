package stats

import (
	"math"
	"testing"
)

func TestMedianAndMargin(t *testing.T) {
	for _, c := range []struct {
		values         []float64
		median, margin float64
		known          bool
	}{
		{nil, 0, 0, false},
		{[]float64{3}, 3, 0, false},
		{[]float64{3, 1}, 2, 12.706, true},
		{[]float64{1, 9, 5}, 5, 10.432, true},
		{[]float64{1, 2, 3, 4}, 2.5, 2.151, true},
		{[]float64{1, 2, 3, 4, 5}, 3, 2.028, true},
		{[]float64{1, 2, 3, 4, 5, 6}, 3.5, 2.5, true},
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8}, 4.5, 3.5, true},
		{[]float64{1, 2, Never}, 2, 0, false},
	} {
		m, _ := Median(c.values)
		margin, known := MedianConfidenceMargin(c.values)
		if m != c.median || math.Abs(margin-c.margin) > 1e-9 || known != c.known {
			t.Errorf("%v: got %v ± %v, %v, want %v ± %v, %v", c.values, m, margin, known, c.median, c.margin, c.known)
		}
	}
	if m, _ := Median([]float64{1, Never}); !IsNeverLatency(m) {
		t.Errorf("the median of 1 and never is %v, want never", m)
	}
}

func TestRatios(t *testing.T) {
	if got := RatiosOfSameRounds(map[int]float64{1: 4, 2: 9, 3: 1}, map[int]float64{1: 2, 2: 0}); len(got) != 1 || got[0] != 2 {
		t.Errorf("ratios: %v, want 2 of the first round only", got)
	}
}
