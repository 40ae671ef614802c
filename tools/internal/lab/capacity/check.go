package capacity

import (
	"fmt"
	"math"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/tools/doctor"
)

// Prediction compares the figures of a measurement with figures predicted from a smaller measurement.
type Prediction struct {
	// From and To have the same setup: server, loops, app, message size and TLS. To has more connections.
	From    MeasuredCosts    `json:"from"`
	To      MeasuredCosts    `json:"to"`
	Figures []ComparedFigure `json:"figures"`
}

type ComparedFigure struct {
	What      string               `json:"what"`
	Predicted float64              `json:"predicted"`
	Measured  float64              `json:"measured"`
	Format    func(float64) string `json:"-"`
	// IsPart reports that this figure is not compared by itself, because another figure includes it.
	IsPart bool `json:"part,omitempty"`
}

// RelativeError returns Predicted/Measured - 1, or +Inf if Measured is 0.
func (c *ComparedFigure) RelativeError() float64 {
	if c.Measured == 0 {
		return math.Inf(1)
	}
	return c.Predicted/c.Measured - 1
}

// PredictFromSmallestOfSameSetup predicts each measurement from a smaller one: the measurement with the fewest
// connections among those of the same setup. This smallest measurement itself gets no prediction.
func PredictFromSmallestOfSameSetup(all []MeasuredCosts, f *doctor.Facts) (predictions []Prediction) {
	for i := range all {
		to, from := &all[i], (*MeasuredCosts)(nil)
		for j := range all {
			m := &all[j]
			if m.hasSameSetupAs(to) && m.Connections < to.Connections && (from == nil || m.Connections < from.Connections) {
				from = m
			}
		}
		if from != nil {
			predictions = append(predictions, Prediction{*from, *to, predictAndCompareFigures(from, to, f)})
		}
	}
	return predictions
}

func (m *MeasuredCosts) hasSameSetupAs(o *MeasuredCosts) bool {
	return m.Subject == o.Subject && m.Loops == o.Loops && m.App == o.App && m.Size == o.Size && m.TLS == o.TLS
}

func predictAndCompareFigures(smaller, larger *MeasuredCosts, f *doctor.Facts) (all []ComparedFigure) {
	n := float64(larger.Connections)
	bytes := func(v float64) string { return fmt.Sprintf("%.1f MiB", v/(1<<20)) }
	cores := func(v float64) string { return fmt.Sprintf("%.4f cores", v) }
	all = append(all, ComparedFigure{"the process, idle", smaller.Base + smaller.BytesPerConn*n, larger.Base + larger.BytesPerConn*n, bytes, true})
	if smaller.IdleCoresPerConn > 0 && larger.IdleCoresPerConn > 0 {
		all = append(all, ComparedFigure{"CPU of idle connections", smaller.IdleCoresPerConn * n, larger.IdleCoresPerConn * n, cores, true})
	}
	for _, p := range larger.Points {
		at := fmt.Sprintf(" at %s messages/s", format.Whole(p.Rate))
		user, was := smaller.PredictUserMemory(n, p.Rate), larger.Base+larger.BytesPerConn*n+p.Buffers
		all = append(all, ComparedFigure{"the process" + at, user, was, bytes, true})
		if smaller.Kernel > 0 && larger.Kernel > 0 {
			all = append(all, ComparedFigure{"the kernel, both ends", smaller.Kernel * n, larger.Kernel * n, bytes, true})
			plan := doctor.Plan{Connections: larger.Connections, Side: doctor.Both, Model: larger.Model}
			if cost, err := doctor.PredictCosts(f, plan); err == nil {
				all = append(all, ComparedFigure{"the kernel, by the doctor alone", float64(cost.Kernel) * n, larger.Kernel * n, bytes, true})
			}
			user, was = user+smaller.Kernel*n, was+larger.Kernel*n
		}
		all = append(all, ComparedFigure{"memory" + at, user, was, bytes, false})
		all = append(all, ComparedFigure{"CPU" + at, smaller.PredictCores(n, p.Rate, 0), p.Cores, cores, false})
	}
	return all
}
