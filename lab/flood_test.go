package lab

import (
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/myriad-go/myriad/load"
)

// flooding is a workload that is short.
func flooding(name, app string) Workload {
	return Workload{Name: name, Kind: Flood, App: app, Connections: 20, ConnectRate: 1000, Unpinned: true, Duration: time.Second}
}

// flood measures a flood of a server. On a machine that others keep busy the server may not
// have accepted all connections when the window begins, not have had its turn in one of a
// second, or not have been looked at before they ended: then it is measured again.
func flood(t *testing.T, r *runner, part, app string) (w Workload, rec *RunRecord) {
	t.Helper()
	for _, seconds := range []time.Duration{1, 1, 2, 4, 8} {
		w, rec = flooding("flood", app), &RunRecord{}
		w.Duration = seconds * time.Second
		if err := r.measure(t.Context(), step{workload: w, subject: acting(part, part)}, rec); err != nil {
			t.Fatal(err)
		}
		judgeFlood(rec, w)
		all := func(m Moment) bool { return !r.sampled || rec.sample(m).Accepted == w.Connections }
		if rec.Flood.Sent > 0 && rec.Flood.Received > 0 && all(Measuring) && all(Measured) {
			break
		}
	}
	return w, rec
}

// TestFlood has a server that answers each line, and one that holds back up to nine.
func TestFlood(t *testing.T) {
	o := children(t)
	r := &runner{self: o.Self, launcher: newLauncher(), sampled: runtime.GOOS == "linux"}
	defer r.launcher.close()
	for _, c := range []struct {
		part, app string
		owed      int64
	}{{"plain", Sha, 0}, {"tenth", Lines, 20 * (checkLines - 10)}} {
		w, rec := flood(t, r, c.part, c.app)
		f := rec.Flood
		if f.Sent == 0 || f.Received == 0 || f.Lines == 0 || f.Down == 0 || f.Up == 0 || f.PerConnection == 0 {
			t.Errorf("%s: figures %+v, want none 0", c.part, f)
		}
		if f.Unanswered != c.owed {
			t.Errorf("%s: %d lines unanswered, want %d", c.part, f.Unanswered, c.owed)
		}
		marked := slices.ContainsFunc(rec.Marks, func(m Mark) bool { return m.Rule == RuleUnanswered })
		if marked != (c.owed > 0) {
			t.Errorf("%s: marks %v", c.part, rec.Marks)
		}
		if runtime.GOOS == "linux" && (f.PacketsUp == 0 || f.PacketsDown == 0 || rec.sample(Measured).Accepted != w.Connections) {
			t.Errorf("%s: %+v, %+v, %+v, want packets and %d connections", c.part, f, rec.sample(Measuring), rec.sample(Measured), w.Connections)
		}
	}
}

// TestFloodMarks has a check that went wrong, and no answers at all.
func TestFloodMarks(t *testing.T) {
	rec := &RunRecord{Flood: &FloodFigures{Check: &load.Result{Connected: 20, Mismatched: 3, Unanswered: 7}}, Result: &load.Result{Connected: 19, Window: time.Second}}
	judgeFlood(rec, flooding("flood", Sha))
	var rules []string
	for _, m := range rec.Marks {
		rules = append(rules, m.Rule)
	}
	if want := []string{RuleConnect, RuleMismatch, RuleUnanswered}; !slices.Equal(rules, want) {
		t.Errorf("marks %v, want %v", rec.Marks, want)
	}
	silent := &RunRecord{Flood: &FloodFigures{}, Result: &load.Result{Connected: 20, Window: time.Second}}
	judgeFlood(silent, flooding("flood", Sha))
	if len(silent.Marks) != 1 || silent.Marks[0].Rule != RuleUnanswered {
		t.Errorf("marks %v, want %s", silent.Marks, RuleUnanswered)
	}
}

// TestFloodUnsteady has windows in which buffers have filled, or emptied.
func TestFloodUnsteady(t *testing.T) {
	for _, c := range []struct {
		sent, received int64
		want           string
	}{
		{4 << 20, 4 << 20, ""}, {4 << 20, 3 << 20, ""}, {3 << 20, 4 << 20, ""}, {4 << 20, 0, ""},
		{974 << 20, 6322 << 20, "974.0 MiB were sent in the window and 6322.0 MiB received: what was sent in the warm-up was answered in it, too"},
		{0, 1 << 20, "0.0 MiB were sent in the window and 1.0 MiB received: what was sent in the warm-up was answered in it, too"},
		{4 << 20, 2 << 20, "4.0 MiB were sent in the window and 2.0 MiB received: what was sent in it waited still at its end"},
	} {
		r := &RunRecord{Flood: &FloodFigures{Sent: c.sent, Received: c.received}, Result: &load.Result{Connected: 20}}
		got := ""
		for _, m := range r.floodMarks(flooding("flood", Lines)) {
			if m.Rule == RuleUnsteady {
				got = m.Detail
			}
		}
		if got != c.want {
			t.Errorf("%d sent, %d received: %q, want %q", c.sent, c.received, got, c.want)
		}
	}
}

