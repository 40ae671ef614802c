package capacity

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/doctor"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/sample"
	"github.com/myriad-go/myriad/tools/load"
)

// server is what a server took on four loops.
var server = MeasuredCosts{
	Model: "epoll", Loops: 4, Size: 64, Connections: 20_000, Base: 20e6, BytesPerConn: 100, Kernel: 8000, Connect: 20 * time.Microsecond,
	Points: []Point{{Rate: 1000, Cores: 0.05, Buffers: 1e6}, {Rate: 10_000, Cores: 0.3, Buffers: 2e6}, {Rate: 100_000, Cores: 1, Buffers: 4e6}},
}

// What a rate takes lies within what its neighbours allow, and it grows with the loops. Connections that do nothing
// take CPU beside those that were measured, whose share the points have; twice the loops have twice as many in them.
func TestCores(t *testing.T) {
	for _, c := range []struct {
		idle, connections, rate float64
		loops                   int
		want                    float64
	}{
		{0, 1e6, 10, 0, 0.05},        // not less than the least that was measured
		{0, 1e6, 2000, 0, 0.1},       // at what a message costs at 1,000
		{0, 1e6, 8000, 0, 0.3},       // and not more than at 10,000
		{0, 1e6, 1_000_000, 0, 10},   // at what it costs at 100,000
		{0, 1e6, 2000, 8, 0.1},       // eight loops do twice what four do
		{0, 1e6, 100_000, 1, 1},      // one loop, of which four would have 400,000
		{0, 1e6, 100_000, 40, 3},     // forty have what four have at 10,000
		{0, 1e6, 1000, 400_000, 5e3}, // loops that have next to nothing to do
		{1e-6, 1e6, 0, 0, 1},
		{1e-6, 120_000, 1000, 0, 0.15},
		{1e-6, 120_000, 2000, 8, 0.18},
	} {
		m := server
		m.IdleCoresPerConn = c.idle
		if got := m.PredictCores(c.connections, c.rate, c.loops); math.Abs(got-c.want) > 1e-9*max(c.want, 1) {
			t.Errorf("%+v: %v cores", c, got)
		}
	}
}

func TestPlanOfIdle(t *testing.T) {
	idling := server
	idling.IdleCoresPerConn = 1e-6
	p := newPlanner()
	p.Measured = idling
	g := newGoal()
	g.Rate = 0
	if got, err := p.PlanMachines(g); err != nil || math.Abs(got.IdleCores-float64(got.Each)*1e-6) > 1e-9 || got.Cores != got.IdleCores {
		t.Errorf("%+v, %v, want a millionth of a core for each idle connection and no other", got, err)
	}
	g.Memory = 1 << 40
	if got, err := p.PlanMachines(g); err != nil || got.Limit != "CPU" || got.Holds != 11_200_000 {
		t.Errorf("%+v, %v, want 11.2 million idle connections on 70 %% of 16 cores", got, err)
	}
}

func newGoal() Goal {
	return Goal{
		Connections: 10_000_000, Rate: 0.01, Size: 64, Memory: 64 << 30, Cores: 16, Network: 10e9, Free: 0.3, Spare: 1, Return: time.Minute,
	}
}

func newPlanner() *Planner { return &Planner{Measured: server, Facts: &doctor.Facts{}} }

func mustPlan(t *testing.T, g Goal) *Plan {
	t.Helper()
	return testkit.Must(newPlanner().PlanMachines(g))(t)
}

// Whatever limits a machine: one that holds so many is within every limit, and one more is not;
// and all connections have a machine while those to spare are missing.
func TestPlan(t *testing.T) {
	for want, change := range map[string]func(*Goal){
		"memory":            func(g *Goal) { g.Memory = 4 << 30 },
		"CPU":               func(g *Goal) { g.Rate = 5 },
		"network":           func(g *Goal) { g.Network, g.Size = 1e7, 1000 },
		"what is asked for": func(g *Goal) { g.MaxPerMachine = 100_000 },
	} {
		g := newGoal()
		change(&g)
		p := mustPlan(t, g)
		if p.Limit != want {
			t.Errorf("limited by %q, want %q", p.Limit, want)
		}
		for _, n := range []int64{p.Holds, p.Holds + 1} {
			over := ""
			for _, l := range newPlanner().limitsAndUseOfMachine(&g, n) {
				if l.used > l.max {
					over = l.name
				}
			}
			if (over != "") != (n > p.Holds) {
				t.Errorf("%s: %d connections of the %d that a machine holds: over %q", want, n, p.Holds, over)
			}
		}
		if left := p.Machines - int64(g.Spare); left*p.Each < g.Connections || left > 1 && (left-1)*p.Holds >= g.Connections || p.Each > p.Holds {
			t.Errorf("%s: %d machines with %d connections, of %d that one holds, for %d: want enough and no more", want, left, p.Each, p.Holds, g.Connections)
		}
		if p.EachNow >= p.Each || p.Machines*p.EachNow < g.Connections {
			t.Errorf("%s: %d connections on each of all %d machines, want fewer than %d and enough", want, p.EachNow, p.Machines, p.Each)
		}
		if returning := float64(p.EachNow) / float64(p.Machines-1) / 60; p.Returning != returning || math.Abs(p.ReturnCores-returning*20e-6) > 1e-9 {
			t.Errorf("%s: %v connections/s return and take %v cores, want %v, and 20 µs each", want, p.Returning, p.ReturnCores, returning)
		}
		if p.Descriptors <= p.Each || p.Sources != 0 { // the facts have no range of ports
			t.Errorf("%s: %d descriptors for %d connections, %d addresses", want, p.Descriptors, p.Each, p.Sources)
		}
	}
}

