package page

import (
	"math"
	"slices"
	"strings"
	"testing"
)

func TestDownsampleKeepsExtremes(t *testing.T) {
	const n = 100_000
	x, y := make([]float64, n), make([]float64, n)
	for i := range x {
		x[i] = float64(i)
	}
	y[0], y[n-1], y[12_345], y[54_321], y[70_000] = 3, 4, 99, -99, math.NaN()
	c := &Chart{ID: "c", Series: []Series{{Name: "s", X: x, Y: y}, {Name: "same X", X: x, Y: y}}}
	d := c.toDownsampledChartData()
	one := d.Series[0]
	if len(one.X) > maxPoints || len(one.X) < maxPoints/4 {
		t.Errorf("%d points", len(one.X))
	}
	if !slices.IsSorted(one.X) {
		t.Error("not sorted")
	}
	for at, want := range map[float64]float64{0: 3, n - 1: 4, 12_345: 99, 54_321: -99} {
		i := slices.Index(one.X, at)
		if i < 0 || one.Y[i] == nil || *one.Y[i] != want {
			t.Errorf("the point at %v is lost", at)
		}
	}
	if i := slices.Index(one.X, 70_000); i < 0 || one.Y[i] != nil {
		t.Error("the gap is lost")
	}
	if len(d.Left) != 2 || !strings.Contains(d.Left[0], "100,000 points") {
		t.Errorf("it says %q", d.Left)
	}
	if d.Series[1].X != nil {
		t.Error("the same X is there twice")
	}
}

func TestMaxSeries(t *testing.T) {
	c := &Chart{ID: "c", Series: make([]Series, maxSeries+1)}
	if d := c.toDownsampledChartData(); len(d.Series) != maxSeries || len(d.Left) != 1 {
		t.Errorf("%d series, %q", len(d.Series), d.Left)
	}
}

func TestInvalidPoints(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	c := &Chart{ID: "c", X: Axis{Log: true}, Y: Axis{Log: true}, Series: []Series{{
		X: []float64{-1, 0, 2, 1, 3, 4, inf}, Y: []float64{1, 1, 0, 1, inf, nan, 1},
	}}}
	d := c.toDownsampledChartData().Series[0]
	if !slices.Equal(d.X, []float64{1, 2, 3, 4}) || d.Y[0] == nil || d.Y[1] != nil || d.Y[2] != nil || d.Y[3] != nil {
		t.Errorf("%v %v", d.X, d.Y)
	}
}

func TestUnits(t *testing.T) {
	for _, c := range []struct {
		unit Unit
		v    float64
		want string
	}{
		{Number, 1234567, "1,234,567"}, {Number, math.NaN(), ""}, {Seconds, 0.0012, "1.2 ms"}, {Bytes, 1536, "1.5 KiB"},
		{Share, 0.1234, "12.3 %"}, {Clock, 75, "1:15"},
		{Percentile, 1, "0 %"}, {Percentile, 2, "50 %"}, {Percentile, 10, "90 %"}, {Percentile, 100, "99 %"}, {Percentile, 1e4, "99.99 %"}, {Percentile, 0.5, ""},
	} {
		if have := c.unit.Format(c.v); have != c.want {
			t.Errorf("%s %v is %q, not %q", c.unit, c.v, have, c.want)
		}
	}
}
