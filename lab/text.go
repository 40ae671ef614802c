package lab

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"
)

// WriteText writes the report for people: what was run and where, then a table
// for each workload, and under it every rule that a run broke and every error.
func (r *Report) WriteText(w io.Writer) error {
	var b bytes.Buffer
	r.header(&b)
	if err := r.parking(&b); err != nil {
		return err
	}
	for _, workload := range r.Scenario.Workloads {
		rows := r.rows(workload.Name)
		if len(rows) == 0 || workload.Kind == Parking {
			continue
		}
		fmt.Fprintf(&b, "\n%s: %s\n", workload.Name, workload.Caption)
		if err := r.tables(&b, rows, workload); err != nil {
			return err
		}
		if workload.Kind == Throughput {
			r.choice(&b, rows)
		}
		remarks(&b, rows)
	}
	if err := r.million(&b); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

// tables writes the tables of a workload.
func (r *Report) tables(b *bytes.Buffer, rows []row, w Workload) error {
	switch {
	case w.Full:
		return fullTables(b, rows, w)
	case w.Kind == Idle:
		return r.idleTable(rows).write(b)
	case w.Kind == Heartbeats:
		return heartbeatTable(rows, w).write(b)
	}
	return r.throughputTable(rows).write(b)
}

// header says what was run, where, and how the figures are to be read.
func (r *Report) header(b *bytes.Buffer) {
	fmt.Fprintf(b, "%s: %s\n\n", r.Scenario.Name, r.Scenario.Question)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(b, "  %-8s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("machine", "%s", r.Machine)
	line("pinning", "%s", r.pinning())
	line("date", "%s", r.Date.UTC().Format(time.DateTime+" MST"))
	line("command", "%s", r.Command)
	line("figures", "medians over the rounds (%d), subjects in turn; ± is half the spread over the rounds;", r.Scenario.Rounds)
	line("", "p50 and p99 are medians of each run's own percentile; the ratio is the median of each")
	line("", "round's ratio to %s; CPU is the server's, user and system; marks are explained below", r.Scenario.Baseline)
	line("", "their table, with the number of runs that have them")
	for _, note := range r.Notes {
		line("note", "%s", note)
	}
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

func (r *Report) throughputTable(rows []row) *table {
	t := &table{}
	t.add("subject", "TPS", "±", "p50", "p99", "CPU µs/msg", "ratio to "+r.Scenario.Baseline,
		"in flight", "expected", "server CPU", "load CPU", "bottleneck", "marks")
	base := r.base(rows)
	for _, w := range rows {
		expected := w.median(ofThroughput(func(f *ThroughputFigures) float64 { return float64(f.Expected) }), thousands)
		t.add(w.subject, w.median(tps, thousands), w.spread(tps), w.median(p50, latency), w.median(p99, latency),
			w.median(serverCPU, twoDecimals), w.ratio(base, tps), w.median(inFlight, messages), expected,
			w.median(serverBusy, percent), w.median(loadBusy, percent), w.bottleneck(), w.marks())
	}
	return t
}

func (r *Report) idleTable(rows []row) *table {
	t := &table{}
	t.add("subject", "bytes/conn idle", "±", "after one exchange", "ratio to "+r.Scenario.Baseline,
		"kernel slab bytes/conn, both ends", "after one exchange", "dial conn/s", "marks")
	base := r.base(rows)
	for _, w := range rows {
		t.add(w.subject, w.median(bytesIdle, thousands), w.spread(bytesIdle), w.median(bytesExchanged, thousands),
			w.ratio(base, bytesIdle), w.median(kernelIdle, thousands), w.median(kernelExchanged, thousands),
			w.median(dialRate, thousands), w.marks())
	}
	return t
}

// choice says how the subject that chooses for itself compares with the best of
// the others, when both were run.
func (r *Report) choice(b *bytes.Buffer, rows []row) {
	auto, best := rowOf(rows, r.Scenario.Auto), bestBut(rows, r.Scenario.Auto, tps)
	if ratio := auto.ratio(best, tps); ratio != none {
		fmt.Fprintf(b, "  %s is at %s of the best of the others (%s)\n", auto.subject, ratio, best.subject)
	}
}

// remarks writes each rule that was broken and each error.
func remarks(b *bytes.Buffer, rows []row) {
	for _, w := range rows {
		for _, run := range w.runs {
			if run.Error != "" {
				text := strings.ReplaceAll(run.Error, "\n", "\n      ")
				fmt.Fprintf(b, "    %s, round %d: FAILED: %s\n", w.subject, run.Round, text)
			}
			if run.Skipped != "" {
				fmt.Fprintf(b, "    %s, round %d: not run: %s\n", w.subject, run.Round, run.Skipped)
			}
			for _, m := range run.Marks {
				fmt.Fprintf(b, "    %s, round %d: %s: %s\n", w.subject, run.Round, m.Rule, m.Detail)
			}
		}
	}
}
