package page

import (
	"math"
	"testing"
)

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
		if have := c.unit.Text(c.v); have != c.want {
			t.Errorf("%s %v is %q, not %q", c.unit, c.v, have, c.want)
		}
	}
}
