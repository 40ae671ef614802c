// Package format formats quantities for people: counts with thousands separators, and bytes, durations, shares and
// percentiles with three significant digits. The script of package page formats values in the same way.
package format

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Count formats an integer with thousands separators: 1,234,567.
func Count[T ~int | ~int32 | ~int64](n T) string {
	return separateThousands(strconv.FormatInt(int64(n), 10))
}

// Whole formats v as an integer with thousands separators. It returns "" for NaN and infinities.
func Whole(v float64) string {
	if !isFinite(v) {
		return ""
	}
	return separateThousands(strconv.FormatFloat(v, 'f', 0, 64))
}

// Rounded formats v with up to three significant digits, such as 0.123 or 1.5. It formats values of 1,000 and more as
// integers, such as 1,235. It returns "" for NaN and infinities.
func Rounded(v float64) string {
	switch {
	case !isFinite(v):
		return ""
	case math.Abs(v) >= 999.5:
		return Whole(v)
	}
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 3, 64), 64)
	if math.Abs(rounded) < 1e-6 && rounded != 0 {
		return strings.Replace(strconv.FormatFloat(rounded, 'e', -1, 64), "e-0", "e-", 1)
	}
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}

// Bytes formats a size in the largest suitable binary unit, such as 1.5 KiB. It returns "" for NaN and infinities.
func Bytes(size float64) string { return formatScaled(size, sizes, Rounded) }

// Seconds formats a duration in the unit s, ms, µs or ns, such as 1.2 ms. It returns "" for NaN and infinities.
func Seconds(seconds float64) string { return formatScaled(seconds, times, Rounded) }

// Latency formats a non-negative duration like Seconds, but keeps trailing zeros to align columns, such as 1.20 ms.
func Latency(d time.Duration) string {
	return formatScaled(d.Seconds(), times, func(v float64) string {
		digits := 2
		if v >= 9.995 {
			digits--
		}
		if v >= 99.95 {
			digits--
		}
		return strconv.FormatFloat(v, 'f', digits, 64)
	})
}

// RoundToThreeDigits rounds a non-negative duration to three significant digits.
func RoundToThreeDigits(d time.Duration) time.Duration {
	step := time.Duration(1)
	for d/step >= 1000 {
		step *= 10
	}
	return d.Round(step)
}

// Elapsed formats a duration in at most two units of hours, minutes and seconds: 5s, 1m05s, 2h00m.
func Elapsed(d time.Duration) string {
	s := int64(max(d, 0) / time.Second)
	switch {
	case s < 60:
		return strconv.FormatInt(s, 10) + "s"
	case s < 3600:
		return strconv.FormatInt(s/60, 10) + "m" + padTwoDigits(s%60) + "s"
	}
	return strconv.FormatInt(s/3600, 10) + "h" + padTwoDigits(s/60%60) + "m"
}

// Clock formats seconds as m:ss, and from one hour on as h:mm:ss. It adds tenths if seconds is not a whole number. It
// returns "" for NaN and infinities.
func Clock(seconds float64) string {
	if !isFinite(seconds) {
		return ""
	}
	sign := ""
	tenths := math.Round(seconds * 10)
	if tenths < 0 {
		sign, tenths = "-", -tenths
	}
	if tenths >= 1e15 {
		return sign + Rounded(tenths/10) + " s"
	}
	t := int64(tenths)
	text := padTwoDigits(t / 10 % 60)
	if t%10 > 0 {
		text += "." + strconv.FormatInt(t%10, 10)
	}
	minutes := t / 600
	if minutes < 60 {
		return sign + strconv.FormatInt(minutes, 10) + ":" + text
	}
	return sign + strconv.FormatInt(minutes/60, 10) + ":" + padTwoDigits(minutes%60) + ":" + text
}

// Percent formats share, a fraction of 1, as a percentage such as 12.3 %. It returns "" for NaN and infinities.
func Percent(share float64) string {
	if !isFinite(share) {
		return ""
	}
	return Rounded(share*100) + " %"
}

// Percentile returns the name of a percentile, such as p99.9. p ranges from 0 to 100.
func Percentile(p float64) string { return "p" + strconv.FormatFloat(p, 'f', -1, 64) }

// Plural formats n with the singular or plural of a noun, such as 1 connection or 2 connections.
func Plural[T ~int | ~int32 | ~int64](n T, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return Count(n) + " " + many
}

// Tally lists causes with their counts, the most frequent cause first: 12 × refused, 3 × reset.
func Tally(causes map[string]int64) string {
	names := slices.SortedFunc(maps.Keys(causes), func(a, b string) int {
		return cmp.Or(cmp.Compare(causes[b], causes[a]), cmp.Compare(a, b))
	})
	for i, name := range names {
		names[i] = Count(causes[name]) + " × " + name
	}
	return strings.Join(names, ", ")
}

type unit struct {
	size float64
	name string
}

var (
	sizes = []unit{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}, {1, "B"}}
	times = []unit{{1, "s"}, {1e-3, "ms"}, {1e-6, "µs"}, {1e-9, "ns"}}
)

// formatScaled formats v in the largest unit for which the rounded result is at least 1. If there is no such unit, it
// uses the smallest unit. units must be in descending order.
func formatScaled(v float64, units []unit, write func(float64) string) string {
	last := units[len(units)-1]
	switch {
	case !isFinite(v):
		return ""
	case v == 0:
		return "0 " + last.name
	}
	for _, u := range units {
		if math.Abs(v) >= u.size*0.9995 {
			return write(v/u.size) + " " + u.name
		}
	}
	return write(v/last.size) + " " + last.name
}

func isFinite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

func separateThousands(digits string) string {
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

func padTwoDigits(n int64) string {
	if n < 10 {
		return "0" + strconv.FormatInt(n, 10)
	}
	return strconv.FormatInt(n, 10)
}
