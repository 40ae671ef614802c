package lab

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Finding is a claim and what the runs say of it.
type Finding struct {
	Claim string `json:"claim"`
	// Outcome is Met, NotMet, NotMeasured, or "" for a finding without a claim.
	Outcome string `json:"outcome,omitempty"`
	Detail  string `json:"detail"`
}

// The outcomes of a Finding.
const (
	Met         = "met"
	NotMet      = "NOT MET"
	NotMeasured = "not measured"
)

func (f Finding) String() string {
	words := slices.DeleteFunc([]string{f.Claim, f.Outcome, f.Detail}, func(word string) bool { return word == "" })
	return strings.ReplaceAll(strings.Join(words, ": "), ": \n", ":\n")
}

// outcome is Met or NotMet.
func outcome(met bool) string {
	if met {
		return Met
	}
	return NotMet
}

const (
	// keptGoodput is how much of the goodput at 1x there has to be at 10x.
	keptGoodput = 0.95
	// latencyFactor × the unloaded p99 + targetWait, the pool's default target,
	// bounds the p99 at 10x.
	latencyFactor = 3
	targetWait    = 5 * time.Millisecond
	// ahead is how much better both figures have to be to be ahead in both,
	// farAhead how much one has to be that is told of.
	ahead    = 1.01
	farAhead = 1.05
)

// judge says what follows from the runs, for each shape that was run.
func (r *OverloadReport) judge() (all []Finding) {
	ran := make(map[string]bool)
	for i := range r.Runs {
		ran[r.Runs[i].Shape] = true
	}
	for _, s := range shapes {
		if ran[s.name] {
			all = append(all, r.judgeGoodput(s.name), r.judgeLatency(s.name))
		}
	}
	if len(ran) > 0 {
		all = append(all, r.judgeMemory(), r.judgeOthers(), r.aheadInOne())
		all = append(all, r.naive()...)
	}
	return all
}

// ownFigure is the median of a figure of the own pool. The problem is why a verdict
// can't use it, "" if it can.
func (r *OverloadReport) ownFigure(shape, load string, f overloadFigure) (v float64, problem string) {
	name := shape + "-" + load
	w, ok := own(r.rows(name))
	if !ok {
		return 0, name + " was not run"
	}
	if failed := w.failed(); failed != "" {
		return 0, name + ": " + failed
	}
	v, _ = w.median(f)
	return v, ""
}

// failed says how many of the runs have no figures, "" if all have.
func (w overloadRow) failed() string {
	n, why := 0, ""
	for _, run := range w.runs {
		if run.counts() {
			continue
		}
		if n++; n == 1 {
			if why, _, _ = strings.Cut(run.Error, "\n"); why == "" && run.Ended != nil {
				why = run.Ended.String()
			}
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%s has failed in %d of %d rounds: %s", w.side.Name, n, len(w.runs), why)
}

func (r *OverloadReport) judgeGoodput(shape string) Finding {
	f := Finding{Claim: fmt.Sprintf("%s: goodput at 10x at least %.0f %% of that at 1x", shape, keptGoodput*100)}
	base, problem := r.ownFigure(shape, once, (*OverloadRun).goodput)
	got, problem2 := r.ownFigure(shape, tenfold, (*OverloadRun).goodput)
	if problem == "" && base <= 0 {
		problem = "no goodput at 1x"
	}
	if problem = cmp.Or(problem, problem2); problem != "" {
		f.Outcome, f.Detail = NotMeasured, problem
		return f
	}
	f.Outcome = outcome(got >= keptGoodput*base)
	f.Detail = fmt.Sprintf("%.1f %% (%s of %s a second)", got/base*100, thousands(got), thousands(base))
	return f
}

func (r *OverloadReport) judgeLatency(shape string) Finding {
	f := Finding{Claim: fmt.Sprintf("%s: p99 at 10x at most %d × the unloaded one + %v", shape, latencyFactor, targetWait)}
	base, problem := r.ownFigure(shape, unloaded, runP99)
	got, problem2 := r.ownFigure(shape, tenfold, runP99)
	if problem == "" && base == never {
		problem = "no job has run " + unloaded
	}
	if problem = cmp.Or(problem, problem2); problem != "" {
		f.Outcome, f.Detail = NotMeasured, problem
		return f
	}
	most := latencyFactor*base + float64(targetWait)
	f.Outcome = outcome(got <= most)
	f.Detail = fmt.Sprintf("%s; allowed %s (unloaded %s)", runLatency(got), latency(most), latency(base))
	return f
}

// judgeMemory looks at the peaks. What a run that failed would have taken is not
// known.
func (r *OverloadReport) judgeMemory() Finding {
	f := Finding{Claim: "peak memory within what is allowed, in every row", Outcome: NotMeasured}
	var most int64
	where, failed := "", ""
	for _, w := range r.Workloads {
		row, ok := own(r.rows(w.Name))
		if !ok {
			continue
		}
		if row.peak() > most {
			most, where = row.peak(), w.Name
		}
		if text := row.failed(); text != "" && failed == "" {
			failed = w.Name + ": " + text
		}
	}
	switch {
	case failed != "" && most <= r.Memory:
		f.Detail = failed
	case most > 0:
		f.Outcome = outcome(most <= r.Memory)
		f.Detail = fmt.Sprintf("%.2f of %.2f GB (in %s)", float64(most)/1e9, float64(r.Memory)/1e9, where)
	}
	return f
}

// naive says how goroutines without bounds have ended, where more than the capacity
// was offered or the watchdog has ended them.
func (r *OverloadReport) naive() (all []Finding) {
	for _, w := range r.Workloads {
		for _, row := range r.rows(w.Name) {
			first := row.runs[0]
			over := first.Load != unloaded && first.Load != once
			if row.side.Name == sideNaive && (over || row.ended() != nil) {
				all = append(all, Finding{Claim: w.Name + ": naive", Detail: row.end(r.capacity(first.Shape))})
			}
		}
	}
	return all
}

// end says how a row's runs have ended.
func (w overloadRow) end(capacity float64) string {
	if run := w.ended(); run != nil {
		n := 0
		for _, run := range w.runs {
			if run.Ended != nil {
				n++
			}
		}
		return fmt.Sprintf("%s (%d of %d rounds)", run.Ended, n, len(w.runs))
	}
	good, ok := w.median((*OverloadRun).goodput)
	late, _ := w.median(runP99)
	if !ok {
		return "failed"
	}
	return fmt.Sprintf("came to its end with a goodput of %.0f %% of the capacity, p99 %s and %s", good/capacity*100, runLatency(late), megabytes(w.peak()))
}
