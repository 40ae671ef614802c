package lab

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// OverloadReport is what Overload saw. It is plain data: as JSON it holds every run
// raw. Durations are nanoseconds in JSON.
type OverloadReport struct {
	Machine Machine `json:"machine"`
	// Date is when the first run began.
	Date time.Time `json:"date"`
	// Command is the command line that made the report.
	Command string `json:"command"`
	// Memory is what each side was allowed, in bytes, Deadline within what time
	// a job had to end, and Queue how many were allowed to wait.
	Memory   int64         `json:"memory"`
	Deadline time.Duration `json:"deadline"`
	// Warmup is how long each side was under its load before that was counted.
	Warmup time.Duration `json:"warmup"`
	Queue  int           `json:"queue"`
	Rounds int           `json:"rounds"`
	// Sides and Workloads are what was planned.
	Sides     []OverloadSide `json:"sides"`
	Workloads []Workload     `json:"workloads"`
	// Notes are sentences on what is missing or was different.
	Notes []string `json:"notes,omitempty"`
	// Capacities are those of the shapes that were run.
	Capacities []*Capacity `json:"capacities"`
	// Planned is how many runs there were to be; Runs are those that were, in
	// the order of time.
	Planned int           `json:"planned"`
	Runs    []OverloadRun `json:"runs"`
	// Verdict is what follows from the runs.
	Verdict []Finding `json:"verdict"`
}

func (o *overload) newReport() *OverloadReport {
	r := &OverloadReport{
		Machine: thisMachine(), Date: time.Now().UTC(), Command: o.command(),
		Memory: o.Memory, Deadline: o.Deadline, Warmup: o.Warmup, Queue: o.Queue, Rounds: o.Rounds,
		Workloads: o.plan.workloads, Planned: len(o.plan.steps), Runs: []OverloadRun{},
	}
	for _, s := range o.plan.subjects {
		r.Sides = append(r.Sides, o.plan.sides[s.Name])
	}
	if text := o.missing(); text != "" {
		r.note("%s", text)
	}
	return r
}

func (r *OverloadReport) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// Failed counts the runs that failed. One that the watchdog has ended has not.
func (r *OverloadReport) Failed() int {
	n := 0
	for i := range r.Runs {
		if r.Runs[i].Error != "" {
			n++
		}
	}
	return n
}

// WriteJSON writes the report as one indented JSON object.
func (r *OverloadReport) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

// overloadRow is one side's runs under one load.
type overloadRow struct {
	side OverloadSide
	runs []*OverloadRun
}

// rows collects the runs of a workload by side, in the order of the sides. Sides
// without a run have no row.
func (r *OverloadReport) rows(workload string) (rows []overloadRow) {
	for _, s := range r.Sides {
		found := overloadRow{side: s}
		for i := range r.Runs {
			if run := &r.Runs[i]; run.Workload == workload && run.Side == s.Name {
				found.runs = append(found.runs, run)
			}
		}
		if len(found.runs) > 0 {
			rows = append(rows, found)
		}
	}
	return rows
}

// own finds the row of the pool of this repository, with all its rules.
func own(rows []overloadRow) (overloadRow, bool) {
	i := slices.IndexFunc(rows, func(w overloadRow) bool { return w.side.Own && !w.side.Variant })
	if i < 0 {
		return overloadRow{}, false
	}
	return rows[i], true
}

// overloadFigure reads one figure off a run that has a Result.
type overloadFigure func(*OverloadRun) float64

// counts says whether the run's figures are part of the medians.
func (r *OverloadRun) counts() bool { return r.Error == "" && r.Result != nil }

// median is the median of a figure over the rounds that have a Result, false when
// none has. Those that the watchdog has ended count with what they had counted.
func (w overloadRow) median(f overloadFigure) (float64, bool) {
	var values []float64
	for _, run := range w.runs {
		if run.counts() {
			values = append(values, f(run))
		}
	}
	return median(values)
}

// cell is the median as format shows it.
func (w overloadRow) cell(f overloadFigure, format func(float64) string) string {
	v, ok := w.median(f)
	if !ok {
		return none
	}
	return format(v)
}

// peak is the most memory of all rounds, in bytes; 0 is not known.
func (w overloadRow) peak() (most int64) {
	for _, run := range w.runs {
		most = max(most, run.PeakRSS)
	}
	return most
}

// ended finds the first run that the watchdog has ended, nil if there is none.
func (w overloadRow) ended() *OverloadRun {
	for _, run := range w.runs {
		if run.Ended != nil {
			return run
		}
	}
	return nil
}

// marks names the rules that the runs broke, and failures.
func (w overloadRow) marks() string {
	counts := make(map[string]int)
	for _, run := range w.runs {
		if run.Error != "" {
			counts["FAILED"]++
		}
		for _, m := range run.Marks {
			counts[m.Rule]++
		}
	}
	return counted(counts, len(w.runs))
}

// goodput is how many jobs a second have ended within their deadline. Those that
// were submitted last may have ended up to a deadline after the time in which jobs
// were offered. After a warm-up they are those that ended in that time, whenever
// they were submitted, since others were under way when it began. Of a process that was ended the time is all that was planned.
func (r *OverloadRun) goodput() float64 {
	window := min(r.Result.Elapsed, r.Window+r.Deadline)
	good := r.Result.Good
	if r.Result.Warmup > 0 {
		good, window = r.Result.Steady, min(r.Result.Elapsed, r.Window)
	}
	if r.Ended != nil {
		window = r.Window
	}
	if window <= 0 {
		return 0
	}
	return float64(good) / window.Seconds()
}

// cores is how many CPUs the process kept busy.
func (r *OverloadRun) cores() float64 {
	return part(r.Result.CPUUser+r.Result.CPUSystem, r.Result.Elapsed)
}
