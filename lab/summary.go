package lab

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// row is one subject's runs under one workload.
type row struct {
	subject string
	runs    []*RunRecord
}

// rows collects the runs of a workload by subject, in the scenario's order.
// Subjects without a run have no row.
func (r *Report) rows(workload string) []row {
	var rows []row
	for _, s := range r.Scenario.Subjects {
		found := row{subject: s.Name}
		for i := range r.Runs {
			if run := &r.Runs[i]; run.Workload == workload && run.Subject == s.Name {
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
func bestBut(rows []row, subject string, f figure) row {
	var best row
	highest := 0.0
	for _, w := range rows {
		if v, ok := median(w.values(f)); ok && v > highest && w.subject != subject {
			best, highest = w, v
		}
	}
	return best
}

// figure reads one figure off a run, and false where the run has none.
type figure func(*RunRecord) (float64, bool)

// ofThroughput makes a figure of a throughput run.
func ofThroughput(read func(*ThroughputFigures) float64) figure {
	return func(r *RunRecord) (float64, bool) {
		if r.Throughput == nil {
			return 0, false
		}
		return read(r.Throughput), true
	}
}

// ofServer makes a figure of what was sampled of the server.
func ofServer(read func(*ServerFigures) float64) figure {
	return func(r *RunRecord) (float64, bool) {
		if r.Throughput == nil || r.Throughput.Server == nil {
			return 0, false
		}
		return read(r.Throughput.Server), true
	}
}

// ofMemory makes a figure of an idle run's memory.
func ofMemory(read func(*MemoryFigures) float64) figure {
	return func(r *RunRecord) (float64, bool) {
		if r.Idle == nil || r.Idle.Memory == nil {
			return 0, false
		}
		return read(r.Idle.Memory), true
	}
}

// The figures of the tables.
var (
	tps      = ofThroughput(func(f *ThroughputFigures) float64 { return f.TPS })
	p50      = ofThroughput(func(f *ThroughputFigures) float64 { return float64(f.P50) })
	p99      = ofThroughput(func(f *ThroughputFigures) float64 { return float64(f.P99) })
	inFlight = ofThroughput(func(f *ThroughputFigures) float64 { return f.InFlight })
	loadBusy = ofThroughput(func(f *ThroughputFigures) float64 { return f.LoadBusy })

	serverCPU  = ofServer((*ServerFigures).CPU)
	serverBusy = ofServer(func(f *ServerFigures) float64 { return f.Busy })

	bytesIdle       = ofMemory(func(f *MemoryFigures) float64 { return f.Idle })
	bytesExchanged  = ofMemory(func(f *MemoryFigures) float64 { return f.Exchanged })
	kernelIdle      = ofMemory(func(f *MemoryFigures) float64 { return f.KernelIdle })
	kernelExchanged = ofMemory(func(f *MemoryFigures) float64 { return f.KernelExchanged })
)

func dialRate(r *RunRecord) (float64, bool) {
	if r.Idle == nil {
		return 0, false
	}
	return r.Idle.DialRate, true
}

// values are a figure's values over the rounds that have it.
func (w row) values(f figure) []float64 {
	return slices.Collect(maps.Values(w.byRound(f)))
}

func (w row) byRound(f figure) map[int]float64 {
	found := make(map[int]float64)
	for _, run := range w.runs {
		if v, ok := f(run); ok {
			found[run.Round] = v
		}
	}
	return found
}

// median is the median of a figure over the rounds, as format shows it.
func (w row) median(f figure, format func(float64) string) string {
	v, ok := median(w.values(f))
	if !ok {
		return none
	}
	return format(v)
}

// spread is the spread of a figure over the rounds.
func (w row) spread(f figure) string {
	v, ok := spread(w.values(f))
	if !ok {
		return none
	}
	return fmt.Sprintf("±%.1f %%", v*100)
}

// ratio is the median over the rounds of the figure's ratio to the base's in
// the same round.
func (w row) ratio(base row, f figure) string {
	v, ok := median(ratios(w.byRound(f), base.byRound(f)))
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
		if run.Throughput != nil {
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

// none stands where there is no figure.
const none = "-"

// thousands writes 1234567.8 as "1,234,568".
func thousands(v float64) string {
	digits := fmt.Sprintf("%.0f", v)
	sign := ""
	if digits[0] == '-' {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// latency writes nanoseconds with three significant digits.
func latency(v float64) string {
	units := []struct {
		name string
		unit time.Duration
	}{{"s", time.Second}, {"ms", time.Millisecond}, {"µs", time.Microsecond}}
	for _, u := range units {
		if in := v / float64(u.unit); in >= 0.9995 {
			return significant(in) + " " + u.name
		}
	}
	return fmt.Sprintf("%.0f ns", v)
}

// significant writes a value of at least 1 with three significant digits.
func significant(v float64) string {
	switch {
	case v < 9.995:
		return fmt.Sprintf("%.2f", v)
	case v < 99.95:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.0f", v)
	}
}

func twoDecimals(v float64) string { return fmt.Sprintf("%.2f", v) }

// messages writes a number of messages in flight, which is a mean.
func messages(v float64) string {
	if v < 1000 {
		return fmt.Sprintf("%.1f", v)
	}
	return thousands(v)
}

func percent(v float64) string { return fmt.Sprintf("%.0f %%", v*100) }
