package probe

import (
	"math"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/load"
)

// Rules that a run can break (see docs/scenarios.md).
const (
	RuleLittle     = "little"
	RuleMismatch   = "mismatch"
	RuleLost       = "lost"
	RuleUnanswered = "unanswered"
	RuleConnect    = "connect"
	RuleCount      = "count"
	RuleNoise      = "noise"
	RuleLoad       = "load"
	RuleBeats      = "beats"
	RuleHold       = "hold"
	RuleOthers     = "others"
	RuleUnsteady   = "unsteady"
	RuleLate       = "late"
	RuleWatchdog   = "watchdog"
	RuleOverran    = "overran"
	RuleUnfinished = "unfinished"
	RuleCounts     = "counts"
	RuleCapacity   = "capacity"
	RuleFewer      = "fewer"
)

// ExcludingRules lists the rules that Myriad's own servers must keep. If one of these servers breaks such a rule, it is
// excluded from comparisons.
var ExcludingRules = []string{RuleMismatch, RuleLost, RuleUnanswered, RuleConnect, RuleCount, RuleCounts, RuleWatchdog}

// UncertainRules lists the rules that keep figures reliable. If a run breaks one of these rules, a report marks the
// figures as uncertain.
var UncertainRules = []string{RuleUnsteady, RuleNoise, RuleLoad, RuleLittle, RuleHold, RuleOthers}

const (
	littleTolerance = 0.10
	noiseTolerance  = 0.10 // in CPUs
	beatsTolerance  = 0.05
	othersTolerance = 0.10
	lateTolerance   = 0.01
	capacityExcess  = 1.10
	fullyBusy       = 0.95
)

func addCaveatsForBrokenRules(in RunInput) {
	r, w := in.Run, in.Workload
	stages, _ := w.SplitStagesAtConnects()
	n := 0
	for i := range r.Phases {
		if seen := r.Phases[i].Result; seen != nil && w.FindPhase(scenario.Broadcast) == nil {
			want := w.Connections
			if n < len(stages) {
				want = stages[n].Connections
			}
			want += w.ConnsWithPublishersAndSlow() - w.Connections
			n++
			addCaveatsForLoadErrors(r, seen, want)
		}
	}
	f := func(name string) float64 { return r.Figures[name] }
	if in.Pinning.Pinned() && hasFigure(r, "load-busy") && f("load-busy") >= fullyBusy && hasFigure(r, "server-busy") && f("server-busy") < fullyBusy {
		r.AddCaveat(RuleLoad, "the load generator was the bottleneck: %.0f %% of its CPUs, server %.0f %%", f("load-busy")*100, f("server-busy")*100)
	}
	if hasFigure(r, "expected") {
		if off := f("in-flight")/f("expected") - 1; math.Abs(off) > littleTolerance {
			r.AddCaveat(RuleLittle, "%.1f messages in flight, expected %.0f (%+.0f %%)", f("in-flight"), f("expected"), off*100)
		}
	}
	if from := r.FindSample("measuring"); from != nil && from.Accepted > 0 && from.Accepted != w.ConnsWithPublishersAndSlow() {
		r.AddCaveat(RuleCount, "the server had %d connections open, expected %d", from.Accepted, w.ConnsWithPublishersAndSlow())
	}
	if hasFigure(r, "received") {
		addUnansweredOrUnsteadyFloodCaveat(r, r.LastLoadResult())
	}
	if hasFigure(r, "beats-each") {
		p := w.FindPhase(scenario.Load)
		want := 0.0
		if r.Heartbeats {
			want = math.Floor(float64(p.WarmUp+p.For) / float64(p.Heartbeat.Std()+scenario.MaxHeartbeatDelay(p.Heartbeat.Std())))
		}
		if each := f("beats-each"); each < want*(1-beatsTolerance) || want == 0 && each > 0 {
			r.AddCaveat(RuleBeats, "%.2f heartbeats on each connection in %v, expected %.0f", each, p.For, want)
		}
	}
	addDisturbedMemoryCaveats(r, w)
	addJobCaveats(r)
}

func hasFigure(r *result.Run, figure string) bool {
	_, ok := r.Figures[figure]
	return ok
}

