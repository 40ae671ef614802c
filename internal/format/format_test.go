package format

import (
	"math"
	"testing"
	"time"
)

func TestFormat(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Count(0), "0"}, {Count(999), "999"}, {Count(1000), "1,000"}, {Count(-1234567), "-1,234,567"}, {Count(-123), "-123"},
		{Count(int64(math.MaxInt64)), "9,223,372,036,854,775,807"},
		{Whole(1234567.8), "1,234,568"}, {Whole(-999.6), "-1,000"}, {Whole(math.NaN()), ""},
		{Rounded(0), "0"}, {Rounded(1234567), "1,234,567"}, {Rounded(-1234.4), "-1,234"}, {Rounded(0.12345), "0.123"},
		{Rounded(999.6), "1,000"}, {Rounded(3e-9), "3e-9"}, {Rounded(math.Inf(-1)), ""},
		{Bytes(0), "0 B"}, {Bytes(0.25), "0.25 B"}, {Bytes(1536), "1.5 KiB"}, {Bytes(3 << 30), "3 GiB"}, {Bytes(1 << 50), "1,024 TiB"}, {Bytes(math.NaN()), ""},
		{Seconds(0), "0 ns"}, {Seconds(2.5e-6), "2.5 µs"}, {Seconds(0.0012), "1.2 ms"}, {Seconds(0.9999), "1 s"}, {Seconds(90), "90 s"}, {Seconds(math.Inf(1)), ""},
		{Latency(0), "0 ns"}, {Latency(999), "999 ns"}, {Latency(1200 * time.Microsecond), "1.20 ms"}, {Latency(9996 * time.Microsecond), "10.0 ms"}, {Latency(99960 * time.Microsecond), "100 ms"}, {Latency(999999), "1.00 ms"}, {Latency(time.Minute), "60.0 s"},
		{RoundToThreeDigits(1234 * time.Microsecond).String(), "1.23ms"}, {RoundToThreeDigits(5).String(), "5ns"},
		{Elapsed(-1), "0s"}, {Elapsed(59 * time.Second), "59s"}, {Elapsed(65 * time.Second), "1m05s"}, {Elapsed(2 * time.Hour), "2h00m"},
		{Clock(0), "0:00"}, {Clock(75), "1:15"}, {Clock(3661), "1:01:01"}, {Clock(0.5), "0:00.5"}, {Clock(-5), "-0:05"},
		{Clock(1e15), "1,000,000,000,000,000 s"}, {Clock(math.NaN()), ""},
		{Percent(1), "100 %"}, {Percent(0.1234), "12.3 %"}, {Percent(math.NaN()), ""},
		{Percentile(50), "p50"}, {Percentile(99.9), "p99.9"},
		{Plural(1, "run", "runs"), "1 run"}, {Plural(0, "run", "runs"), "0 runs"}, {Plural(1000, "run", "runs"), "1,000 runs"},
		{Tally(nil), ""}, {Tally(map[string]int64{"reset": 3, "refused": 1200, "late": 3}), "1,200 × refused, 3 × late, 3 × reset"},
	} {
		if c.got != c.want {
			t.Errorf("%q, not %q", c.got, c.want)
		}
	}
}
