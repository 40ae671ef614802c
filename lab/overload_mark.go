package lab

import (
	"fmt"

	"github.com/myriad-go/myriad/internal/offer"
)

// The rules that a run under overload can break, beside RuleNoise.
const (
	// RuleLate: more than 1 % of the jobs were offered more than 10 ms after they
	// were due, or never.
	RuleLate = "late"
	// RuleWatchdog: the watchdog has ended the process.
	RuleWatchdog = "watchdog"
	// RuleOverran: the process has ended the run early.
	RuleOverran = "overran"
	// RuleUnfinished: jobs had not ended when the run did.
	RuleUnfinished = "unfinished"
	// RulePanicked: jobs have panicked.
	RulePanicked = "panicked"
	// RuleBooks: the counts of jobs do not add up.
	RuleBooks = "books"
	// RuleCapacity: there was much more goodput than the capacity, so that was
	// measured too low, and the load is less than its name says.
	RuleCapacity = "capacity"
	// RuleUnguarded: the watchdog could not see the process.
	RuleUnguarded = "unguarded"
)

const (
	lateTolerance     = 0.01
	capacityTolerance = 1.10
)

// markOverload names the rules that a run of kind Offering broke.
func (rec *RunRecord) markOverload() {
	add := func(rule, format string, args ...any) {
		rec.Marks = append(rec.Marks, Mark{rule, fmt.Sprintf(format, args...)})
	}
	r := rec.Overload
	if r.Ended != nil {
		text := r.Ended.String()
		if r.Result == nil {
			text += ", before it had said what it had counted"
		} else if w := r.Warming; r.Ended.Warming && w != nil {
			text += fmt.Sprintf("; of %s jobs that it was offered by then %s had finished, %s of them within their deadline",
				thousands(float64(w.Offered)), thousands(float64(w.Finished)), thousands(float64(w.Good)))
		}
		add(RuleWatchdog, "%s", text)
	}
	f := r.Result
	if f == nil {
		return
	}
	if due := f.Offered + f.Missed; r.late() > lateTolerance {
		add(RuleLate, "of %s jobs that were due %s were offered more than 10 ms late, and %s never%s",
			thousands(float64(due)), thousands(float64(f.Late)), thousands(float64(f.Missed)), lateP99(f))
	}
	if good := r.goodput(); good > r.Capacity*capacityTolerance {
		add(RuleCapacity, "goodput is %.0f %% of the capacity: that was measured too low", good/r.Capacity*100)
	}
	if f.Overran != "" {
		add(RuleOverran, "%s", f.Overran)
	}
	if f.Panicked > 0 {
		add(RulePanicked, "%s jobs have panicked", thousands(float64(f.Panicked)))
	}
	if r.Ended == nil { // what was under way then is no fault of the books
		rec.checkBooks(f)
	}
}

// checkBooks looks whether the counts of jobs add up.
func (rec *RunRecord) checkBooks(f *offer.Result) {
	if f.Unfinished > 0 {
		rec.Marks = append(rec.Marks, Mark{RuleUnfinished, fmt.Sprintf("%s jobs had not ended when the run did", thousands(float64(f.Unfinished)))})
	}
	if f.Offered != f.Accepted+f.Rejected || f.Accepted != f.Finished+f.Expired+f.Shed+f.Unfinished {
		rec.Marks = append(rec.Marks, Mark{RuleBooks, fmt.Sprintf("%d offered = %d accepted + %d rejected; accepted = %d finished + %d expired + %d shed + %d unfinished",
			f.Offered, f.Accepted, f.Rejected, f.Finished, f.Expired, f.Shed, f.Unfinished)})
	}
}

// lateP99 says by how much jobs were late; a server's client does not tell.
func lateP99(f *offer.Result) string {
	if f.LateP99 == 0 {
		return ""
	}
	return "; the p99 of the lateness is " + latency(float64(f.LateP99))
}

// late is the part of the jobs that were due that the generator did not offer in
// time.
func (r *OverloadRun) late() float64 {
	due := r.Result.Offered + r.Result.Missed
	if due == 0 {
		return 0
	}
	return float64(r.Result.Late+r.Result.Missed) / float64(due)
}
