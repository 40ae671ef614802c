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
		{Number, 0, "0"}, {Number, 1234567, "1,234,567"}, {Number, -1234.4, "-1,234"}, {Number, 0.12345, "0.123"}, {Number, 999.6, "1,000"},
		{Number, math.NaN(), ""}, {Number, math.Inf(-1), ""},
		{Seconds, 0.0012, "1.2 ms"}, {Seconds, 0, "0 ns"}, {Seconds, 90, "90 s"}, {Seconds, 2.5e-6, "2.5 µs"}, {Seconds, 0.9999, "1 s"},
		{Bytes, 1536, "1.5 KiB"}, {Bytes, 3 << 30, "3 GiB"}, {Bytes, 0, "0 B"}, {Bytes, 0.25, "0.25 B"},
		{Number, 3e-9, "3e-9"}, {Share, 1, "100 %"}, {Share, 0.1234, "12.3 %"},
		{Percentile, 1, "0 %"}, {Percentile, 2, "50 %"}, {Percentile, 10, "90 %"}, {Percentile, 100, "99 %"}, {Percentile, 1e4, "99.99 %"}, {Percentile, 0.5, ""},
		{Clock, 0, "0:00"}, {Clock, 75, "1:15"}, {Clock, 3661, "1:01:01"}, {Clock, 0.5, "0:00.5"}, {Clock, -5, "-0:05"},
	} {
		if have := c.unit.Text(c.v); have != c.want {
			t.Errorf("%s %v is %q, not %q", c.unit, c.v, have, c.want)
		}
	}
}
