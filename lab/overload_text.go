package lab

import (
	"fmt"
	"math"
	"time"

	"github.com/myriad-go/myriad/internal/page"
)

// offeringParts is what the report says of a load: how much was offered, and what became
// of it on each side.
func offeringParts(r *Report, rows []row, w Workload) []page.Part {
	parts := []page.Part{{Table: offeringTable(rows)}}
	for _, run := range rows[0].runs {
		if run.Overload != nil && run.Overload.Capacity > 0 {
			f := w.Offer.filled()
			text := fmt.Sprintf("Offered are %s a second; memory %.2f GB, deadline %v, %s jobs may wait, warm-up %v; the capacity is %s.",
				thousands(run.Overload.Rate), float64(f.Memory)/1e9, f.Deadline, thousands(float64(f.Queue)), w.WarmUp, r.capacityOf(f.Shape))
			return append([]page.Part{{Text: text}}, parts...)
		}
	}
	return parts
}

// capacityOf says what the capacity of a shape is.
func (r *Report) capacityOf(shape string) string {
	text := "not known"
	for _, c := range r.Capacities() {
		if c.Shape != shape || c.PerSecond <= 0 {
			continue
		}
		text = fmt.Sprintf("%s jobs a second in a closed loop (%s)", thousands(c.PerSecond), c.Side)
		if c.Workers > 0 {
			text += fmt.Sprintf("; others are told the best number of workers, %d", c.Workers)
		}
	}
	return text
}

// offeringTable has a line for each side.
func offeringTable(rows []row) *page.Table {
	t := &page.Table{}
	t.Add("side", "offered", "finished", "rejected", "expired", "shed", "goodput/s", "of capacity",
		"p50", "p99", "p99.9", "peak RSS", "goroutines", "workers", "CPU", "marks")
	for _, w := range rows {
		addMarked(t, w, w.subject, w.cell(offered), w.cell(finished), w.cell(rejected), w.cell(expired), w.cell(shed),
			w.cell(goodput), w.cell(ofCapacity), w.cell(p50), w.cell(p99), w.cell(jobP999),
			megabytes(w.peak()), w.cell(peakGoroutines), w.cell(peakWorkers), w.cell(coresUsed))
	}
	return t
}

// never is the latency of jobs of which none has run: worse than any, so that it
// flatters no median.
var never = math.Inf(1)

// ran is a latency; 0 is that of no job.
func ran(d time.Duration) float64 {
	if d == 0 {
		return never
	}
	return float64(d)
}

// orNone writes a count that is 0 when it is not known.
func orNone(v float64) string {
	if v == 0 {
		return none
	}
	return thousands(v)
}

// megabytes writes bytes; 0 is not known.
func megabytes(v int64) string {
	if v == 0 {
		return none
	}
	return thousands(float64(v)/1e6) + " MB"
}
