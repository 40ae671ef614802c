package lab

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/myriad-go/myriad/load"
)

// goodRun is a throughput run of 100 connections that breaks no rule: 100,000
// messages a second for 2 s, of which the samples saw 1.9 s.
func goodRun() *RunRecord {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &RunRecord{
		Result: &load.Result{
			Connections: 100, Connected: 100, ConnectTime: 50 * time.Millisecond,
			Window: 2 * time.Second, Answered: 200_000,
			Latency: load.Latency{Mean: time.Millisecond, P50: 900 * time.Microsecond, P99: 3 * time.Millisecond},
			CPUs:    1, UserCPU: 400 * time.Millisecond, SystemCPU: 800 * time.Millisecond,
		},
		Samples: []Sample{
			{Moment: Ready, At: at, Sockets: 2},
			{Moment: Measuring, At: at, User: time.Second, System: time.Second, Busy: 10 * time.Second, Sockets: 102},
			{
				Moment: Measured, At: at.Add(1900 * time.Millisecond),
				User: 1380 * time.Millisecond, System: 2501 * time.Millisecond,
				Busy: 10*time.Second + 1881*time.Millisecond + 1140*time.Millisecond + 95*time.Millisecond,
			},
		},
	}
}

func goodIdle() *RunRecord {
	return &RunRecord{
		Result: &load.Result{Connections: 100, Connected: 100, ConnectTime: 50 * time.Millisecond},
		Samples: []Sample{
			{Moment: Touched, RSS: 1_000_000, Slab: 5_000_000, Sockets: 2},
			{Moment: Held, RSS: 1_010_000, Slab: 5_800_000, Sockets: 102},
			{Moment: Exchanged, RSS: 1_050_000, Slab: 5_850_000, Sockets: 102},
		},
	}
}

var twoCPUs = Pinning{Server: []int{0}, Load: []int{1}}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-6 }

func TestThroughputFigures(t *testing.T) {
	r := goodRun()
	r.judge(Workload{Kind: Throughput, Connections: 100, Pipeline: 1}, twoCPUs)
	f := r.Throughput
	if f == nil || !near(f.TPS, 100_000) || !near(f.InFlight, 100) || f.Expected != 100 || !near(f.LoadBusy, 0.6) {
		t.Fatalf("got %+v", f)
	}
	s := f.Server
	// 380 ms of user time in 1.9 s is 0.2 CPU, at 100,000 messages a second 2 µs.
	if s == nil || !near(s.UserCPU, 2) || !near(s.SystemCPU, 7.9) || !near(s.CPU(), 9.9) || !near(s.Busy, 0.99) {
		t.Fatalf("got %+v", s)
	}
	if !near(s.Foreign, 0.05) || s.Connections != 100 {
		t.Errorf("got %v of a CPU foreign, %d connections", s.Foreign, s.Connections)
	}
	if f.Bottleneck != "server" || len(r.Marks) != 0 {
		t.Errorf("got bottleneck %s, marks %v", f.Bottleneck, r.Marks)
	}
}

func TestThroughputFiguresWithoutSamples(t *testing.T) {
	r := goodRun()
	r.Samples = nil
	r.judge(Workload{Kind: Throughput, Connections: 100, Pipeline: 1}, Pinning{})
	if r.Throughput.Server != nil || r.Throughput.Bottleneck != "unknown" || len(r.Marks) != 0 {
		t.Errorf("got %+v, marks %v", r.Throughput, r.Marks)
	}
}

func TestIdleFigures(t *testing.T) {
	r := goodIdle()
	r.judge(Workload{Kind: Idle, Connections: 100}, twoCPUs)
	if r.Idle == nil || r.Idle.DialRate != 2000 || r.Idle.Memory == nil {
		t.Fatalf("got %+v", r.Idle)
	}
	want := MemoryFigures{Idle: 100, Exchanged: 500, KernelIdle: 8000, KernelExchanged: 8500, Connections: 100}
	if *r.Idle.Memory != want || len(r.Marks) != 0 {
		t.Errorf("got %+v, marks %v, want %+v", *r.Idle.Memory, r.Marks, want)
	}
}

func TestBottleneck(t *testing.T) {
	for want, busy := range map[string][2]float64{
		"server": {0.95, 0.94}, "load": {0.5, 1}, "both": {0.96, 0.97}, "neither": {0.94, 0.1},
	} {
		if got := bottleneck(busy[0], busy[1]); got != want {
			t.Errorf("%v: got %s, want %s", busy, got, want)
		}
	}
}

// TestMarks breaks each rule of its own, and finds its mark and no other.
func TestMarks(t *testing.T) {
	throughput := map[string]func(*RunRecord){
		RuleLittle:     func(r *RunRecord) { r.Result.Latency.Mean = 1200 * time.Microsecond },
		RuleMismatch:   func(r *RunRecord) { r.Result.Mismatched = 1 },
		RuleLost:       func(r *RunRecord) { r.Result.Lost = map[string]int64{"reset": 2} },
		RuleUnanswered: func(r *RunRecord) { r.Result.Unanswered = 3 },
		RuleConnect:    func(r *RunRecord) { r.Result.ConnectErrors = map[string]int64{"refused": 4} },
		RuleCount:      func(r *RunRecord) { r.Samples[1].Sockets = 101 },
		RuleNoise:      func(r *RunRecord) { r.Samples[2].Busy += 100 * time.Millisecond },
		RuleLoad: func(r *RunRecord) {
			r.Result.UserCPU += 750 * time.Millisecond
			r.Samples[2].User -= 100 * time.Millisecond
		},
	}
	for rule, breakIt := range throughput {
		r := goodRun()
		breakIt(r)
		r.judge(Workload{Kind: Throughput, Connections: 100, Pipeline: 1}, twoCPUs)
		checkMarks(t, r, rule)
	}
	accepted := goodRun()
	accepted.Samples[1].Sockets, accepted.Samples[1].Accepted = 0, 99
	accepted.judge(Workload{Kind: Throughput, Connections: 100, Pipeline: 1}, twoCPUs)
	checkMarks(t, accepted, RuleCount)
	idle := map[string]func(*RunRecord){
		RuleCount:   func(r *RunRecord) { r.Samples[1].Sockets = 52 },
		RuleConnect: func(r *RunRecord) { r.Result.Connected = 99 },
		RuleOthers:  func(r *RunRecord) { r.Samples[0].Slab = r.Samples[1].Slab + 1 },
	}
	for rule, breakIt := range idle {
		r := goodIdle()
		breakIt(r)
		r.judge(Workload{Kind: Idle, Connections: 100}, twoCPUs)
		checkMarks(t, r, rule)
	}
}

// TestKernelShrunk has no figure of the kernel's memory where it became less, and others.
func TestKernelShrunk(t *testing.T) {
	r := goodIdle()
	r.Samples[0].Slab = r.Samples[2].Slab
	r.judge(Workload{Kind: Idle, Connections: 100}, twoCPUs)
	for _, c := range []struct {
		figure Figure
		want   bool
	}{{kernelIdle, false}, {kernelExchanged, true}, {bytesIdle, true}} {
		if v, ok := c.figure.of(r); ok != c.want {
			t.Errorf("%s: got %v, %v; want a figure: %v", c.figure.Name, v, ok, c.want)
		}
	}
}

func checkMarks(t *testing.T, r *RunRecord, rule string) {
	t.Helper()
	var rules []string
	for _, m := range r.Marks {
		rules = append(rules, m.Rule)
	}
	if !slices.Equal(rules, []string{rule}) {
		t.Errorf("%s: got marks %v", rule, r.Marks)
	}
}