// The server's end of the kernel's memory is the doctor's part of what was measured, and unread
// bytes are what the doctor says.
func TestKernel(t *testing.T) {
	cost := func(side doctor.Side, unread int) float64 {
		c, err := doctor.PredictCosts(&doctor.Facts{}, doctor.Plan{Connections: 1, Side: side, Model: "epoll", Unread: unread})
		testkit.RequireNoError(t, err)
		return float64(c.Kernel)
	}
	g := newGoal()
	want := 8000 * cost(doctor.Server, 0) / cost(doctor.Both, 0)
	if p := mustPlan(t, g); p.Kernel != want*float64(p.Each) || want < 3800 || want > 4100 {
		t.Errorf("%v bytes of the kernel for %d connections, want %v each", p.Kernel, p.Each, want)
	}
	g.Unread = 5000
	if p := mustPlan(t, g); math.Abs(p.Kernel/float64(p.Each)-want-5832) > 1e-6 {
		t.Errorf("%v bytes of the kernel for each connection with 5,000 unread, want %v and 5,832", p.Kernel/float64(p.Each), want)
	}
}

// A message of 64 bytes is a packet each way and an acknowledgement.
func TestFlows(t *testing.T) {
	g := newGoal()
	in, out := g.predictNetworkTraffic(1000)
	if want := (Flow{8 * 1000 * (64 + 2*90), 2000}); in != want {
		t.Errorf("in: %+v, want %+v", in, want)
	}
	if want := (Flow{8 * 1000 * (64 + 90), 1000}); out != want {
		t.Errorf("out: %+v, want %+v", out, want)
	}
	g.Size, g.TLS = 20_000, true // two records, 14 segments, 7 acknowledgements of all
	in, out = g.predictNetworkTraffic(1)
	if in.Packets != 21 || out.Packets != 20 || out.Bits != 8*(20_044+20*90) {
		t.Errorf("20,000 bytes with TLS: in %+v, out %+v", in, out)
	}
}

