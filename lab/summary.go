package lab

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// row is one subject's runs under one workload.
type row struct {
	subject string
	runs    []*RunRecord
	// superseded are those that were made again: they are told of, and are part of no
	// figure.
	superseded []*RunRecord
}

// rows collects the runs of a workload by subject, in the scenario's order.
// Subjects without a run have no row.
func (r *Report) rows(workload string) []row {
	var rows []row
	for _, s := range r.Scenario.Subjects {
		found := row{subject: s.Name}
		for i := range r.Runs {
			run := &r.Runs[i]
			if run.Workload != workload || run.Subject != s.Name {
				continue
			}
			if run.Superseded {
				found.superseded = append(found.superseded, run)
			} else {
				found.runs = append(found.runs, run)
			}
		}
		if len(found.runs) > 0 {
			rows = append(rows, found)
		}
	}
	return rows
}

// rowOf finds a subject's row, an empty one when it was not run.
func rowOf(rows []row, subject string) row {
	for _, w := range rows {
		if w.subject == subject {
			return w
		}
	}
	return row{}
}

// bestBut finds the row with the highest median of a figure among those of other
// subjects than one, an empty one when none has the figure.
func bestBut(rows []row, subject string, f Figure) row {
	var best row
	highest := 0.0
	for _, w := range rows {
		if v, ok := f.median(w); ok && v > highest && w.subject != subject {
			best, highest = w, v
		}
	}
	return best
}

// cell is the median of a figure over the rounds.
func (w row) cell(f Figure) string {
	v, ok := f.median(w)
	if !ok {
		return none
	}
	return f.Text(v)
}

// spread is the spread of a figure over the rounds.
func (w row) spread(f Figure) string { return around(f.values(w)) }

// ratio is the median over the rounds of the figure's ratio to the base's in
// the same round.
func (w row) ratio(base row, f Figure) string {
	v, ok := f.ratio(w, base)
	if !ok {
		return none
	}
	return fmt.Sprintf("%.2f", v)
}

// bottleneck is the verdict of the rounds: one word when they agree, otherwise
// each with its count.
func (w row) bottleneck() string {
	counts := make(map[string]int)
	for _, run := range w.runs {
		if run.Throughput != nil && run.Error == "" {
			counts[run.Throughput.Bottleneck]++
		}
	}
	return tally(counts)
}

// marks names the rules that the runs broke, and failures.
func (w row) marks() string {
	counts := make(map[string]int)
	for _, run := range w.runs {
		if run.Error != "" {
			counts["FAILED"]++
		}
		if run.Skipped != "" {
			counts["not run"]++
		}
		for _, m := range run.Marks {
			counts[m.Rule]++
		}
	}
	return counted(counts, len(w.runs))
}

// counted writes words with how many of the runs have each, the most frequent
// first.
func counted(counts map[string]int, runs int) string {
	var words []string
	for _, word := range byCount(counts) {
		words = append(words, fmt.Sprintf("%s %d/%d", word, counts[word], runs))
	}
	return strings.Join(words, ", ")
}

// tally writes counted words, the most frequent first.
func tally(counts map[string]int) string {
	words := byCount(counts)
	switch len(words) {
	case 0:
		return none
	case 1:
		return words[0]
	}
	for i, word := range words {
		words[i] = fmt.Sprintf("%s %d", word, counts[word])
	}
	return strings.Join(words, ", ")
}

func byCount(counts map[string]int) []string {
	return slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
}
