package probe

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/tools/internal/jobload"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/lab/stats"
	"github.com/myriad-go/myriad/tools/internal/sample"
	"github.com/myriad-go/myriad/tools/load"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// newWindowSamples are the samples of a window of a second in which the server used half a CPU.
func newWindowSamples() []result.Sample {
	return []result.Sample{
		{Checkpoint: "ready", At: start, Server: load.Usage{Process: sample.Process{RSS: 1000}}},
		{Checkpoint: "measuring", At: start, Accepted: 10, SegmentsIn: 5, Busy: time.Second},
		{Checkpoint: "measured", At: start.Add(time.Second), Accepted: 10, SegmentsIn: 105, SegmentsOut: 50,
			Server: load.Usage{Process: sample.Process{User: 400 * time.Millisecond, System: 100 * time.Millisecond, RSS: 11000}}, Busy: 2900 * time.Millisecond},
	}
}

func newLoadResult() *load.Result {
	return &load.Result{
		Connections: 10, Connected: 10, ConnectTime: time.Second, Pipeline: 1, Window: time.Second, Counts: load.Counts{Sent: 1000, Answered: 1000, BytesSent: 6000, BytesReceived: 5000}, CPUs: 1, Generator: load.Usage{Process: sample.Process{User: 300 * time.Millisecond}},
		Latency: load.Latency{Count: 1000, Mean: 10 * time.Millisecond, P50: time.Millisecond, P99: 2 * time.Millisecond},
	}
}

const second = scenario.Duration(time.Second)

func newCounts(open, messages, heartbeats int64) *result.Counts {
	return &result.Counts{Open: open, Accepted: open, Messages: messages, Heartbeats: heartbeats}
}

// newHeldRun is a run of 10 connections in which nothing is lost.
func newHeldRun() *result.Run {
	r := &result.Run{Broadcaster: &result.Broadcaster{Messages: 1}}
	at := func(name string, server, slab int64, c *result.Counts) {
		r.Samples = append(r.Samples, result.Sample{Checkpoint: name, At: start.Add(time.Duration(len(r.Samples)) * time.Second),
			Server: load.Usage{Process: sample.Process{Anonymous: server}}, Slab: slab, Counts: c})
	}
	at(Before, 1000, 0, newCounts(0, 10, 0))
	at(Connected, 1500, 80000, newCounts(10, 10, 0))
	at(Verified, 1800, 90000, newCounts(10, 20, 0))
	at(Alone, 2000, 90000, newCounts(10, 20, 0))
	at(VerifyAgain, 2000, 90000, newCounts(10, 51, 20))
	at(Closed, 1000, 0, newCounts(0, 51, 20))
	r.Samples = append(r.Samples, result.Sample{Checkpoint: Left})
	r.Phases = []result.Phase{{Name: Connected, Rate: 100}, {Name: Verified, Rate: 50}, {Name: Heartbeats, Rate: 5, ServerCPU: 0.001}, {Name: VerifyAgain, Took: time.Millisecond}, {Name: Closed, Result: &load.Result{
		Verifications: []load.Verification{{Asked: 10, Checked: 10}, {Asked: 10, Checked: 10}},
		Counts:        load.Counts{Heartbeats: 20}, Broadcast: &load.Broadcast{Heard: 10},
	}}}
	return r
}

var heldWorkload = scenario.Workload{App: "lines", Connections: 10, Phases: []scenario.Phase{
	{Do: scenario.Verify}, {Do: scenario.Hold, For: second}, {Do: scenario.Broadcast}, {Do: scenario.Hold, For: 2 * second, Heartbeat: second}, {Do: scenario.Verify}, {Do: scenario.Hold, For: second}}}

func newWindowRun(change func(*result.Run, *load.Result)) *result.Run {
	r := &result.Run{Samples: newWindowSamples(), Phases: []result.Phase{{Name: scenario.Load, Result: newLoadResult()}}}
	if change != nil {
		change(r, r.Phases[0].Result)
	}
	return r
}