func TestPlanSaysWhatIsWrong(t *testing.T) {
	for want, change := range map[string]func(*Goal){
		"--connections is 0; expected 1 to":   func(g *Goal) { g.Connections = 0 },
		"--free is 99 %; expected 0 to 95":    func(g *Goal) { g.Free = 0.99 },
		"--network is 1 bit/s; expected 1,0":  func(g *Goal) { g.Network = 1 },
		"--rate is 10,000,000; expected 0 to": func(g *Goal) { g.Rate = 1e7 },
		"cannot hold any connection: CPU":     func(g *Goal) { g.Cores, g.Loops, g.Rate = 1, 1024, 1e5 },
	} {
		g := newGoal()
		change(&g)
		if _, err := newPlanner().PlanMachines(g); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

// newBenchSet is a bench of two sizes, of which the first has two rounds and two rates.
func newBenchSet() *result.Set {
	workload := func(name string, n int) scenario.Workload {
		return scenario.Workload{Name: name, App: "echo", Size: 64, Connections: n, Phases: []scenario.Phase{{Do: scenario.Load}}}
	}
	run := func(workload string, n int, rate, cpu float64, each int64) result.Run {
		side := func(rss int64) load.Usage { return load.Usage{Process: sample.Process{RSS: rss}} }
		r := result.Run{
			Workload: workload, Subject: "epoll", Command: []string{"myriad", "serve", "--model", "epoll", "--loops", "4"},
			Figures: map[string]float64{"tps": rate, "cpu": cpu}, Phases: []result.Phase{{Result: &load.Result{Connected: n}}},
			Samples: []result.Sample{
				{Checkpoint: "touched", Server: side(20e6), Slab: 1e9, Resting: []float64{0.002, 0.002, 0.001}},
				{Checkpoint: "idle", Server: side(20e6 + each*int64(n)), Slab: 1e9 + 8000*int64(n), Resting: []float64{0.003, 0.002, float64(n) * 0.05e-6}},
				{Checkpoint: "measured", Server: side(21e6 + each*int64(n))},
			},
		}
		r.Samples[1].Server.User = time.Duration(n) * 20 * time.Microsecond
		return r
	}
	runs := []result.Run{
		run("few", 20_000, 1000, 50, 90), run("few", 20_000, 1000, 50, 110), run("more", 20_000, 10_000, 30, 100),
		run("many", 200_000, 10_000, 33, 98), run("many", 200_000, 10_000, 33, 98),
	}
	runs[3].Samples[1].Resting = []float64{0.01, 0.011, 0.003}
	runs[4].Error = "failed"
	return &result.Set{Reports: []*result.Report{{
		Scenario: scenario.Scenario{Name: "s", Workloads: []scenario.Workload{workload("few", 20_000), workload("more", 20_000), workload("many", 200_000)}},
		Runs:     runs,
	}}}
}

func TestFromSet(t *testing.T) {
	all, err := MeasurementsFromBench(newBenchSet())
	if err != nil || len(all) != 2 {
		t.Fatalf("%v, %+v, want two sizes", err, all)
	}
	few := all[0]
	if few.Connections != 20_000 || few.Base != 20e6 || few.BytesPerConn != 100 || few.Kernel != 8000 || few.Connect != 20*time.Microsecond || few.Loops != 4 || few.Model != "epoll" {
		t.Errorf("got %+v, want the medians of three runs", few)
	}
	if len(few.Points) != 2 || few.Points[0] != (Point{1000, 0.05, 1e6}) || few.Points[1] != (Point{10_000, 0.3, 1e6}) {
		t.Errorf("points %+v, want both rates", few.Points)
	}
	predicted := PredictFromSmallestOfSameSetup(all, &doctor.Facts{})
	if len(predicted) != 1 || predicted[0].To.Connections != 200_000 {
		t.Fatalf("%+v, want a prediction for 200,000", predicted)
	}
	off := make(map[string]float64)
	for _, c := range predicted[0].Figures {
		off[c.What] = c.RelativeError()
	}
	memory := (20e6+100*2e5+1e6+8000*2e5)/(20e6+98*2e5+1e6+8000*2e5) - 1
	if got := off["memory at 10,000 messages/s"]; math.Abs(got-memory) > 1e-9 {
		t.Errorf("memory is off by %v, want %v: %v", got, memory, off)
	}
	if got := off["CPU at 10,000 messages/s"]; math.Abs(got-(30.0/33-1)) > 1e-9 {
		t.Errorf("the CPU is off by %v, want %v: %v", got, 30.0/33-1, off)
	}
	if few.IdleCoresPerConn != 0 || math.Abs(few.MaxIdleCoresPerConn-0.003/20_000) > 1e-12 {
		t.Errorf("idle %v, at most %v, want what can't be told apart", few.IdleCoresPerConn, few.MaxIdleCoresPerConn)
	}
	if many := all[1]; math.Abs(many.IdleCoresPerConn-0.008/200_000) > 1e-12 || many.MaxIdleCoresPerConn != 0 {
		t.Errorf("idle %v, at most %v, want 0.01 less 0.002 cores of 200,000", many.IdleCoresPerConn, many.MaxIdleCoresPerConn)
	}
	if _, err := MeasurementsFromBench(&result.Set{}); err == nil {
		t.Error("a report without runs can be planned from")
	}
}

func TestFromStream(t *testing.T) {
	usage := func(resident int64, cpu time.Duration) *load.Usage {
		return &load.Usage{Process: sample.Process{RSS: resident, User: cpu}}
	}
	interval := func(stage string, from, to time.Duration, u *load.Usage) load.Interval {
		return load.Interval{Stage: stage, From: from, To: to, Server: u}
	}
	s := &load.Stream{
		Plan: &load.Plan{Server: usage(20e6, 0)},
		Intervals: []load.Interval{
			interval("connect", 0, time.Second, usage(21e6, time.Second)), interval("hold", time.Second, 2*time.Second, usage(22e6, 0)),
			interval("window", 2*time.Second, 3*time.Second, usage(23e6, time.Second/4)), interval("window", 3*time.Second, 4*time.Second, usage(23e6, time.Second/4)),
			interval("hold", 4*time.Second, 5*time.Second, usage(30e6, time.Second)),
		},
		Result: &load.Result{Connected: 20_000, MessageSize: 100, Counts: load.Counts{Answered: 20_000}, Window: 2 * time.Second},
	}
	m, err := MeasurementFromLoad(s)
	if want := (Point{10_000, 0.25, 1e6}); err != nil || m.BytesPerConn != 100 || m.Base != 20e6 || m.Connections != 20_000 || len(m.Points) != 1 || m.Points[0] != want {
		t.Errorf("got %+v, %v, want 100 bytes each and %+v", m, err, want)
	}
	s.Plan.Server = nil
	_, err = MeasurementFromLoad(s)
	testkit.ExpectError(t, "without a server", err, "no measurements of the server")
	s.Result = nil
	_, err = MeasurementFromLoad(s)
	testkit.ExpectError(t, "cut off", err, "no final result")
}

// A plan can be read as JSON, also where nothing comes back to a single machine.
func TestPlanAsJSON(t *testing.T) {
	g := newGoal()
	g.Connections, g.Spare = 1000, 0
	p := mustPlan(t, g)
	text, err := json.Marshal(p)
	if err != nil || p.Machines != 1 || p.Returning != 0 || !strings.Contains(string(text), `"limit":"memory"`) {
		t.Errorf("%s, %v", text, err)
	}
}
