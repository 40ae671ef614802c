package lab

import (
	"fmt"
	"slices"

	"github.com/myriad-go/myriad/internal/page"
)

// maxRemarks bounds the lists of the overview; all is in the reports.
const maxRemarks = 60

// overview is what was found, in short: how ours stand beside published designs, what
// could not run and why, and each rule that runs broke, counted.
func (b *Book) overview() page.Section {
	s := page.Section{ID: "overview", Title: "Overview"}
	if t := b.headlines(); len(t.Lines) > 1 {
		s.Parts = append(s.Parts, page.Part{Table: t})
	}
	s.Parts = append(s.Parts, page.Part{Table: b.counts()})
	var notes []page.Remark
	for _, note := range b.Notes {
		notes = append(notes, page.Remark{Text: note})
	}
	s.Parts = append(s.Parts, remarksPart(notes)...)
	for _, list := range []struct {
		heading string
		tone    page.Tone
		all     []string
	}{
		{"What failed", page.Bad, b.told((*RunRecord).failure)},
		{"What was not met", page.Bad, b.notMet()},
		{"What could not run", page.Warn, b.told(func(r *RunRecord) string { return r.Skipped })},
	} {
		if len(list.all) > 0 {
			s.Parts = append(s.Parts, page.Part{Heading: list.heading}, page.Part{Remarks: bounded(list.tone, list.all)})
		}
	}
	return s
}

// headlines are how ours stand beside the designs of each published table.
func (b *Book) headlines() *page.Table {
	t := &page.Table{Caption: "How many rows of ours are ahead of the published design in the same run, by all figures that the published row is about. Those on the same runs stand on the runs of a row before them, as where another size stands in."}
	t.Add("published table", inFront, level, behind, notCompared, "on the same runs", "rows without ours", "scenario")
	for _, r := range b.Reports {
		for i := range r.Scenario.Published {
			counts := make(map[string]int)
			all, missing := r.standings(&r.Scenario.Published[i])
			for _, row := range all {
				counts[row.outcome()]++
			}
			if len(all)+len(missing) == 0 {
				continue
			}
			t.Add(r.Scenario.Published[i].Title, fmt.Sprint(counts[inFront]), fmt.Sprint(counts[level]),
				fmt.Sprint(counts[behind]), fmt.Sprint(counts[notCompared]), fmt.Sprint(repeated(all)), fmt.Sprint(len(missing)), r.Scenario.Name)
			t.SetTone(0, tallied(all, len(missing)).Tone)
		}
	}
	return t
}

// standings are how ours stand beside the designs of a published table, and remarks on the
// rows beside which nothing of ours stands.
func (r *Report) standings(p *Published) (all []standings, missing []page.Remark) {
	b := &besides{report: r, published: p, table: &page.Table{}}
	for i := range p.Rows {
		b.row(&p.Rows[i])
	}
	return b.standings, b.missing
}

// counts are the runs of each scenario, and the rules that they broke.
func (b *Book) counts() *page.Table {
	t := &page.Table{Caption: "Runs, and the rules that they broke: each run with its marks is in the scenario's section."}
	t.Add("scenario", "runs", "failed", "not run", "made again", "marked", "rules broken")
	for _, r := range b.Reports {
		n := r.tally()
		t.Add(r.Scenario.Name, fmt.Sprint(len(r.Runs)), fmt.Sprint(n.failed), fmt.Sprint(n.skipped), fmt.Sprint(n.again),
			fmt.Sprint(n.marked), counted(n.rules, len(r.Runs)-n.again))
		switch {
		case n.failed > 0:
			t.SetTone(0, page.Bad)
		case n.skipped+n.marked > 0 || len(r.Runs) < r.Planned || len(r.notMet()) > 0:
			t.SetTone(0, page.Warn)
		}
	}
	return t
}

// runTally counts runs: those that failed, were not made, were made again, or broke a rule,
// and how many broke each rule.
type runTally struct {
	failed, skipped, again, marked int
	rules                          map[string]int
}

// tally counts the runs of a report.
func (r *Report) tally() runTally {
	n := runTally{rules: make(map[string]int)}
	for i := range r.Runs {
		run := &r.Runs[i]
		switch {
		case run.Superseded:
			n.again++
			continue
		case run.failed():
			n.failed++
		case run.Skipped != "":
			n.skipped++
		case len(run.Marks) > 0:
			n.marked++
		}
		for _, m := range run.Marks {
			n.rules[m.Rule]++
		}
	}
	return n
}

// told are sentences of runs, each with what it was said of; those that several rounds
// say are there once.
func (b *Book) told(say func(*RunRecord) string) (all []string) {
	for _, r := range b.Reports {
		for i := range r.Runs {
			run := &r.Runs[i]
			words := say(run)
			if words == "" || run.Superseded {
				continue
			}
			text := fmt.Sprintf("%s/%s/%s: %s", r.Scenario.Name, run.Workload, run.Subject, words)
			if !slices.Contains(all, text) {
				all = append(all, text)
			}
		}
	}
	return all
}

// notMet are the claims that were not met.
func (b *Book) notMet() (all []string) {
	for _, r := range b.Reports {
		all = append(all, r.notMet()...)
	}
	return all
}

// bounded are the first remarks of a list.
func bounded(tone page.Tone, texts []string) (all []page.Remark) {
	for i, text := range texts {
		if i == maxRemarks {
			return append(all, page.Remark{Tone: tone, Text: fmt.Sprintf("And %d more, in their scenarios.", len(texts)-i)})
		}
		all = append(all, page.Remark{Tone: tone, Text: text})
	}
	return all
}