func newIdleRun() *result.Run {
	return &result.Run{Phases: []result.Phase{{Name: scenario.Verify, Result: newLoadResult()}}, Samples: []result.Sample{
		{Checkpoint: Touched, Server: load.Usage{Process: sample.Process{RSS: 1000}}, Slab: 5000, Counts: newCounts(0, 0, 0)},
		{Checkpoint: Idle, Server: load.Usage{Process: sample.Process{RSS: 2000, Anonymous: 500}}, Slab: 95000, Counts: newCounts(10, 0, 0)},
		{Checkpoint: Exchanged, Server: load.Usage{Process: sample.Process{RSS: 3000}, StackInuse: 7}, Slab: 105000, Counts: newCounts(10, 0, 0)},
	}}
}

func newJobsRun(change func(*result.Jobs)) *result.Run {
	j := &result.Jobs{Rate: 100, Window: 2 * time.Second, Deadline: time.Second, Capacity: 50, PeakRSS: 1 << 20, Result: &jobload.Result{
		Warmup: time.Second, Elapsed: 2 * time.Second, Offered: 200, Accepted: 150, Rejected: 50, Finished: 100, Good: 80, Expired: 50, Steady: 90,
		P50: time.Millisecond, P99: 2 * time.Millisecond, Mean: time.Millisecond, Process: sample.Process{User: time.Second, Voluntary: 30, Involuntary: 10},
	}}
	if change != nil {
		change(j)
	}
	return &result.Run{Jobs: j}
}