func addCaveatsForLoadErrors(r *result.Run, loadResult *load.Result, wantConns int) {
	if loadResult.Mismatched > 0 {
		first := ""
		if loadResult.FirstMismatch != nil {
			first = "; first: " + loadResult.FirstMismatch.String()
		}
		r.AddCaveat(RuleMismatch, "%d connections got an answer that differed from what was sent%s", loadResult.Mismatched, first)
	}
	if n := sumCountsByCause(loadResult.Lost); n > 0 {
		r.AddCaveat(RuleLost, "%d connections ended early (%s)", n, format.Tally(loadResult.Lost))
	}
	if loadResult.Undelivered+loadResult.Doubled+loadResult.Reordered > 0 {
		r.AddCaveat(RuleUnanswered, "%d deliveries missing, %d twice, %d in another order", loadResult.Undelivered, loadResult.Doubled, loadResult.Reordered)
	}
	if loadResult.Unanswered > 0 {
		r.AddCaveat(RuleUnanswered, "%d messages without an answer at the end", loadResult.Unanswered)
	}
	if n := sumCountsByCause(loadResult.ConnectErrors); n > 0 || loadResult.Connected != wantConns {
		r.AddCaveat(RuleConnect, "%d of %d connections established, %d errors (%s)", loadResult.Connected, wantConns, n, format.Tally(loadResult.ConnectErrors))
	}
}

func sumCountsByCause(byCause map[string]int64) (n int64) {
	for _, count := range byCause {
		n += count
	}
	return n
}

func addUnansweredOrUnsteadyFloodCaveat(r *result.Run, loadResult *load.Result) {
	switch {
	case loadResult.BytesReceived == 0 && r.Figures["unanswered"] == 0:
		r.AddCaveat(RuleUnanswered, "not one answer came in the window")
	case loadResult.Variation > load.SteadyVariation:
		r.AddCaveat(RuleUnsteady, "what was received a second varied by %.0f %% at the end of a window of %.0f s", loadResult.Variation*100, loadResult.Window.Seconds())
	}
}

// addDisturbedMemoryCaveats adds caveats if other processes or a wrong number of connections distort memory figures.
func addDisturbedMemoryCaveats(r *result.Run, w scenario.Workload) {
	base, idle, after := r.FindSample(Touched), r.FindSample(Idle), r.FindSample(Exchanged)
	if base == nil || idle == nil || after == nil {
		return
	}
	if open := idle.OpenConns() - base.OpenConns(); open != w.ConnsWithPublishersAndSlow() {
		r.AddCaveat(RuleCount, "the server had %d connections open, expected %d", open, w.ConnsWithPublishersAndSlow())
	}
	if seen := r.LastLoadResult(); seen != nil && seen.Connected > 0 && after.TCP > base.TCP {
		if each := float64(after.TCP-base.TCP) / float64(seen.Connected); math.Abs(each/2-1) > othersTolerance {
			r.AddCaveat(RuleOthers, "the kernel made room for %.2f TCP sockets for each connection, expected 2: others came or went", each)
		}
	}
	if min(idle.Slab, after.Slab) < base.Slab {
		r.AddCaveat(RuleOthers, "the kernel had fewer small objects with the connections than without: others gave some back, and what connections take of them is not measured")
	}
}

func addJobCaveats(r *result.Run) {
	j := r.Jobs
	if j == nil {
		return
	}
	if j.Killed != nil {
		r.AddCaveat(RuleWatchdog, "%s", j.Killed)
	}
	f := j.Result
	if f == nil {
		return
	}
	if due := f.Offered + f.Missed; due > 0 && float64(f.Late+f.Missed)/float64(due) > lateTolerance {
		r.AddCaveat(RuleLate, "of %d jobs that were due %d were offered more than 10 ms late, and %d never", due, f.Late, f.Missed)
	}
	if good := jobsPerSecondInDeadline(j); j.Capacity > 0 && good > j.Capacity*capacityExcess {
		r.AddCaveat(RuleCapacity, "goodput is %.0f %% of the capacity: that was measured too low", good/j.Capacity*100)
	}
	if f.Overran != "" {
		r.AddCaveat(RuleOverran, "%s", f.Overran)
	}
	if j.Killed != nil { // jobs in progress at the kill are not a counting error
		return
	}
	if f.Unfinished > 0 {
		r.AddCaveat(RuleUnfinished, "%d jobs had not ended when the run did", f.Unfinished)
	}
	if f.Offered != f.Accepted+f.Rejected || f.Accepted != f.Finished+f.Expired+f.Shed+f.Unfinished {
		r.AddCaveat(RuleCounts, "%d offered = %d accepted + %d rejected; accepted = %d finished + %d expired + %d shed + %d unfinished",
			f.Offered, f.Accepted, f.Rejected, f.Finished, f.Expired, f.Shed, f.Unfinished)
	}
}

// AddCaveatIfNoisy adds a caveat to the run if other programs used too much CPU during the run. It reports whether it
// has added the caveat.
func AddCaveatIfNoisy(r *result.Run) (added bool) {
	foreign, stolen := CPUsUsedByOthers(r)
	if foreign <= noiseTolerance {
		return false
	}
	if stolen < 0.005 {
		r.AddCaveat(RuleNoise, "something else took %.0f %% of a CPU", foreign*100)
	} else {
		r.AddCaveat(RuleNoise, "something else took %.0f %% of a CPU, of which the host took %.0f %%", foreign*100, stolen*100)
	}
	return true
}
