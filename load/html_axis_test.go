package load

import (
	"math"
	"strings"
	"testing"
	"time"
)

func tickTexts(a axis) string {
	var all []string
	for _, t := range a.ticks {
		all = append(all, t.text)
	}
	return strings.ReplaceAll(strings.Join(all, " "), "\u00a0", "_")
}

// Ticks are at round numbers, and the axis reaches over all values.
func TestAxes(t *testing.T) {
	for want, a := range map[string]axis{
		"0 1":                               linearAxis(0, 1, 4, shortCount),
		"0 1 2":                             linearAxis(1.5, 1, 4, shortCount),
		"0 10k 20k 30k":                     linearAxis(24_001, 1, 4, shortCount),
		"0 500 1k 1.5k":                     linearAxis(1234, 1, 4, shortCount),
		"0 2M 4M 6M 8M":                     linearAxis(8e6, 1, 4, shortCount),
		"1_ms 2_ms 5_ms 10_ms":              logAxis(1.1e6, 9.9e6, 10, timeText),
		"1_ms 10_ms 100_ms 1_s":             logAxis(1e6, 1e9, 4, timeText),
		"1_ns 2_ns":                         logAxis(0, 0, 4, timeText),
		"10_s 20_s 50_s 100_s":              logAxis(1e10, 6e10, 10, timeText),
		"0 5s 10s 15s":                      timeAxis(19*time.Second, 4),
		"0 30s 1m 1m30s 2m":                 timeAxis(2*time.Minute+time.Second, 5),
		"0 200ms":                           timeAxis(300*time.Millisecond, 2),
		"0 30m 1h 1h30m":                    timeAxis(100*time.Minute, 4),
		"0":                                 timeAxis(0, 4),
		"0 2400h 4800h 7200h":               timeAxis(maxSpan, 4),
		"min 50_% 90_%":                     ninesAxis(5),
		"min 50_% 90_% 99_% 99.9_%":         ninesAxis(5000),
		"min 50_% 90_% 99_% 99.9_% 99.99_%": ninesAxis(1e4),
	} {
		if got := tickTexts(a); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	for _, highest := range []float64{0, 1, 1e-3, 7, 99, 101, 1e18, math.MaxFloat64 / 4} {
		if a := linearAxis(highest, 0.001, 4, shortCount); a.to < highest || len(a.ticks) > 9 {
			t.Errorf("an axis to %g for %g, with %d ticks", a.to, highest, len(a.ticks))
		}
		if a := logAxis(1, highest, 10, timeText); highest < math.MaxInt64 && (a.to < highest || a.from > 1) {
			t.Errorf("an axis from %g to %g for 1 to %g", a.from, a.to, highest)
		}
	}
}

func TestAxisAt(t *testing.T) {
	linear := axis{from: 0, to: 10, low: 100, top: 0}
	logarithmic := axis{from: 1, to: 100, low: 0, top: 100, log: true}
	for _, test := range []struct {
		a       axis
		v, want float64
	}{{linear, 0, 100}, {linear, 5, 50}, {linear, 11, 0}, {linear, -1, 100}, {logarithmic, 10, 50}, {logarithmic, 0, 0}, {logarithmic, 1e9, 100}, {axis{low: 7, top: 9}, 3, 7}} {
		if got := test.a.at(test.v); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%g is at %g, want %g", test.v, got, test.want)
		}
	}
}

func TestShortTexts(t *testing.T) {
	for want, got := range map[string]string{
		"1.23\u00a0ms": spaced(1_234_567), "90\u00a0s": spaced(90 * time.Second), "0\u00a0s": spaced(0), "12\u00a0ns": spaced(12),
		"1.23M": shortCount(1_234_567), "999": shortCount(999), "0.5": shortCount(.5), "1000G": shortCount(1e12), "1234567G": shortCount(1.234567e15),
		"1.5\u00a0GiB": spacedBytes(1.5 * (1 << 30)), "0\u00a0B": spacedBytes(0), "1023\u00a0KiB": spacedBytes(1023 << 10),
		"1m": shortTime(time.Minute), "1m30s": shortTime(90 * time.Second), "10m": shortTime(10 * time.Minute), "1h": shortTime(time.Hour),
		"1h30s": shortTime(time.Hour + 30*time.Second), "20h": shortTime(20 * time.Hour), "1m10s": shortTime(70 * time.Second),
		"1h10m": shortTime(70 * time.Minute), "500ms": shortTime(time.Second / 2), "0": shortTime(0),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
