package lab

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/page"
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
	return strings.Join(words, ": ")
}

// remark is the finding for people.
func (f Finding) remark() page.Remark {
	tones := map[string]page.Tone{Met: page.Good, NotMet: page.Bad, NotMeasured: page.Warn}
	return page.Remark{Tone: tones[f.Outcome], Text: f.String()}
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

// overloadVerdict is what follows from all runs of kind Offering, and what is missing.
func overloadVerdict(r *Report) []page.Part {
	var remarks []page.Remark
	for _, f := range r.judgeOverload() {
		remarks = append(remarks, f.remark())
	}
	if len(remarks) == 0 {
		return nil
	}
	if missing := r.missingPeers(); missing != "" {
		remarks = append(remarks, page.Remark{Tone: page.Faint, Text: missing})
	}
	return []page.Part{{Heading: "verdict"}, {Remarks: remarks}}
}

// missingPeers says which sides of the module peers are not part of the runs.
func (r *Report) missingPeers() string {
	var names []string
	for _, s := range r.Scenario.Subjects {
		if s.Optional && s.says(peersMark) {
			names = append(names, s.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("Missing: %s, which are part of the module peers. To add them: "+
		"go build -C peers -o FILE . && myriad bench overload --peers FILE", joined(names))
}

// judgeOverload says what follows from the runs, for each shape that was run.
func (r *Report) judgeOverload() (all []Finding) {
	ran := make(map[string]bool)
	for i := range r.Runs {
		if f := r.Runs[i].Overload; f != nil {
			ran[f.Shape] = true
		}
	}
	for _, shape := range shapes {
		if ran[shape] {
			all = append(all, r.judgeGoodput(shape), r.judgeLatency(shape))
		}
	}
	if len(ran) > 0 {
		all = append(all, r.judgeMemory(), r.judgeOthers(), r.aheadInOne())
		all = append(all, r.unbounded()...)
	}
	return all
}

// offering lists the workloads of kind Offering.
func (r *Report) offering() (all []Workload) {
	for _, w := range r.Scenario.Workloads {
		if w.Offer != nil {
			all = append(all, w)
		}
	}
	return all
}

// ownFigure is the median of a figure of the own pool. The problem is why a verdict
// can't use it, "" if it can.
func (r *Report) ownFigure(shape, load string, f Figure) (v float64, problem string) {
	name := shape + "-" + load
	var w row
	for _, x := range r.offering() {
		if x.Offer.Shape == shape && x.Offer.load() == load {
			name, w = x.Name, r.own(r.rows(x.Name))
			break
		}
	}
	if len(w.runs) == 0 {
		return 0, name + " was not run"
	}
	if failed := w.lacking(); failed != "" {
		return 0, name + ": " + failed
	}
	v, _ = f.median(w)
	return v, ""
}

// lacking says how many of the runs have no figures, "" if all have.
func (w row) lacking() string {
	n, why := 0, ""
	for _, run := range w.runs {
		if run.offered() {
			continue
		}
		if n++; n == 1 {
			if why, _, _ = strings.Cut(run.Error, "\n"); why == "" && run.Overload != nil {
				why = run.unfit()
			}
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%s has failed in %d of %d rounds: %s", w.subject, n, len(w.runs), why)
}

func (r *Report) judgeGoodput(shape string) Finding {
	f := Finding{Claim: fmt.Sprintf("%s: goodput at 10x at least %.0f %% of that at 1x", shape, keptGoodput*100)}
	base, problem := r.ownFigure(shape, once, goodput)
	got, problem2 := r.ownFigure(shape, tenfold, goodput)
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

func (r *Report) judgeLatency(shape string) Finding {
	f := Finding{Claim: fmt.Sprintf("%s: p99 at 10x at most %d × the unloaded one + %v", shape, latencyFactor, targetWait)}
	base, problem := r.ownFigure(shape, unloaded, p99)
	got, problem2 := r.ownFigure(shape, tenfold, p99)
	if problem == "" && base == never {
		problem = "no job has run " + unloaded
	}
	if problem = cmp.Or(problem, problem2); problem != "" {
		f.Outcome, f.Detail = NotMeasured, problem
		return f
	}
	most := latencyFactor*base + targetWait.Seconds()
	f.Outcome = outcome(got <= most)
	f.Detail = fmt.Sprintf("%s; allowed %s (unloaded %s)", p99.Text(got), p99.Text(most), p99.Text(base))
	return f
}

// judgeMemory looks at the peaks. What a run that failed would have taken is not
// known.
func (r *Report) judgeMemory() Finding {
	f := Finding{Claim: "peak memory within what is allowed, in every row", Outcome: NotMeasured}
	var most, allowed int64
	worst := 0.0 // as a part of what is allowed
	where, failed := "", ""
	for _, w := range r.offering() {
		row := r.own(r.rows(w.Name))
		if len(row.runs) == 0 {
			continue
		}
		may := w.Offer.filled().Memory
		if share := float64(row.peak()) / float64(may); share > worst {
			worst, most, allowed, where = share, row.peak(), may, w.Name
		}
		if text := row.lacking(); text != "" && failed == "" {
			failed = w.Name + ": " + text
		}
	}
	switch {
	case failed != "" && most <= allowed:
		f.Detail = failed
	case most > 0:
		f.Outcome = outcome(most <= allowed)
		f.Detail = fmt.Sprintf("%.2f of %.2f GB (in %s)", float64(most)/1e9, float64(allowed)/1e9, where)
	}
	return f
}

// unbounded says how sides without bounds have ended, where more than the capacity was
// offered or the watchdog has ended them.
func (r *Report) unbounded() (all []Finding) {
	for _, w := range r.offering() {
		over := w.Offer.Rate > 0 || w.Offer.Times > 1
		for _, row := range r.rows(w.Name) {
			if r.sideOf(row.subject).Unbounded && (over || len(row.ended()) > 0) {
				all = append(all, Finding{Claim: w.Name + ": " + row.subject, Detail: row.end()})
			}
		}
	}
	return all
}

// end says how a row's runs have ended.
func (w row) end() string {
	if ended := w.ended(); len(ended) > 0 {
		return fmt.Sprintf("%s (%d of %d rounds)", ended[0].Overload.Ended, len(ended), len(w.runs))
	}
	if len(goodput.values(w)) == 0 {
		return "failed"
	}
	return fmt.Sprintf("came to its end with a goodput of %s of the capacity, p99 %s and %s",
		w.cell(ofCapacity), w.cell(p99), megabytes(w.peak()))
}
