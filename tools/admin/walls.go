package admin

import (
	"time"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/doctor"
)

// The page compares the server with the machine's limits ("walls"). Package doctor predicts how many connections each
// limit allows, and reports how much of the limit is in use.

const wallsInterval = 10 * time.Second

type machineLimitReport struct {
	at     time.Time
	open   int64
	report *doctor.Report // nil if there is none, see err
	err    error
}

func (w *machineLimitReport) examineMachineIfDue(now time.Time, s tcp.Stats) {
	if !w.at.IsZero() && now.Sub(w.at) < wallsInterval {
		return
	}
	*w = machineLimitReport{at: now, open: s.Open}
	facts, err := doctor.Read(0)
	if err != nil {
		w.err = err
		return
	}
	w.report, w.err = doctor.Examine(facts, doctor.Plan{
		Connections: int(max(s.Open, 1)), Side: doctor.Server, Model: s.Model, Processes: s.Processes,
	})
}

// totalConnsAtWall returns the number of open connections at which the server reaches the limit.
func (w *machineLimitReport) totalConnsAtWall(wall *doctor.Wall) int64 {
	if wall.Holds == doctor.Unlimited || !wall.Beyond {
		return wall.Holds
	}
	return wall.Holds + w.open
}
