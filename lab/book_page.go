package lab

import (
	"fmt"
	"time"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/internal/page"
)

// Page is the book for people: what was found in short, each report, its charts, and its
// time lines.
func (b *Book) Page() page.Page {
	p := page.Page{Title: b.title(), Figures: b.top(), Facts: b.facts()}
	p.Lead, p.Tone = b.status()
	used := newIDs("overview")
	p.Sections = append(p.Sections, b.overview())
	for _, r := range b.Reports {
		s := r.Section()
		s.ID = used.id(s.ID)
		s.Parts = append(s.Parts, r.charts(used)...)
		p.Sections = append(p.Sections, s)
	}
	for _, r := range b.Reports {
		p.Sections = append(p.Sections, r.timelines(used)...)
	}
	return p
}

// title names the scenarios, if they are few.
func (b *Book) title() string {
	var names []string
	for _, r := range b.Reports {
		names = append(names, r.Scenario.Name)
	}
	if len(names) == 0 || len(names) > 3 {
		return "Myriad bench"
	}
	return "Myriad bench: " + joined(names)
}

// facts are how the book was made.
func (b *Book) facts() [][2]string {
	version := b.Version
	if version == "" {
		version = "not known"
	}
	scale := b.Scale
	if scale == "" {
		scale = "as the scenarios are written"
	}
	facts := [][2]string{
		{"Machine", b.Machine.String()},
		{"Myriad", version},
		{"Date", b.Date.UTC().Format(time.DateTime + " MST")},
	}
	if b.Took > 0 {
		facts = append(facts, [2]string{"Took", b.Took.Round(time.Second).String()})
	}
	return append(facts, [2]string{"Command", b.Command}, [2]string{"Scale", scale})
}

// status says in a sentence how the runs were.
func (b *Book) status() (string, page.Tone) {
	var missing int
	for _, r := range b.Reports {
		missing += max(r.Planned-len(r.Runs), 0)
	}
	n, unmet := b.tally(), len(b.notMet())
	runs := b.Runs() - n.again
	switch missing += n.skipped; {
	case n.failed > 0:
		return fmt.Sprintf("%d of %d runs failed.", n.failed, runs), page.Bad
	case unmet > 0:
		return fmt.Sprintf("No run failed, but %s.", plural(unmet, "claim was not met", "claims were not met")), page.Bad
	case missing > 0:
		return fmt.Sprintf("No run failed, but %s.", plural(missing, "run was not made", "runs were not made")), page.Warn
	case n.marked > 0:
		return fmt.Sprintf("No run failed, but %d of %d broke a rule: their figures say less.", n.marked, runs), page.Warn
	}
	return "No run failed, and none broke a rule.", page.Good
}

// plural is a number with what there is one of, or several.
func plural(n int, one, several string) string { return format.Plural(n, one, several) }

// tally counts the runs of all reports.
func (b *Book) tally() (all runTally) {
	for _, r := range b.Reports {
		n := r.tally()
		all.failed, all.skipped, all.again, all.marked = all.failed+n.failed, all.skipped+n.skipped, all.again+n.again, all.marked+n.marked
	}
	return all
}

// top are three figures: the highest throughput and the least memory of an idle
// connection, where there are such runs, and how many runs failed or broke a rule.
func (b *Book) top() [][2]string {
	var all [][2]string
	if text, whose := b.extreme(tps, func(v, best float64) bool { return v > best }); text != "" {
		all = append(all, [2]string{"Highest throughput: " + whose, text + "/s"})
	}
	if text, whose := b.extreme(bytesIdle, func(v, best float64) bool { return v < best }); text != "" {
		all = append(all, [2]string{"Least memory per idle connection: " + whose, text + " B"})
	}
	n := b.tally()
	runs := b.Runs() - n.again
	all = append(all,
		[2]string{"Failed runs", fmt.Sprintf("%d of %d", n.failed, runs)},
		[2]string{"Runs that broke a rule", fmt.Sprintf("%d of %d", n.marked, runs)},
		[2]string{"Scenarios", fmt.Sprint(len(b.Reports))})
	return all[:3]
}

// extreme is the median that is better than all others, and whose it is; "" for none.
func (b *Book) extreme(f Figure, better func(v, best float64) bool) (text, whose string) {
	var best float64
	for _, r := range b.Reports {
		for _, workload := range r.Scenario.Workloads {
			for _, w := range r.rows(workload.Name) {
				if v, ok := f.median(w); ok && (text == "" || better(v, best)) {
					best, text, whose = v, f.Text(v), w.subject+", "+workload.Name
				}
			}
		}
	}
	return text, whose
}
