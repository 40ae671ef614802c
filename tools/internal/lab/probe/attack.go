package probe

import (
	"time"

	"github.com/myriad-go/myriad/tools/internal/lab/result"
)

// attackProbe has the figures of honest clients during an attack; their latency is p99.
var attackProbe = Probe{
	Figures: []Figure{
		{Name: "answers", Heading: "answers", Better: Higher, Main: true},
		{Name: "errors", Heading: "errors", Better: Lower},
	},
}

// SetAttackFigures sets the figures of an attack: the answers and the errors of honest clients, and
// the largest p99 of their latency.
func SetAttackFigures(r *result.Run, answers, errors int64, p99 time.Duration) {
	r.Figures = map[string]float64{"answers": float64(answers), "errors": float64(errors), "p99": p99.Seconds()}
}
