package probe

import (
	"time"

	"github.com/myriad-go/myriad/tools/internal/lab/result"
)

// attackProbe lists figures of honest clients during an attack.
var attackProbe = Probe{
	Figures: []Figure{
		{Name: "answers", Heading: "answers", Better: Higher, Main: true},
		{Name: "errors", Heading: "errors", Better: Lower},
	},
}

// SetAttackFigures sets the figures of honest clients during an attack. answers and errors are totals of the whole
// attack. p99 is the highest 99th percentile of latency that any report interval had.
func SetAttackFigures(r *result.Run, answers, errors int64, p99 time.Duration) {
	r.Figures = map[string]float64{"answers": float64(answers), "errors": float64(errors), "p99": p99.Seconds()}
}
