package probe

import (
	"time"

	"github.com/myriad-go/myriad/tools/internal/lab/result"
)

// attackProbe computes figures of honest clients during an attack. Latency figures are 99th percentiles.
var attackProbe = Probe{
	Figures: []Figure{
		{Name: "answers", Heading: "answers", Better: Higher, Main: true},
		{Name: "errors", Heading: "errors", Better: Lower},
	},
}

// SetAttackFigures sets the figures of an attack, as observed by honest clients: their answers, their errors, and the
// largest 99th percentile of their latency.
func SetAttackFigures(r *result.Run, answers, errors int64, p99 time.Duration) {
	r.Figures = map[string]float64{"answers": float64(answers), "errors": float64(errors), "p99": p99.Seconds()}
}
