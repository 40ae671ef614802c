package lab

import (
	"slices"
	"testing"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{
		{[]float64{5}, 5},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 1, 2, 100}, 3},
	} {
		before := slices.Clone(c.in)
		if got, ok := median(c.in); !ok || got != c.want {
			t.Errorf("%v: got %v, %v, want %v", c.in, got, ok, c.want)
		}
		if !slices.Equal(before, c.in) {
			t.Errorf("%v: the values were moved: %v", before, c.in)
		}
	}
	if got, ok := median(nil); ok {
		t.Errorf("of nothing: got %v, want none", got)
	}
}

// TestRatios shows why ratios are taken by round: the machine was twice as
// fast in round 2, which the ratio must not show.
func TestRatios(t *testing.T) {
	value := map[int]float64{1: 120, 2: 240, 3: 90, 4: 50}
	base := map[int]float64{1: 100, 2: 200, 4: 0, 5: 10}
	got := ratios(value, base)
	slices.Sort(got)
	if want := []float64{1.2, 1.2}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
