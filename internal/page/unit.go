package page

import (
	"math"
	"strconv"
	"strings"

	"github.com/myriad-go/myriad/internal/format"
)

// Format formats a value for readers; NaN and infinities are "". The page's script formats values in the same way.
func (u Unit) Format(v float64) string {
	switch u {
	case Seconds:
		return format.Seconds(v)
	case Bytes:
		return format.Bytes(v)
	case Share:
		return format.Percent(v)
	case Percentile:
		return formatTailRatioAsPercentile(v)
	case Clock:
		return format.Clock(v)
	}
	return format.Number(v)
}

// formatTailRatioAsPercentile formats the ratio 1/(1-p) as the percentile p, with all of its nines.
func formatTailRatioAsPercentile(ratio float64) string {
	if !(ratio >= 1) || math.IsInf(ratio, 1) {
		return ""
	}
	digits := min(max(0, int(math.Ceil(math.Log10(ratio)-1))), 9)
	text := strconv.FormatFloat(100*(1-1/ratio), 'f', digits, 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text + " %"
}