// Each probe sets its figures, and rules that are broken are marked.
func TestMeasure(t *testing.T) {
	closed := scenario.Workload{App: "echo", Connections: 10, Size: 8, Pipeline: 1, Phases: []scenario.Phase{{Do: scenario.Load, For: second}}}
	beating := scenario.Workload{App: "sink", Connections: 10, Phases: []scenario.Phase{{Do: scenario.Load, For: 2 * second, Heartbeat: second}}}
	flooded := scenario.Workload{App: "lines", Connections: 10, Phases: []scenario.Phase{{Do: scenario.Flood, For: second}}}
	published := scenario.Workload{App: "pubsub", Connections: 8, Size: 64, Phases: []scenario.Phase{{Do: scenario.Publish, For: second, Topics: 1, Publishers: 1, Slow: 1}}}
	idle := scenario.Workload{App: "echo", Connections: 10, Size: 8, Phases: []scenario.Phase{{Do: scenario.Hold, For: second}, {Do: scenario.Verify}, {Do: scenario.Hold, For: second}}}
	jobWork := scenario.Workload{Phases: []scenario.Phase{{Do: scenario.Jobs, For: second}}}
	for _, c := range []struct {
		name  string
		run   *result.Run
		w     scenario.Workload
		want  map[string]float64
		marks []string
	}{
		{"a window", newWindowRun(nil), closed, map[string]float64{"tps": 1000, "p50": 0.001, "p99": 0.002, "mean": 0.01, "in-flight": 10, "expected": 10, "cpu": 500, "load-busy": 0.3}, nil},
		{"connections that were not loaded", newWindowRun(func(_ *result.Run, r *load.Result) { r.Latency.Mean = time.Millisecond }), closed, map[string]float64{"in-flight": 1}, []string{RuleLittle}},
		{"wrong, lost, unanswered, refused", newWindowRun(func(_ *result.Run, r *load.Result) {
			r.Mismatched, r.Unanswered, r.Lost, r.Connected = 1, 1, map[string]int64{"reset": 1}, 9
		}), closed, nil, []string{RuleMismatch, RuleLost, RuleUnanswered, RuleConnect}},
		{"another number of connections", newWindowRun(func(r *result.Run, _ *load.Result) { r.Samples[1].Accepted = 9 }), closed, nil, []string{RuleCount}},
		{"heartbeats", newWindowRun(func(r *result.Run, l *load.Result) { r.Heartbeats, r.Connections, l.Answered = true, 20, 10 }), beating,
			map[string]float64{"beats-each": 1, "beat-cpu": 0.5, "beat-cpu-all": 1, "beat-rss": 1000, "beat-cpu-each": 50000, "beat-cores": 50000, "beat-interval": 0.01, "beat-interval-p99": 0.002}, nil},
		{"heartbeats that are missing", newWindowRun(func(r *result.Run, l *load.Result) { r.Heartbeats, l.Answered = true, 5 }), beating, map[string]float64{"beats-each": 0.5}, []string{RuleBeats}},
		{"a flood", newWindowRun(func(r *result.Run, _ *load.Result) {
			r.Phases = slices.Insert(r.Phases, 0, result.Phase{Name: scenario.Verify, Result: &load.Result{Connected: 10, Unanswered: 9}})
			r.Samples[2].Runtime = &result.Runtime{CPUSeconds: 2, GCSeconds: 0.5, SchedulerWaits: [][2]float64{{0.001, 90}, {0.01, 100}, {0.1, 100}}}
		}), flooded, map[string]float64{"sent": 6000, "received": 5000, "down": 40000, "up": 48000, "sent-minute": 360000, "per-connection": 1100, "packets-up": 100, "packets-down": 50, "unanswered": 9, "flood-cpu": 500, "answers-per-packet": 20, "system-share": 0.2, "gc-share": 0.25, "sched-p99": 0.0091}, []string{RuleUnanswered}},
		{"a flood without an answer", newWindowRun(func(_ *result.Run, l *load.Result) { l.BytesReceived = 0 }), flooded, map[string]float64{"received": 0}, []string{RuleUnanswered}},
		{"a flood whose rate varies", newWindowRun(func(_ *result.Run, l *load.Result) { l.Variation = 0.26 }), flooded, nil, []string{RuleUnsteady}},
		{"publish/subscribe", newWindowRun(func(r *result.Run, l *load.Result) {
			l.Answered, l.Delivered, l.SlowEnded = 100, 10_000, 1
			r.Timeline = []result.Tick{{Server: load.Usage{Process: sample.Process{RSS: 12000}}}}
		}), published, map[string]float64{"deliveries": 10_000, "publishes": 100, "delivery-p50": 0.001, "delivery-p99": 0.002, "delivery-cpu": 50, "slow-ended": 1, "publish-peak": 12000, "load-busy": 0.3}, nil},
		{"publish/subscribe that loses messages", newWindowRun(func(_ *result.Run, l *load.Result) { l.Undelivered = 1 }), published, nil, []string{RuleUnanswered}},
		{"subscribers", func() *result.Run {
			r := newIdleRun()
			r.Samples = append(r.Samples, result.Sample{Checkpoint: Subscribed, Server: load.Usage{Process: sample.Process{RSS: 1500}}})
			return r
		}(), idle, map[string]float64{"bytes-subscribed": 50, "bytes-idle": 100}, nil},
		{"memory", newIdleRun(), idle, map[string]float64{"bytes-idle": 100, "bytes-exchanged": 200, "kernel-idle": 9000, "anonymous-idle": 50,
			"dial-rate": 10, "rss": 3000, "stack": 7}, nil},
		{"memory that others gave back", func() *result.Run { r := newIdleRun(); r.Samples[1].Slab = 0; return r }(), idle, map[string]float64{"bytes-idle": 100}, []string{RuleOthers}},
		{"jobs", newJobsRun(nil), jobWork, map[string]float64{"goodput": 45, "of-capacity": 0.9, "p99": 0.002, "finished": 100, "peak-memory": 1 << 20, "cores": 0.5, "switches": 20}, nil},
		{"jobs of which none has run", newJobsRun(func(j *result.Jobs) { j.Result.P99, j.Result.Late = 0, 100 }), jobWork, map[string]float64{"p99": stats.Never}, []string{RuleLate}},
		{"jobs whose counts are wrong", newJobsRun(func(j *result.Jobs) { j.Result.Finished, j.Result.Unfinished = 1, 1 }), jobWork, nil, []string{RuleUnfinished, RuleCounts}},
		{"a side that was ended", newJobsRun(func(j *result.Jobs) { j.Killed = &result.Killed{}; j.Capacity, j.Result.Overran = 10, "x" }), jobWork, nil, []string{RuleWatchdog, RuleCapacity, RuleOverran}},
		{"held", newHeldRun(), heldWorkload, map[string]float64{"held": 10, "held-server": 100, "held-kernel": 9000, "held-connects": 100, "held-echoes": 50, "held-missing": 0,
			"beats": 5, "beat-cpu-each": 200, "beat-cpu-all": 0.002, "verify-missing": 0, "heartbeats-lost": 0, "heartbeats-missing": 0, "broadcast-missing": 0, "unclean": 0, "left": 0}, nil},
	} {
		SetFiguresCaveatsAndMismatchError(RunInput{Run: c.run, Workload: c.w})
		for name, want := range c.want {
			if got, ok := c.run.Figures[name]; !ok || got < want*0.999 || got > want*1.001 {
				t.Errorf("%s: %s is %v, %v, want %v", c.name, name, got, ok, want)
			}
		}
		var marks []string
		for _, m := range c.run.Caveats {
			marks = append(marks, m.Rule)
		}
		if !slices.Equal(marks, c.marks) {
			t.Errorf("%s: marked %v, want %v", c.name, c.run.Caveats, c.marks)
		}
		if failed := c.run.Error != ""; failed != slices.Contains(c.marks, RuleMismatch) {
			t.Errorf("%s: error %q", c.name, c.run.Error)
		}
	}
}

