package lab

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/load"
)

func beatsWorkload() Workload {
	return Workload{
		Name: "beats", Kind: Heartbeats, App: Sink, Connections: 1000, Pipeline: 1,
		Interval: time.Second, WarmUp: time.Second, Duration: 10 * time.Second,
	}
}

// goodBeats is 100 connections with 8 heartbeats each in a window of 10 s, of
// which the samples saw 9.5 s.
func goodBeats() *RunRecord {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &RunRecord{
		Beating: true,
		Result: &load.Result{
			Connections: 100, Connected: 100, Window: 10 * time.Second, Answered: 800,
			CPUs: 1, UserCPU: 100 * time.Millisecond, SystemCPU: 100 * time.Millisecond,
		},
		Samples: []Sample{
			{Moment: Ready, At: at, RSS: 1_000_000},
			{Moment: Measuring, At: at, User: time.Second, System: time.Second, Busy: 10 * time.Second},
			{
				Moment: Measured, At: at.Add(9500 * time.Millisecond), RSS: 1_050_000,
				User: 1019 * time.Millisecond, System: 1076 * time.Millisecond, Busy: 10*time.Second + 475*time.Millisecond,
			},
		},
	}
}

func beatsAs100() Workload {
	w := beatsWorkload()
	w.Connections = 100
	return w
}

func TestHeartbeatFigures(t *testing.T) {
	r := goodBeats()
	r.judge(beatsAs100(), twoCPUs)
	f := r.Heartbeats
	if f == nil || f.Connections != 100 || !near(f.Beats, 80) || !near(f.Each, 8) || f.Server == nil {
		t.Fatalf("got %+v", f)
	}
	// 19 ms and 76 ms in 9.5 s.
	if s := f.Server; !near(s.UserCPU, 0.002) || !near(s.SystemCPU, 0.008) || !near(s.RSS, 500) || !near(s.Foreign, 0.02) {
		t.Errorf("got %+v", s)
	}
	if per, ok := cpuPerBeat.read(r); !ok || !near(per, 125) {
		t.Errorf("%v µs of CPU for a heartbeat, %v", per, ok)
	}
	if len(r.Marks) != 0 {
		t.Errorf("marks %v", r.Marks)
	}
}

// TestHeartbeatMarks breaks each rule of its own.
func TestHeartbeatMarks(t *testing.T) {
	for _, test := range []struct {
		rule    string
		breakIt func(*RunRecord)
	}{
		{RuleBeats, func(r *RunRecord) { r.Result.Answered = 600 }},
		{RuleBeats, func(r *RunRecord) { r.Beating, r.Result.Answered = false, 1 }},
		{RuleNoise, func(r *RunRecord) { r.Samples[2].Busy += time.Second }},
		{RuleLost, func(r *RunRecord) { r.Result.Lost = map[string]int64{"closed by the server": 1} }},
		{RuleConnect, func(r *RunRecord) { r.Result.Connected = 99 }},
		{RuleMismatch, func(r *RunRecord) { r.Result.Mismatched = 1 }},
	} {
		r := goodBeats()
		test.breakIt(r)
		r.judge(beatsAs100(), twoCPUs)
		checkMarks(t, r, test.rule)
	}
	silent := goodBeats()
	silent.Beating, silent.Result.Answered = false, 0
	silent.judge(beatsAs100(), twoCPUs)
	if _, ok := cpuPerBeat.read(silent); ok || len(silent.Marks) != 0 {
		t.Errorf("without heartbeats: marks %v", silent.Marks)
	}
	unseen := goodBeats()
	unseen.Samples = nil
	unseen.judge(beatsAs100(), twoCPUs)
	if unseen.Heartbeats.Server != nil || len(unseen.Marks) != 0 {
		t.Errorf("without samples: %+v, marks %v", unseen.Heartbeats, unseen.Marks)
	}
}

