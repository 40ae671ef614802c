package lab

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Mark is a rule that a run broke.
type Mark struct {
	// Rule is one word.
	Rule string `json:"rule"`
	// Detail says by how much.
	Detail string `json:"detail"`
}

// The rules that a run can break.
const (
	// RuleLittle: by Little's law, 10 % more or fewer messages were in
	// flight than connections × pipeline.
	RuleLittle = "little"
	// RuleMismatch: an answer differed from what was sent. The run has failed.
	RuleMismatch = "mismatch"
	// RuleLost: an established connection ended early.
	RuleLost = "lost"
	// RuleUnanswered: a message had no answer when the run ended.
	RuleUnanswered = "unanswered"
	// RuleConnect: connections could not be established.
	RuleConnect = "connect"
	// RuleCount: the server had another number of connections open than
	// the load was asked for.
	RuleCount = "count"
	// RuleNoise: something else took more than 10 % of a CPU meanwhile: other processes, the
	// host of a virtual machine, or what the kernel counts as nobody's.
	RuleNoise = "noise"
	// RuleLoad: the load generator was the bottleneck, not the server.
	RuleLoad = "load"
	// RuleBeats: the server sent fewer heartbeats than it was told to, or some
	// though it was told to send none.
	RuleBeats = "beats"
	// RuleHold: memory was sampled when the load no longer held still.
	RuleHold = "hold"
	// RuleOthers: by the kernel's cache of TCP sockets, 10 % more or fewer
	// came than the run's own, or its small objects became fewer, so that the
	// kernel's figures, and the machine's, are not of the run alone.
	RuleOthers = "others"
	// RuleUnsteady: in the window of a flood 25 % more or less was received than sent: the
	// kernel's buffers have filled or emptied meanwhile, and it is the rate of no other
	// window.
	RuleUnsteady = "unsteady"
	// RuleCaptured: a trace or a profile was taken meanwhile, which takes time.
	RuleCaptured = "captured"
)

const (
	littleTolerance = 0.10
	noiseTolerance  = 0.10 // of one CPU
	beatsTolerance  = 0.05
	othersTolerance = 0.10
	steadyTolerance = 0.25
)

// marks lists the rules that a run broke, by its result and its figures.
func marks(r *RunRecord, w Workload) []Mark {
	found := resultMarks(r, w)
	add := func(rule, format string, args ...any) {
		found = append(found, Mark{rule, fmt.Sprintf(format, args...)})
	}
	if f := r.Throughput; f != nil {
		if off := f.InFlight/float64(f.Expected) - 1; math.Abs(off) > littleTolerance {
			add(RuleLittle, "%.1f messages in flight, expected %d (%+.0f %%)", f.InFlight, f.Expected, off*100)
		}
		if f.Bottleneck == "load" {
			add(RuleLoad, "the load generator was the bottleneck: %.0f %% of its CPUs, server %.0f %%", f.LoadBusy*100, f.Server.Busy*100)
		}
		if s := f.Server; s != nil && s.Connections != w.Connections {
			add(RuleCount, "the server had %d connections open, expected %d", s.Connections, w.Connections)
		}
	}
	if f := r.Heartbeats; f != nil {
		found = append(found, f.marks(r.Beating, w)...)
	}
	if f := r.Idle; f != nil && f.Full != nil {
		if f.Full.Sockets != 0 && math.Abs(f.Full.Sockets/2-1) > othersTolerance {
			add(RuleOthers, "the kernel made room for %.2f TCP sockets for each connection, expected 2: others came or went", f.Full.Sockets)
		}
	}
	if f := r.Idle; f != nil && f.Memory != nil && min(f.Memory.KernelIdle, f.Memory.KernelExchanged) < 0 {
		add(RuleOthers, "the kernel had fewer small objects with the connections than without: others gave some back, and what connections take of them is not measured")
	}
	if f := r.Idle; f != nil && f.Memory != nil && f.Memory.Connections != w.Connections {
		add(RuleCount, "the server had %d connections open, expected %d", f.Memory.Connections, w.Connections)
	}
	return found
}

// resultMarks lists the rules that the load generator saw broken.
func resultMarks(r *RunRecord, w Workload) []Mark {
	var found []Mark
	add := func(rule, format string, args ...any) {
		found = append(found, Mark{rule, fmt.Sprintf(format, args...)})
	}
	if r.Result.Mismatched > 0 {
		first := ""
		if m := r.Result.FirstMismatch; m != nil {
			first = "; first: " + m.String()
		}
		add(RuleMismatch, "%d connections got an answer that differed from what was sent%s", r.Result.Mismatched, first)
	}
	if n := total(r.Result.Lost); n > 0 {
		add(RuleLost, "%d connections ended early (%s)", n, causes(r.Result.Lost))
	}
	if r.Result.Unanswered > 0 {
		add(RuleUnanswered, "%d messages without an answer at the end", r.Result.Unanswered)
	}
	if n := total(r.Result.ConnectErrors); n > 0 || r.Result.Connected != w.Connections {
		add(RuleConnect, "%d of %d connections established, %d errors (%s)",
			r.Result.Connected, w.Connections, n, causes(r.Result.ConnectErrors))
	}
	return found
}

func total(byCause map[string]int64) int64 {
	var n int64
	for _, count := range byCause {
		n += count
	}
	return n
}

// causes lists causes and how often each occurred, in alphabetical order.
func causes(byCause map[string]int64) string {
	if len(byCause) == 0 {
		return "no cause"
	}
	var words []string
	for _, cause := range slices.Sorted(maps.Keys(byCause)) {
		words = append(words, fmt.Sprintf("%s: %d", cause, byCause[cause]))
	}
	return strings.Join(words, ", ")
}
