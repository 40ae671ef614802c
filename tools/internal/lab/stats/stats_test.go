package stats

import (
	"math"
	"math/rand/v2"
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
		{[]float64{1, 2, 3, 4, 5, 6}, 3.5, 2.5, true},
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

// Two sets of rounds of the same distribution agree within both ± together, at least in 95
// of 100 cases, for narrow and for wide distributions.
func TestMarginsAgree(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for name, draw := range map[string]func() float64{
		"normal":    func() float64 { return 100 + random.NormFloat64() },
		"lognormal": func() float64 { return math.Exp(random.NormFloat64() / 4) },
	} {
		for _, rounds := range []int{2, 3, 5, 8} {
			const trials = 1000
			agree := 0
			for range trials {
				var a, b []float64
				for range rounds {
					a, b = append(a, draw()), append(b, draw())
				}
				x, _ := Median(a)
				y, _ := Median(b)
				left, _ := MedianConfidenceMargin(a)
				right, _ := MedianConfidenceMargin(b)
				if math.Abs(x-y) <= left+right {
					agree++
				}
			}
			if agree < trials*95/100 {
				t.Errorf("%s, %d rounds: %d of %d agree, want 95 %%", name, rounds, agree, trials)
			}
		}
	}
}

func TestRatios(t *testing.T) {
	if got := RatiosOfSameRounds(map[int]float64{1: 4, 2: 9, 3: 1}, map[int]float64{1: 2, 2: 0}); len(got) != 1 || got[0] != 2 {
		t.Errorf("ratios: %v, want 2 of the first round only", got)
	}
}