// What is lost of connections that are held is seen by the figure that a claim is of.
func TestHeldLosses(t *testing.T) {
	for figure, lose := range map[string]func(*result.Run, *load.Result){
		"held-missing":       func(r *result.Run, _ *load.Result) { r.FindSample(Connected).Counts.Open = 9 },
		"verify-missing":     func(_ *result.Run, l *load.Result) { l.Verifications[1].Checked = 9 },
		"heartbeats-lost":    func(_ *result.Run, l *load.Result) { l.Heartbeats = 19 },
		"heartbeats-missing": func(r *result.Run, _ *load.Result) { r.FindSample(VerifyAgain).Counts.Heartbeats = 19 },
		"broadcast-missing":  func(_ *result.Run, l *load.Result) { l.Broadcast.Again = 1 },
		"unclean":            func(r *result.Run, _ *load.Result) { r.FindSample(Closed).Counts.Restarts = 1 },
		"left":               func(r *result.Run, _ *load.Result) { r.FindSample(Left).TimeWait = 3 },
	} {
		r := newHeldRun()
		lose(r, r.LastLoadResult())
		SetFiguresCaveatsAndMismatchError(RunInput{Run: r, Workload: heldWorkload})
		if v, ok := r.Figures[figure]; !ok || v <= 0 {
			t.Errorf("%s: %v, %v, want more than 0", figure, v, ok)
		}
	}
	answered := newHeldRun() // a heartbeat was not answered when none was under way
	answered.FindSample(VerifyAgain).Counts.Messages = 50
	answered.FindSample(Closed).Counts.Messages = 50
	answered.LastLoadResult().Heartbeats = 20
	SetFiguresCaveatsAndMismatchError(RunInput{Run: answered, Workload: heldWorkload})
	if v := answered.Figures["heartbeats-lost"]; v != 1 {
		t.Errorf("one heartbeat was not answered: %v lost", v)
	}
}

func TestNoise(t *testing.T) {
	r := &result.Run{Samples: newWindowSamples(), Phases: []result.Phase{{Result: newLoadResult()}}}
	// 1.9 CPUs were busy: 0.5 by the server, 0.3 by the load.
	if f, _ := CPUsUsedByOthers(r); f < 1.09 || f > 1.11 {
		t.Errorf("%v CPUs were busy with something else, want 1.1", f)
	}
	if !AddCaveatIfNoisy(r) || !strings.Contains(r.Caveats[0].Detail, "110 % of a CPU") {
		t.Errorf("marked %v", r.Caveats)
	}
	if quiet := (&result.Run{Foreign: 0.05}); AddCaveatIfNoisy(quiet) {
		t.Error("a quiet run is marked")
	}
}

func TestFigures(t *testing.T) {
	names := make(map[string]bool)
	for _, f := range AllFigures() {
		if names[f.Name] || f.Heading == "" {
			t.Errorf("%q is there twice, or has no heading %q", f.Name, f.Heading)
		}
		names[f.Name] = true
	}
	for name, want := range map[string]string{"tps": "1,235", "p99": "1.23 s", "cpu": "1234.57", "server-busy": "123457 %", "rss": "0.0", "peak-memory": "0 MB"} {
		f, ok := FindFigure(name)
		v := 1234.567
		if name == "p99" {
			v = 1.234
		}
		if got := f.Format(v); !ok || got != want {
			t.Errorf("%s of %v: %q, want %q", name, v, got, want)
		}
	}
	if f, _ := FindFigure("p99"); f.Format(stats.Never) != "never" {
		t.Error("the latency of no job is not never")
	}
}