// TestFloodParts looks at the table.
func TestFloodParts(t *testing.T) {
	rec := RunRecord{Workload: "flood", Subject: "a", Round: 1, Result: &load.Result{Connected: 20}, Flood: &FloodFigures{
		Sent: 3 << 20, Received: 2 << 20, Window: 1, Lines: 1000, PerConnection: 2500, Down: 16e6, Up: 24e6, PacketsDown: 100, PacketsUp: 200,
		Unanswered: 9, Server: &ServerFigures{UserCPU: 1.5, SystemCPU: 2},
	}}
	r := &Report{Scenario: Scenario{Baseline: "a", Subjects: []Subject{{Name: "a"}}}, Runs: []RunRecord{rec}}
	parts := floodParts(r, r.rows("flood"), flooding("flood", Lines))
	want := []string{"a", "20", "3.0", "2.0", "-", "1.00", "2.5", "16.00", "24.00", "100", "200", "3.50", "9", ""}
	if got := parts[0].Table.Lines[1]; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	r.Runs[0].Flood = &FloodFigures{}
	if got := parts[0].Table.Lines[0]; len(got) != len(want) {
		t.Errorf("%d headings for %d columns", len(got), len(want))
	}
}

// TestFloodBase has the design of the published row where the baseline was not run.
func TestFloodBase(t *testing.T) {
	run := func(subject string, received int64) RunRecord {
		return RunRecord{Workload: "buffered", Subject: subject, Round: 1, Result: &load.Result{Connected: 20}, Flood: &FloodFigures{Received: received, Window: 1}}
	}
	w := flooding("buffered", Lines)
	r := &Report{Scenario: Scenario{
		Baseline: "net", Subjects: []Subject{{Name: "net"}, {Name: "tenth"}, {Name: "epoll"}},
		Published: []Published{{Rows: []PublishedRow{{Workload: "other", Design: "net"}, {Workload: "buffered", Design: "tenth"}}}},
	}, Runs: []RunRecord{run("tenth", 1<<20), run("epoll", 3<<20)}}
	const ratio = 5
	for _, want := range []struct{ heading, ratio string }{{"ratio to tenth", "3.00"}, {"ratio to net", "0.75"}} {
		lines := floodParts(r, r.rows("buffered"), w)[0].Table.Lines
		if head, last := lines[0], lines[len(lines)-1]; head[ratio] != want.heading || last[0] != "epoll" || last[ratio] != want.ratio {
			t.Errorf("got %q under %q, want %s %s", last, head, want.heading, want.ratio)
		}
		r.Runs = append(r.Runs, run("net", 4<<20)) // now the baseline is there
	}
}

// TestFloodChecks has workloads that make no sense.
func TestFloodChecks(t *testing.T) {
	if err := flooding("flood", Lines).checkFlood(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Workload){
		"app":      func(w *Workload) { w.App = Echo },
		"none":     func(w *Workload) { w.Connections = 0 },
		"size":     func(w *Workload) { w.Size = 64 },
		"pipeline": func(w *Workload) { w.Pipeline = 2 },
		"rate":     func(w *Workload) { w.ConnectRate = -1 },
		"fast":     func(w *Workload) { w.ConnectRate = maxConnectRate + 1 },
		"warm-up":  func(w *Workload) { w.WarmUp = -1 },
		"duration": func(w *Workload) { w.Duration = 0 },
	} {
		w := flooding("flood", Lines)
		change(&w)
		var wrong ScenarioError
		if err := w.checkFlood(); !errors.As(err, &wrong) {
			t.Errorf("%s: got %v, want a ScenarioError", name, err)
		}
	}
	w := flooding("flood", Lines)
	w.Connections, w.ConnectRate, w.Duration, w.WarmUp = 30_000, 5000, time.Minute, 2*time.Second
	if got := w.estimateFlood(); got < 68*time.Second || got > 80*time.Second {
		t.Errorf("estimate %v for 6 s of connecting, 2 s of warm-up and a minute", got)
	}
}
