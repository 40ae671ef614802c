package page

import (
	"math"
	"strconv"
	"strings"

	"github.com/myriad-go/myriad/internal/format"
)

// Text writes a value as people read it; NaN and infinities are "". The page's script
// writes values in the same way.
func (u Unit) Text(v float64) string {
	switch u {
	case Seconds:
		return format.Seconds(v)
	case Bytes:
		return format.Bytes(v)
	case Share:
		return format.Percent(v)
	case Percentile:
		return percentile(v)
	case Clock:
		return format.Clock(v)
	}
	return format.Number(v)
}

// percentile writes 1/(1-p) as p, with as many nines as it has.
func percentile(x float64) string {
	if !(x >= 1) || math.IsInf(x, 1) {
		return ""
	}
	digits := min(max(0, int(math.Ceil(math.Log10(x)-1))), 9)
	text := strconv.FormatFloat(100*(1-1/x), 'f', digits, 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text + " %"
}
