package page

import (
	"math"
	"strconv"
	"strings"
)

// size is a name for so much.
type size struct {
	of   float64
	name string
}

var (
	times  = []size{{1, "s"}, {1e-3, "ms"}, {1e-6, "µs"}, {1e-9, "ns"}}
	memory = []size{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}, {1, "B"}}
)

// Text writes a value as people read it, with three significant digits where it is not a
// count; NaN is "". The page's script writes values in the same way.
func (u Unit) Text(v float64) string {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return ""
	case u == Seconds:
		return sized(v, times)
	case u == Bytes:
		return sized(v, memory)
	case u == Share:
		return three(v*100) + " %"
	case u == Percentile:
		return percentile(v)
	case u == Clock:
		return clock(v)
	}
	return count(v)
}

// sized writes a value in the largest size that it has one of, or else the smallest.
func sized(v float64, sizes []size) string {
	if v == 0 {
		return "0 " + sizes[len(sizes)-1].name
	}
	for _, s := range sizes {
		if math.Abs(v) >= s.of*0.9995 || s == sizes[len(sizes)-1] {
			return count(v/s.of) + " " + s.name
		}
	}
	return ""
}

// three writes a value with three significant digits and no zeros at the end.
func three(v float64) string {
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 3, 64), 64)
	if math.Abs(rounded) < 1e-6 && rounded != 0 {
		return strings.Replace(strconv.FormatFloat(rounded, 'e', -1, 64), "e-0", "e-", 1)
	}
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}

// count writes what is below 1,000 with three significant digits, and all else whole.
func count(v float64) string {
	if math.Abs(v) < 999.5 {
		return three(v)
	}
	digits := strconv.FormatFloat(math.Abs(v), 'f', 0, 64)
	var out strings.Builder
	if v < 0 {
		out.WriteByte('-')
	}
	for i, digit := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			out.WriteByte(',')
		}
		out.WriteRune(digit)
	}
	return out.String()
}

// percentile writes 1/(1-p) as p, with as many nines as it has.
func percentile(x float64) string {
	if x < 1 {
		return ""
	}
	digits := min(max(0, int(math.Ceil(math.Log10(x)-1))), 9)
	text := strconv.FormatFloat(100*(1-1/x), 'f', digits, 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text + " %"
}

// clock writes seconds as m:ss, as h:mm:ss from an hour on, and with a tenth if it is
// not whole.
func clock(v float64) string {
	sign := ""
	tenths := math.Round(v * 10)
	if tenths < 0 {
		sign, tenths = "-", -tenths
	}
	if tenths >= 1e15 {
		return sign + count(tenths/10) + " s"
	}
	t := int64(tenths)
	pad := func(n int64) string {
		if n < 10 {
			return "0" + strconv.FormatInt(n, 10)
		}
		return strconv.FormatInt(n, 10)
	}
	out := pad(t / 10 % 60)
	if t%10 > 0 {
		out += "." + strconv.FormatInt(t%10, 10)
	}
	if minutes := t / 600; minutes < 60 {
		out = strconv.FormatInt(minutes, 10) + ":" + out
	} else {
		out = strconv.FormatInt(minutes/60, 10) + ":" + pad(minutes%60) + ":" + out
	}
	return sign + out
}
