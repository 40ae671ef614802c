package lab

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/myriad-go/myriad/internal/page"
)

// Section is the report as a section of a page: how it was run, the tables of each
// workload with every rule that a run broke and every error, and the published tables
// with ours beside them. On which machine, when and by which command is not in it.
func (r *Report) Section() page.Section {
	s := page.Section{ID: partID(r.Scenario.Name), Title: r.Scenario.Name, Lead: r.Scenario.Question}
	for _, text := range strings.Split(r.Scenario.About, "\n\n") {
		s.Parts = append(s.Parts, paragraph(text)...)
	}
	s.Parts = append(s.Parts, paragraph(r.reading())...)
	s.Parts = append(s.Parts, remarksPart(r.noted())...)
	s.Parts = append(s.Parts, r.parkedParts()...)
	for _, w := range r.Scenario.Workloads {
		s.Parts = append(s.Parts, r.workloadParts(w)...)
	}
	s.Parts = append(s.Parts, r.millionParts()...)
	s.Parts = append(s.Parts, r.verdicts()...)
	for i := range r.Scenario.Published {
		s.Parts = append(s.Parts, r.publishedParts(&r.Scenario.Published[i])...)
	}
	return s
}

// partID makes a name of small letters, digits and dashes.
func partID(name string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			return c
		}
		return '-'
	}, strings.ToLower(name))
}

// paragraph is a part with a text, none of no text.
func paragraph(text string) []page.Part {
	if text = strings.TrimSpace(text); text == "" {
		return nil
	}
	return []page.Part{{Text: text}}
}

// remarksPart is a list, none of no remarks.
func remarksPart(all []page.Remark) []page.Part {
	if len(all) == 0 {
		return nil
	}
	return []page.Part{{Remarks: all}}
}

// reading says how the figures are to be read.
func (r *Report) reading() string {
	rounds, most := strconv.Itoa(r.Scenario.Rounds), r.Scenario.Rounds
	for _, w := range r.Scenario.Workloads {
		if n := r.Scenario.roundsOf(w); n != r.Scenario.Rounds {
			rounds += fmt.Sprintf("; %s %d", w.Name, n)
			most = max(most, n)
		}
	}
	text := fmt.Sprintf("Pinning: %s. Figures are medians over the rounds (%s), subjects in turn", r.pinning(), rounds)
	if most > 1 {
		text += "; ± is a confidence interval of 95 % by the rounds: another run agrees if its figure is no further away than both ± together"
	} else {
		text += "; of one round there is no ±"
	}
	text += "; p50 and p99 are medians of each run's own percentile"
	if r.Scenario.Baseline != "" {
		text += "; the ratio is the median of each round's ratio to " + r.Scenario.Baseline
	}
	return text + "; CPU is the server's, user and system. Marks are explained below their table, with the number of runs that have them."
}

// noted are the notes.
func (r *Report) noted() (all []page.Remark) {
	for _, note := range r.Notes {
		all = append(all, page.Remark{Text: note})
	}
	return all
}

// workloadParts are what there is to say of a workload, nothing where nothing was run.
func (r *Report) workloadParts(w Workload) []page.Part {
	rows := r.rows(w.Name)
	if len(rows) == 0 || w.Kind == Parking {
		return nil
	}
	parts := []page.Part{{Heading: w.Name}}
	switch own := kinds[w.Kind]; {
	case own.parts != nil:
		parts = append(append(parts, paragraph(w.Caption)...), own.parts(r, rows, w)...)
	case w.Full:
		parts = append(parts, fullParts(rows, w)...)
	case w.Kind == Idle:
		parts = append(parts, tablePart(w.Caption, r.idleTable(rows)))
	case w.Kind == Heartbeats:
		parts = append(parts, tablePart(w.Caption, heartbeatTable(rows, w)))
	default:
		parts = append(parts, tablePart(w.Caption, r.throughputTable(rows)))
		parts = append(parts, paragraph(r.choice(rows))...)
	}
	return append(parts, remarksPart(remarks(rows))...)
}

// tablePart is a table with its caption. Its last column is that of the marks.
func tablePart(caption string, t *page.Table) page.Part {
	t.Caption = caption
	return page.Part{Table: t}
}

// choice says how the subject that chooses for itself compares with the best of
// the others, when both were run.
func (r *Report) choice(rows []row) string {
	auto, best := rowOf(rows, r.Scenario.Auto), bestBut(rows, r.Scenario.Auto, tps)
	ratio := auto.ratio(best, tps)
	if ratio == none {
		return ""
	}
	return fmt.Sprintf("%s is at %s of the best of the others (%s)", auto.subject, ratio, best.subject)
}

// remarks are each rule that was broken and each error.
func remarks(rows []row) (all []page.Remark) {
	for _, w := range rows {
		add := func(tone page.Tone, run *RunRecord, format string, args ...any) {
			text := fmt.Sprintf("%s, round %d: ", w.subject, run.Round) + fmt.Sprintf(format, args...)
			all = append(all, page.Remark{Tone: tone, Text: text})
		}
		for _, run := range w.superseded {
			add(page.Faint, run, "made again, and attempt %d counts for nothing: %s", cmp.Or(run.Attempt, 1), run.faults())
		}
		for _, run := range w.runs {
			if run.Error != "" {
				add(page.Bad, run, "FAILED: %s", run.Error)
			}
			if run.Skipped != "" {
				add(page.Warn, run, "not run: %s", run.Skipped)
			}
			for _, m := range run.Marks {
				add(page.Warn, run, "%s: %s", m.Rule, m.Detail)
			}
		}
	}
	return all
}

// faults are the run's error and the rules that it broke, in a line.
func (r *RunRecord) faults() string {
	var all []string
	if r.Error != "" {
		all = append(all, r.Error)
	}
	for _, m := range r.Marks {
		all = append(all, m.Rule+": "+m.Detail)
	}
	return strings.Join(all, "; ")
}

// addMarked adds a line that ends with the marks of a row.
func addMarked(t *page.Table, w row, cells ...string) {
	t.Add(append(cells, w.marks())...)
	t.SetTone(len(cells), w.tone())
}

// tone is how serious the marks of a row are.
func (w row) tone() page.Tone {
	tone := page.Plain
	for _, run := range w.runs {
		if run.Error != "" {
			return page.Bad
		}
		if run.Skipped != "" || len(run.Marks) > 0 {
			tone = page.Warn
		}
	}
	return tone
}
