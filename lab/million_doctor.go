package lab

import (
	"fmt"

	"github.com/myriad-go/myriad/doctor"
)

// askDoctor is what package doctor says of the connections before they are opened: how
// many this machine holds, and each wall that is below what is wanted.
func (m *millionRunner) askDoctor() []string {
	facts, err := doctor.Read(0)
	if err != nil {
		return []string{fmt.Sprintf("the machine's walls are not known: %v", err)}
	}
	processes, _ := m.subject.spread(m.workload.Connections)
	plan := doctor.Plan{Connections: m.workload.Connections, Side: doctor.Both, Model: m.subject.model(), Processes: processes}
	report, err := doctor.Examine(facts, plan)
	if err != nil {
		return []string{fmt.Sprintf("the machine's walls are not known: %v", err)}
	}
	return doctorSays(report)
}

// doctorSays is a report in short.
func doctorSays(r *doctor.Report) []string {
	holds := thousands(float64(r.Holds))
	lines := []string{fmt.Sprintf("this machine holds %s connections of %s; the first wall is %s",
		holds, thousands(float64(r.Plan.Connections)), r.First)}
	if r.Holds >= int64(r.Plan.Connections) {
		lines[0] = fmt.Sprintf("this machine holds %s connections", thousands(float64(r.Plan.Connections)))
	}
	for i := range r.Walls {
		w := &r.Walls[i]
		if !w.Near(r.Plan.Connections) {
			continue
		}
		does := "stops them at"
		if w.Soft {
			does = "may hurt from"
		}
		lines = append(lines, fmt.Sprintf("%s is %s: %s %s connections", w.Name, w.Present, does, thousands(float64(w.Holds))))
	}
	if len(lines) > 1 {
		lines = append(lines, fmt.Sprintf("`myriad doctor -n %d` says more", r.Plan.Connections))
	}
	return lines
}
