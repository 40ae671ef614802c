package lab

import (
	"fmt"

	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/load"
)

// FloodFigures are worked out of a run under a Flood workload. Sent and received are as
// the clients see it.
type FloodFigures struct {
	// Sent and Received are bytes in the window, and Window how long that was, in seconds.
	// What is sent is in the client's own buffers or beyond: they fill in the warm-up.
	Sent     int64   `json:"sent"`
	Received int64   `json:"received"`
	Window   float64 `json:"window"`
	// Lines is how many answers a second came.
	Lines float64 `json:"lines"`
	// PerConnection is bytes a second and connection, both ways together; Down and Up are
	// bits a second of all of them, Down being what the clients receive.
	PerConnection float64 `json:"per_connection"`
	Down          float64 `json:"down"`
	Up            float64 `json:"up"`
	// PacketsDown and PacketsUp are TCP segments a second that carry data.
	PacketsDown float64 `json:"packets_down,omitempty"`
	PacketsUp   float64 `json:"packets_up,omitempty"`
	// Unanswered is how many lines had no answer in the end, of those that were sent
	// before the flood by connections that then fell silent.
	Unanswered int64 `json:"unanswered"`
	// Check is what the load generator saw of those: each answer was compared.
	Check *load.Result `json:"check,omitempty"`
	// Server is what was sampled of the server, nil where /proc is not available. Its
	// processor time is for each answer that came, and Busy the part of all CPUs.
	Server *ServerFigures `json:"server,omitempty"`
}

// judgeFlood works out the figures and the marks of a run.
func judgeFlood(r *RunRecord, w Workload) {
	f := r.Flood
	if f == nil || r.Result == nil {
		return
	}
	f.Sent, f.Received, f.Window = r.Result.BytesSent, r.Result.BytesReceived, r.Result.Window.Seconds()
	if f.Window > 0 {
		f.Down, f.Up = 8*float64(f.Received)/f.Window, 8*float64(f.Sent)/f.Window
		f.Lines = float64(f.Received) / float64(len(floodMessage)) / f.Window
		f.PerConnection = float64(f.Sent+f.Received) / f.Window / float64(max(r.Result.Connected, 1))
	}
	if from, to := r.sample(Measuring), r.sample(Measured); from != nil && to != nil && from.Accepted > 0 && to.Accepted >= from.Accepted {
		between := to.At.Sub(from.At).Seconds()
		f.PacketsUp = float64(to.SegmentsIn-from.SegmentsIn) / between
		f.PacketsDown = float64(to.SegmentsOut-from.SegmentsOut) / between
	}
	f.Server = r.serverFiguresAt(f.Lines, Pinning{})
	r.Marks = append(r.Marks, r.floodMarks(w)...)
}

// floodMarks lists the rules that a run broke, in the flood and in the check.
func (r *RunRecord) floodMarks(w Workload) []Mark {
	found := resultMarks(r, w)
	if f := r.Flood; f.Check != nil {
		f.Unanswered = f.Check.Unanswered
		for _, m := range resultMarks(&RunRecord{Result: f.Check}, w.beforeFlood()) {
			found = append(found, Mark{m.Rule, "before the flood: " + m.Detail})
		}
	}
	if r.Flood.Received == 0 && r.Flood.Unanswered == 0 {
		found = append(found, Mark{RuleUnanswered, "not one answer came in the window"})
	}
	if text := r.Flood.unsteady(); text != "" {
		found = append(found, Mark{RuleUnsteady, text})
	}
	if r.Flood.Server == nil {
		return found
	}
	if from := r.sample(Measuring); from.Accepted > 0 && from.Accepted != w.Connections {
		found = append(found, Mark{RuleCount, fmt.Sprintf("the server had %d connections open, expected %d", from.Accepted, w.Connections)})
	}
	return found
}

// unsteady says by how much what was sent in the window is not what came back in it, "" if
// it is about as much, or nothing came back: that is another rule. An answer is as long as
// its line.
func (f *FloodFigures) unsteady() string {
	less, more := min(f.Sent, f.Received), max(f.Sent, f.Received)
	if f.Received == 0 || float64(more-less) <= steadyTolerance*float64(more) {
		return ""
	}
	why := "what was sent in the warm-up was answered in it, too"
	if f.Sent > f.Received {
		why = "what was sent in it waited still at its end"
	}
	return fmt.Sprintf("%s MiB were sent in the window and %s MiB received: %s", mebibytes(float64(f.Sent)), mebibytes(float64(f.Received)), why)
}

// floodParts is the table of a Flood workload, with the columns of the published one.
func floodParts(r *Report, rows []row, w Workload) []page.Part {
	t := &page.Table{}
	base := r.floodBase(rows, w)
	t.Add("subject", "connections", "sent MiB", "received MiB", "±", "ratio to "+base.subject, "kB/s each",
		"down Mbps", "up Mbps", "packets/s down", "up", "CPU µs/answer", "unanswered", "marks")
	for _, w := range rows {
		addMarked(t, w, w.subject, w.cell(floodConnections), w.cell(floodSent), w.cell(floodReceived), w.spread(floodReceived),
			w.ratio(base, floodReceived), w.cell(floodEach), w.cell(floodDown), w.cell(floodUp), w.cell(packetsDown),
			w.cell(packetsUp), w.cell(floodCPU), w.cell(floodUnanswered))
	}
	return []page.Part{{Table: t}}
}

// floodBase is the row that others are beside: the baseline, or where that was not run the
// design of a published row of this workload.
func (r *Report) floodBase(rows []row, w Workload) row {
	base := r.base(rows)
	base.subject = r.Scenario.Baseline
	for _, p := range r.Scenario.Published {
		for i := range p.Rows {
			if of := &p.Rows[i]; len(base.runs) == 0 && of.Workload == w.Name && of.Design != "" {
				base = rowOf(rows, of.Design)
				base.subject = of.Design
			}
		}
	}
	return base
}
