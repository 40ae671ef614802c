package lab

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// WriteText writes the report for people: what was run and where, a table for each
// load, under it every rule that a run broke and every error, and the verdict.
func (r *OverloadReport) WriteText(w io.Writer) error {
	var b bytes.Buffer
	r.header(&b)
	for _, workload := range r.Workloads {
		rows := r.rows(workload.Name)
		if len(rows) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n%s: %s Offered are %s a second.\n", workload.Name, workload.Caption, thousands(rows[0].runs[0].Rate))
		t := r.table(rows)
		if err := t.write(&b); err != nil {
			return err
		}
		for _, row := range rows {
			row.remarks(&b)
		}
	}
	if len(r.Verdict) > 0 {
		b.WriteString("\nverdict\n")
	}
	for _, f := range r.Verdict {
		fmt.Fprintf(&b, "  %s\n", strings.ReplaceAll(f.String(), "\n", "\n      "))
	}
	_, err := w.Write(b.Bytes())
	return err
}

// header says what was run, where, and how the figures are to be read.
func (r *OverloadReport) header(b *bytes.Buffer) {
	fmt.Fprintf(b, "overload: %s\n\n", overloadQuestion)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(b, "  %-9s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("machine", "%s", r.Machine)
	line("date", "%s", r.Date.UTC().Format(time.DateTime+" MST"))
	line("command", "%s", r.Command)
	line("sides", "a process each, which offers jobs to itself in an open loop: at fixed times, whether the side")
	line("", "keeps up or not; memory %.2f GB, deadline %v, %s jobs may wait; not pinned", float64(r.Memory)/1e9, r.Deadline, thousands(float64(r.Queue)))
	for _, c := range r.Capacities {
		line("capacity", "%s: %s jobs a second in a closed loop (%s)%s", c.Shape, thousands(c.PerSecond), c.Side, c.told())
	}
	line("", "ours is not told how many workers are best; it may have up to %s", thousands(ownWorkers))
	line("", "ours and failsafe get the deadline of each job, as its context; naive, channel, ants and pond")
	line("", "have no such thing, and run a job that is late")
	line("figures", "medians over the rounds (%d), sides in turn, peak RSS the most of all; goodput is jobs a second", r.Rounds)
	line("", "that ended within the deadline; latencies are of jobs that ran, from their submission until")
	line("", "they ended (of network: from when they were due); a run whose generator was late is marked;")
	line("", "CPU is processors kept busy, generator included (of network: not); 1x is exactly the capacity")
	if r.Warmup > 0 {
		line("", "left out of all but the peaks is a warm-up of %v under the same load", r.Warmup)
	}
	for _, note := range r.Notes {
		line("note", "%s", note)
	}
}

// told says what the sides are told that want a number of workers.
func (c *Capacity) told() string {
	if c.Workers == 0 {
		return ""
	}
	return fmt.Sprintf("; others are told the best number of workers, %d", c.Workers)
}

func (r *OverloadReport) table(rows []overloadRow) *table {
	t := &table{}
	t.add("side", "offered", "finished", "rejected", "expired", "shed", "goodput/s", "of capacity",
		"p50", "p99", "p99.9", "peak RSS", "goroutines", "workers", "CPU", "marks")
	capacity := r.capacity(rows[0].runs[0].Shape)
	ofCapacity := func(run *OverloadRun) float64 { return run.goodput() / capacity }
	for _, w := range rows {
		t.add(w.side.Name, w.cell(offered, thousands), w.cell(finished, thousands), w.cell(rejected, thousands),
			w.cell(expired, thousands), w.cell(shed, thousands), w.cell((*OverloadRun).goodput, thousands),
			w.cell(ofCapacity, percent), w.cell(runP50, runLatency), w.cell(runP99, runLatency), w.cell(runP999, runLatency),
			megabytes(w.peak()), w.cell(goroutines, orNone), w.cell(workers, orNone),
			w.cell((*OverloadRun).cores, coresOrNone), w.marks())
	}
	return t
}

// capacity is that of a shape, 1 when it is not known.
func (r *OverloadReport) capacity(shape string) float64 {
	for _, c := range r.Capacities {
		if c.Shape == shape && c.PerSecond > 0 {
			return c.PerSecond
		}
	}
	return 1
}

// The figures of the table.
func offered(r *OverloadRun) float64    { return float64(r.Result.Offered) }
func finished(r *OverloadRun) float64   { return float64(r.Result.Finished) }
func rejected(r *OverloadRun) float64   { return float64(r.Result.Rejected) }
func expired(r *OverloadRun) float64    { return float64(r.Result.Expired) }
func shed(r *OverloadRun) float64       { return float64(r.Result.Shed) }
func runP50(r *OverloadRun) float64     { return ran(r.Result.P50) }
func runP99(r *OverloadRun) float64     { return ran(r.Result.P99) }
func runP999(r *OverloadRun) float64    { return ran(r.Result.P999) }
func goroutines(r *OverloadRun) float64 { return float64(r.Result.PeakGoroutines) }
func workers(r *OverloadRun) float64    { return float64(r.Result.PeakWorkers) }

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

// runLatency writes a latency that may be never.
func runLatency(v float64) string {
	if v == never {
		return none
	}
	return latency(v)
}

// orNone writes a count that is 0 when it is not known.
func orNone(v float64) string {
	if v == 0 {
		return none
	}
	return thousands(v)
}

// coresOrNone writes a number of processors; 0 is not known.
func coresOrNone(v float64) string {
	if v == 0 {
		return none
	}
	return twoDecimals(v)
}

// megabytes writes bytes; 0 is not known.
func megabytes(v int64) string {
	if v == 0 {
		return none
	}
	return thousands(float64(v)/1e6) + " MB"
}

// remarks writes each rule that was broken and each error.
func (w overloadRow) remarks(b *bytes.Buffer) {
	for _, run := range w.runs {
		if run.Error != "" {
			text := strings.ReplaceAll(run.Error, "\n", "\n      ")
			fmt.Fprintf(b, "    %s, round %d: FAILED: %s\n", w.side.Name, run.Round, text)
		}
		for _, m := range run.Marks {
			fmt.Fprintf(b, "    %s, round %d: %s: %s\n", w.side.Name, run.Round, m.Rule, m.Detail)
		}
	}
}
