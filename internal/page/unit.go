package page

import (
	"math"
	"strconv"
	"strings"

	"github.com/myriad-go/myriad/internal/format"
)

// Format formats v for display in unit u. It returns "" for NaN and infinities.
func (u Unit) Format(v float64) string {
	switch u {
	case Seconds:
		return format.Seconds(v)
	case Bytes:
		return format.Bytes(v)
	case Share:
		return format.Percent(v)
	case Percentile:
		return formatPercentile(v)
	case Clock:
		return format.Clock(v)
	}
	return format.Rounded(v)
}

// formatPercentile formats the percentile that one in oneInN values exceeds. For example, it returns "99.9 %" for
// 1,000.
func formatPercentile(oneInN float64) string {
	if !(oneInN >= 1) || math.IsInf(oneInN, 1) {
		return ""
	}
	digits := min(max(0, int(math.Ceil(math.Log10(oneInN)-1))), 9)
	text := strconv.FormatFloat(100*(1-1/oneInN), 'f', digits, 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text + " %"
}
