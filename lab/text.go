package lab

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/page"
)

// WriteText writes the report for people: what was run and where, then a table
// for each workload, and under it every rule that a run broke and every error.
func (r *Report) WriteText(w io.Writer) error {
	section := r.Section()
	p := page.Page{
		Title: section.Title, Lead: section.Lead,
		Facts: [][2]string{
			{"machine", r.Machine.String()},
			{"date", r.Date.UTC().Format(time.DateTime + " MST")},
			{"command", r.Command},
		},
	}
	section.Title, section.Lead = "", ""
	p.Sections = []page.Section{section}
	return p.WriteText(w)
}

// String describes the machine in a line.
func (m Machine) String() string {
	words := []string{m.CPU, fmt.Sprintf("%d CPUs", m.CPUs)}
	if m.CPU == "" {
		words = words[1:]
	}
	if m.Memory > 0 {
		words = append(words, fmt.Sprintf("%.1f GiB", float64(m.Memory)/(1<<30)))
	}
	system := strings.Join(strings.Fields(m.OS+" "+m.Kernel+" "+m.Arch), " ")
	return strings.Join(append(words, system, m.Go), "; ")
}

// pinning is the pinning of the workloads, where they are not alike of those
// that are pinned.
func (r *Report) pinning() Pinning {
	for _, w := range r.Scenario.Workloads {
		if !w.Unpinned {
			return r.Pinning
		}
	}
	return r.Pinning.of(Workload{Unpinned: true})
}

// base finds the baseline's row, an empty one when it was not run.
func (r *Report) base(rows []row) row { return rowOf(rows, r.Scenario.Baseline) }

func (r *Report) throughputTable(rows []row) *page.Table {
	t := &page.Table{}
	t.Add("subject", "TPS", "±", "p50", "p99", "CPU µs/msg", "ratio to "+r.Scenario.Baseline,
		"in flight", "expected", "server CPU", "load CPU", "bottleneck", "marks")
	base := r.base(rows)
	for _, w := range rows {
		addMarked(t, w, w.subject, w.cell(tps), w.spread(tps), w.cell(p50), w.cell(p99),
			w.cell(serverCPU), w.ratio(base, tps), w.cell(inFlight), w.cell(expectedInFlight),
			w.cell(serverBusy), w.cell(loadBusy), w.bottleneck())
	}
	return t
}

func (r *Report) idleTable(rows []row) *page.Table {
	t := &page.Table{}
	t.Add("subject", "bytes/conn idle", "±", "after one exchange", "ratio to "+r.Scenario.Baseline,
		"kernel slab bytes/conn, both ends", "after one exchange", "dial conn/s", "marks")
	base := r.base(rows)
	for _, w := range rows {
		addMarked(t, w, w.subject, w.cell(bytesIdle), w.spread(bytesIdle), w.cell(bytesExchanged),
			w.ratio(base, bytesIdle), w.cell(kernelIdle), w.cell(kernelExchanged),
			w.cell(dialRate))
	}
	return t
}
