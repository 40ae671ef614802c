package lab

import (
	"math"
	"testing"
)

// counting is n values, from one on.
func counting(from, n int) (values []float64) {
	for i := range n {
		values = append(values, float64(from+i))
	}
	return values
}

// TestRankTestTables has critical values of the usual tables for 5 %, two-sided: U is
// significant, U+1 is not.
func TestRankTestTables(t *testing.T) {
	for _, c := range []struct{ n, m, u int }{
		{4, 4, 0}, {5, 5, 2}, {6, 6, 5}, {7, 7, 8}, {8, 8, 13}, {10, 10, 23}, {12, 12, 37}, {20, 20, 127},
		{3, 5, 0}, {4, 6, 2}, {5, 8, 6}, {7, 10, 14}, {9, 15, 34},
	} {
		for _, more := range []int{0, 1} {
			a, b := withU(c.n, c.m, c.u+more)
			p := rankTest(a, b)
			if significant := p <= 0.05; significant != (more == 0) {
				t.Errorf("%d and %d values with U = %d: p is %v", c.n, c.m, c.u+more, p)
			}
			if again := rankTest(b, a); math.Abs(again-p) > 1e-9 {
				t.Errorf("%d and %d values with U = %d: p is %v one way and %v the other", c.n, c.m, c.u+more, p, again)
			}
		}
	}
}

// withU are n values among m others, of which so many pairs have the first above the
// second.
func withU(n, m, u int) (a, b []float64) {
	b = counting(1, m)
	for i := range n {
		above := min(u, m)
		u -= above
		a = append(a, float64(above)+0.5+float64(n-i)/100)
	}
	return a, b
}

func TestRankTest(t *testing.T) {
	for name, c := range map[string]struct {
		a, b []float64
		want float64
	}{
		"four apart":       {counting(1, 4), counting(5, 4), 2.0 / 70},
		"three apart":      {counting(1, 3), counting(5, 3), 2.0 / 20},
		"all the same":     {[]float64{1, 1, 1, 1}, []float64{1, 1, 1, 1}, 1},
		"none":             {nil, counting(1, 3), 1},
		"one each":         {counting(1, 1), counting(2, 1), 1},
		"equal ones, tied": {[]float64{1, 2, 2}, []float64{2, 3, 3}, 0.3}, // by counting: 20 ways, 3 as low
		"many, apart":      {counting(1, 30), counting(31, 30), 3.02e-11},
		"many, the same":   {counting(1, 30), counting(1, 30), 1},
	} {
		got := rankTest(c.a, c.b)
		if math.Abs(got-c.want) > 0.01*c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
	if leastP(4, 4) > 0.05 || leastP(3, 4) < 0.05 || leastP(3, 5) > 0.05 || leastP(1, 1) != 1 {
		t.Errorf("least p: %v, %v, %v, %v", leastP(4, 4), leastP(3, 4), leastP(3, 5), leastP(1, 1))
	}
}

// TestRankTestApproximates has the two ways agree where both can be gone.
func TestRankTestApproximates(t *testing.T) {
	a, b := withU(25, 25, 200)
	b[3], b[4] = b[5], b[5]
	ranks := ranksOf(append(a, b...))
	sum := 0
	for _, r := range ranks[:len(a)] {
		sum += r
	}
	exact, near := exactP(ranks, len(a), sum), approximateP(ranks, len(a), sum)
	if math.Abs(exact/near-1) > 0.05 {
		t.Errorf("exactly %v, approximately %v", exact, near)
	}
}
