package lab

import (
	"fmt"
	"time"
)

// none stands where there is no figure.
const none = "-"

// thousands writes 1234567.8 as "1,234,568".
func thousands(v float64) string {
	digits := fmt.Sprintf("%.0f", v)
	sign := ""
	if digits[0] == '-' {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// latency writes nanoseconds with three significant digits.
func latency(v float64) string {
	units := []struct {
		name string
		unit time.Duration
	}{{"s", time.Second}, {"ms", time.Millisecond}, {"µs", time.Microsecond}}
	for _, u := range units {
		if in := v / float64(u.unit); in >= 0.9995 {
			return significant(in) + " " + u.name
		}
	}
	return fmt.Sprintf("%.0f ns", v)
}

// significant writes a value of at least 1 with three significant digits.
func significant(v float64) string {
	switch {
	case v < 9.995:
		return fmt.Sprintf("%.2f", v)
	case v < 99.95:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.0f", v)
	}
}

func twoDecimals(v float64) string { return fmt.Sprintf("%.2f", v) }

// messages writes a number of messages in flight, which is a mean.
func messages(v float64) string {
	if v < 1000 {
		return fmt.Sprintf("%.1f", v)
	}
	return thousands(v)
}

func percent(v float64) string { return fmt.Sprintf("%.0f %%", v*100) }

func finePercent(v float64) string { return fmt.Sprintf("%.2f %%", v*100) }

// mebibytes writes bytes as MiB.
func mebibytes(v float64) string { return fmt.Sprintf("%.1f", v/(1<<20)) }

func kilobytes(v float64) string { return fmt.Sprintf("%.1f", v/1e3) }

func megabits(v float64) string { return fmt.Sprintf("%.2f", v/1e6) }