// TestBeatsExpected counts what a server that is an eighth late sends at least.
func TestBeatsExpected(t *testing.T) {
	for _, test := range []struct {
		interval, warmUp, duration time.Duration
		want                       int
	}{
		{time.Minute, 0, 67 * time.Second, 0},
		{time.Minute, 0, 68 * time.Second, 1},
		{time.Minute, 2 * time.Second, 69 * time.Second, 1},
		{6 * time.Second, 2 * time.Second, 20 * time.Second, 3},
		{time.Second, 0, 2800 * time.Millisecond, 2},
	} {
		w := Workload{Interval: test.interval, WarmUp: test.warmUp, Duration: test.duration}
		if got := w.beats(); got != test.want {
			t.Errorf("every %v in %v and %v: got %d, want %d", test.interval, test.warmUp, test.duration, got, test.want)
		}
	}
}

// TestHeartbeatTable scales CPU time to the connections that were asked for.
func TestHeartbeatTable(t *testing.T) {
	w := beatsWorkload()
	r := goodBeats()
	r.Workload, r.Subject, r.Round = w.Name, "net", 1
	r.judge(w.heldBy(100), twoCPUs)
	report := &Report{
		Scenario: Scenario{Baseline: "none", Rounds: 1, Subjects: []Subject{{Name: "net"}}, Workloads: []Workload{w}},
		Runs:     []RunRecord{*r},
	}
	var got bytes.Buffer
	if err := report.WriteText(&got); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(got.String(), "\n")
	at := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "  net ") })
	if at < 0 {
		t.Fatalf("no row:\n%s", got.String())
	}
	want := "net 100 1.00 % - 10.00 % 80 8.00 125.00 500"
	if row := strings.Join(strings.Fields(lines[at]), " "); row != want {
		t.Errorf("got %s, want %s", row, want)
	}
	if head := lines[at-1]; !strings.Contains(head, "CPU per 1,000") || !strings.Contains(head, "each in 10s") {
		t.Errorf("headings %s", head)
	}
}

// TestRunHeartbeats has a subject that can hold fewer, and says which of them beat.
func TestRunHeartbeats(t *testing.T) {
	o := children(t)
	s := testScenario()
	s.Rounds, s.Workloads = 1, []Workload{beatsWorkload()}
	s.Workloads[0].Connections = 7
	beats := acting("beats", "plain")
	beats.Command = append(beats.Command, "{heartbeat}")
	beats.MaxConns = 5
	s.Subjects = []Subject{acting("a", "plain"), beats}
	report, err := Run(t.Context(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{7, 5} {
		r := report.Runs[i]
		if r.Error != "" || r.Heartbeats == nil || r.Heartbeats.Connections != want || r.Beating != (i == 1) {
			t.Errorf("run %d: %q, %+v, beating %v; want %d connections", i, r.Error, r.Heartbeats, r.Beating, want)
		}
	}
	if got := report.Runs[1].Command; got[len(got)-1] != "1s" {
		t.Errorf("command %q", got)
	}
	if got := strings.Join(report.Runs[0].Load, " "); !strings.Contains(got, "--unprompted --message pong\n --answer ping\n --warmup 1s --duration 10s") {
		t.Errorf("load %q", got)
	}
}

// TestRunTLS has a server and the load generator use the lab's certificate.
func TestRunTLS(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	o := children(t)
	s := testScenario()
	s.Rounds, s.Workloads[0].TLS = 1, true
	s.Subjects = []Subject{acting("a", "plain")}
	s.Subjects[0].Command = append(s.Subjects[0].Command, "", "{cert}", "{key}")
	report, err := Run(t.Context(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range report.Runs {
		if r.Error != "" || r.Throughput == nil {
			t.Fatalf("run %d: %s", i, r.Error)
		}
		if got := slices.Contains(r.Load, "--tls"); got != (i == 0) {
			t.Errorf("run %d: TLS is %v: %q", i, got, r.Load)
		}
	}
	checkEmpty(t)
}
