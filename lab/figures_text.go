package lab

import (
	"fmt"
	"math"
	"time"

	"github.com/myriad-go/myriad/internal/format"
)

// none stands where there is no figure.
const none = "-"

func thousands(v float64) string { return format.Whole(v) }

// latency writes nanoseconds.
func latency(v float64) string { return format.Latency(time.Duration(math.Round(v))) }

func significant(v float64) string { return format.Fixed(v) }

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
