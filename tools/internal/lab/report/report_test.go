package report

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/perf/benchfmt"

	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/lab/probe"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/lab/stats"
	"github.com/myriad-go/myriad/tools/internal/sample"
	"github.com/myriad-go/myriad/tools/load"
)

func pointer(v float64) *float64 { return &v }

// newTestSet has a scenario of three servers under two workloads that differ in size, each in as many
// rounds as there are rates of net.
func newTestSet(net, epoll []float64) *result.Set {
	work := func(name string, n int) scenario.Workload {
		return scenario.Workload{Name: name, Caption: "Caption of " + name, App: "echo", Connections: n, Size: 8, Phases: []scenario.Phase{{Do: scenario.Load}}}
	}
	r := &result.Report{Scenario: scenario.Scenario{
		Name: "test", Question: "Which?", About: "About it.\n\nMore.", Baseline: "net", Auto: "auto", Rounds: len(net),
		Subjects:  []scenario.Subject{{Name: "net"}, {Name: "epoll"}, {Name: "auto"}},
		Workloads: []scenario.Workload{work("few-10", 10), work("few-100", 100)},
		Answer:    []scenario.Clause{{Text: "{subject} serves {ratio} times as many as {baseline}", Workload: "few-10", Figure: "tps"}, {Text: "{value}", Workload: "few-10", Figure: "p99"}},
		References: []scenario.ReferenceTable{{
			Title: "A table", Source: "somebody", Machine: "a machine", Faults: []string{"It is wrong."}, Count: "connections",
			Columns: []scenario.Column{{Name: "rate", Figure: "tps"}, {Name: "in flight", Figure: "in-flight"}, {Name: "times", Figure: "tps", Relative: "net"}},
			Rows: []scenario.ReferenceRow{
				{Name: "ten", Count: 10, Cells: []string{"5", "2", "1×"}, Workload: "few-10", Design: "net", Ours: []string{"epoll"}, About: []string{"tps"}},
				{Name: "none", Count: 10, Cells: []string{"5", "10", "1×"}, Workload: "gone", Design: "net", About: []string{"tps"}},
			},
		}},
		Claims: []scenario.Claim{
			{Text: "at least 150", Workload: "few-10", Subjects: []string{"epoll"}, Figure: "tps", AtLeast: pointer(150)},
			{Text: "half of few", Workload: "few-100", Subjects: []string{"epoll"}, Figure: "tps", AtLeast: pointer(0.5), Of: "few-10", Fails: scenario.IfNotMet},
			{Text: "at most 1", Workload: "few-10", Subjects: []string{"net"}, Figure: "tps", AtMost: pointer(1), Fails: scenario.IfStrict},
			{Text: "of many", Workload: "few-10", Figure: "tps", Subjects: []string{"net"}, AtMost: pointer(1), From: 1000, Fails: scenario.UnlessMet},
		},
	}, Planned: 5 * len(net)}
	add := func(workload, subject string, round int, tps float64) {
		r.Runs = append(r.Runs, result.Run{Workload: workload, Subject: subject, Round: round, Started: time.Unix(1, 0), Figures: map[string]float64{
			"tps": tps, "p99": 1 / tps, "in-flight": 10, "expected": 10}})
	}
	for i := range net {
		add("few-10", "net", i+1, net[i])
		add("few-10", "epoll", i+1, epoll[i])
		add("few-10", "auto", i+1, epoll[i]*0.9)
		add("few-100", "net", i+1, net[i]*2)
		add("few-100", "epoll", i+1, epoll[i]*2)
	}
	return &result.Set{Format: result.Format, Command: "myriad bench test", Date: time.Unix(1, 0), Reports: []*result.Report{r}}
}

func renderText(t *testing.T, s *result.Set) string {
	t.Helper()
	SetVerdicts(s)
	var b bytes.Buffer
	testkit.RequireNoError(t, WriteTextReport(&b, s))
	return strings.Join(strings.Fields(b.String()), " ")
}

// The report has the answer, the tables, ours beside a published table, and the claims.
func TestReport(t *testing.T) {
	s := newTestSet([]float64{100, 101, 102}, []float64{200, 202, 204})
	got := renderText(t, s)
	for _, want := range []string{
		"epoll serves 2 times as many as net; 4.95 ms.", "Which?", "About it.", "Caption of few-10", "Caption of few-100",
		"subject TPS ± ratio to net p99", "net 101 ±2.6 % 1.00", "epoll 202 ±2.6 % 2.00", "auto is at 0.90 of the best of the others (epoll)",
		"Published: A table", "published: ten 10 5 2 1× never loaded", "its design here: net 10 101 (±2.6 %) 10.0 1×", "ours: epoll 10 202 (±2.6 %) 10.0 2× 2.00 ±0.00",
		"1 of 1 rows of ours are ahead of the published design in the same run; 1 of 2 published rows not measured at their size.",
		"none: not measured: no run of gone was made.", "Known fault of what is published: It is wrong.", "by Little's law 2 requests were in flight",
		"at least 150: met: few-10/epoll: TPS 202; at least 150", "half of few: met: few-100/epoll: TPS 404; at least 101 (202 under few-10)", "at most 1: NOT MET: few-10/net: TPS 101; at most 1",
		"of many: not measured: few-10/net: 101, of too few connections to tell",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the report does not say %q:\n%s", want, got)
		}
	}
	if _, claims := s.CountFailedRunsAndClaims(); claims != 1 { // of many, which fails unless it is met
		t.Errorf("%d claims failed, want 1: %+v", claims, s.Reports[0].Verdicts)
	}
	s.Strict = true
	SetVerdicts(s)
	if _, claims := s.CountFailedRunsAndClaims(); claims != 2 {
		t.Errorf("%d claims failed with --strict, want 2", claims)
	}
	dir := t.TempDir()
	testkit.RequireNoError(t, WriteJSONAndHTMLFiles(dir, s))
	for file, want := range map[string]string{"report.html": "Throughput: few", "report.json": `"format": "myriad-bench-2"`} {
		if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%s: %v, does not say %q", file, err, want)
		}
	}
}

// A chart by size has the published curve too, of one design and where it has several sizes.
func TestPublishedCurve(t *testing.T) {
	r := newTestSet([]float64{100}, []float64{200}).Reports[0]
	published := func() (all []page.Series) {
		for _, part := range buildSizeAndLatencyCharts(r) {
			if part.Chart != nil && part.Chart.Title == "Throughput: few" {
				all = slices.DeleteFunc(slices.Clone(part.Chart.Series), func(s page.Series) bool { return s.Name != "published" })
			}
		}
		return all
	}
	if got := published(); len(got) > 0 {
		t.Errorf("%v, want no curve of one point", got)
	}
	table := &r.Scenario.References[0]
	table.Rows = append(table.Rows,
		scenario.ReferenceRow{Count: 20, Cells: []string{"9", "9", "9×"}, Workload: "few-100", Design: "epoll"},
		scenario.ReferenceRow{Count: 100, Cells: []string{"6k", "2", "1×"}, Workload: "few-100", Design: "net"})
	if got := published(); len(got) != 1 || !slices.Equal(got[0].X, []float64{10, 100}) || !slices.Equal(got[0].Y, []float64{5, 6000}) {
		t.Errorf("%v, want one curve of 5 on 10 and 6,000 on 100", got)
	}
}

// The answer says that there was one round, which runs are marked, and where rounds differ by as much as
// subjects. A clause is of the subject of the one before.
func TestAnswerDoubts(t *testing.T) {
	noisy := newTestSet([]float64{100, 101, 102}, []float64{200, 202, 204})
	noisy.Reports[0].Runs[1].AddCaveat(probe.RuleNoise, "others") // epoll under few-10
	later := newTestSet([]float64{100, 100, 100}, []float64{200, 200, 200})
	for i := range later.Reports[0].Runs {
		if run := &later.Reports[0].Runs[i]; run.Subject == "net" {
			run.Figures["p99"] = 0.0005 // the best p99 is not that of the most TPS
		}
	}
	for want, s := range map[string]*result.Set{
		"epoll serves 2 times as many as net; 5.00 ms. One round.":                                           newTestSet([]float64{100}, []float64{200}),
		"epoll serves 1.05 times as many as net (within the spread); 9.52 ms.":                               newTestSet([]float64{100, 100, 100}, []float64{90, 105, 120}),
		"epoll serves 2 times as many as net; 4.95 ms. Not certain: 1 of 3 runs of epoll were marked noise.": noisy,
		"epoll serves 2 times as many as net; 5.00 ms.":                                                      later,
	} {
		if a := buildAnswerText(s.Reports[0]); a.String() != want {
			t.Errorf("got %q, want %q", a.String(), want)
		}
	}
}

// Nothing stands on runs that are marked: neither an answer, nor what is counted as ahead of a
// published design, nor a claim. And rows that were run smaller than published are counted.
func TestMarkedRuns(t *testing.T) {
	s := newTestSet([]float64{100, 101, 102}, []float64{200, 202, 204})
	r := s.Reports[0]
	for i := range r.Runs {
		if run := &r.Runs[i]; run.Subject == "net" && run.Round < 3 {
			run.AddCaveat(probe.RuleUnsteady, "it varied")
		}
	}
	r.Scenario.Workloads[0].Reduced = true
	got := renderText(t, s)
	for _, want := range []string{
		"epoll serves 2 times as many as net; 4.95 ms. Not certain: 2 of 3 runs of net were marked unsteady.",
		"0 of 1 rows of ours are ahead of the published design in the same run; 1 not certain, 2 of 2 published rows not measured at their size.",
		"ten: epoll is ahead of net in TPS, 2.00 ±0.00 (202 against 101); net is marked unsteady 2/3; not certain: 2 of 3 runs of net were marked unsteady.",
		"at least 150: met", "at most 1: NOT MET: few-10/net: TPS 101; at most 1; not certain: 2 of 3 runs of net were marked unsteady",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the report does not say %q:\n%s", want, got)
		}
	}
	for i := range r.Runs {
		r.Runs[i].Caveats = nil
		if run := &r.Runs[i]; run.Subject == "epoll" && run.Round == 1 {
			run.AddCaveat(probe.RuleNoise, "others")
			run.AddCaveat(probe.RuleFewer, "no doubt")
		}
	}
	if got := renderText(t, s); !strings.Contains(got, "1 of 1 rows of ours are ahead") {
		t.Errorf("one marked run of three is not what a median stands on:\n%s", got)
	}
	r.Scenario.Workloads[0].Reduced = false
	r.Scenario.References[0].Rows[0].Count = 11
	if got := renderText(t, s); !strings.Contains(got, "2 of 2 published rows not measured at their size") {
		t.Errorf("10 connections are taken for 11:\n%s", got)
	}
}

// Runs that failed or were not made are told of, and are part of no median.
func TestReportFaults(t *testing.T) {
	s := newTestSet([]float64{100, 100}, []float64{200, 200})
	runs := s.Reports[0].Runs
	runs[1].Error, runs[1].Caveats = "it broke\nbadly", []result.Caveat{{Rule: probe.RuleNoise, Detail: "others"}}
	runs[0].Skipped = "no room"
	s.Reports[0].Planned = 12
	got := renderText(t, s)
	for _, want := range []string{
		"1 of 10 runs failed.", "What was not as it should be test: few-10/net: not run: no room test: few-10/epoll: FAILED: it broke test:", "epoll, round 1: FAILED: it broke badly", "net, round 1: not run: no room",
		"FAILED 1/2, noise 1/2", "epoll failed in 1 of 2 rounds: it broke",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the report does not say %q:\n%s", want, got)
		}
	}
}

// A design that the watchdog has ended is not compared but by its memory, and one that came to
// nothing leaves ours alone.
func TestStanding(t *testing.T) {
	rows := func(figure string, values ...float64) subjectRuns {
		w := subjectRuns{subject: "x"}
		for i, v := range values {
			w.runs = append(w.runs, &result.Run{Round: i + 1, Figures: map[string]float64{figure: v}})
		}
		return w
	}
	tps, _ := probe.FindFigure("tps")
	p99, _ := probe.FindFigure("p99")
	memory, _ := probe.FindFigure("peak-memory")
	ended := rows("tps", 10, 10)
	ended.runs[0].Jobs = &result.Jobs{Killed: &result.Killed{Limit: 2e9}}
	big := rows("peak-memory", 200)
	big.runs[0].Jobs = ended.runs[0].Jobs
	marked := rows("tps", 20, 20)
	marked.runs[0].AddCaveat(probe.RuleMismatch, "wrong")
	for _, c := range []struct {
		f            probe.Figure
		ours, design subjectRuns
		outcome, in  string
	}{
		{tps, rows("tps", 20, 22), rows("tps", 10, 11), result.Ahead, "2.00 ±0.00"},
		{p99, rows("p99", 20, 22), rows("p99", 10, 11), result.Behind, "0.50 ±0.00"},
		{tps, rows("tps", 10, 12), rows("tps", 11, 11), result.Level, "1.00"},
		{tps, rows("tps", 10.5), rows("tps", 10), result.Level, "1.05"},
		{tps, rows("tps", 10, 10), rows("tps", 0, 0), result.Ahead, "alone"},
		{p99, rows("p99", 1, 1), rows("p99", stats.Never, stats.Never), result.Ahead, "alone"},
		{tps, rows("tps", 10, 10), ended, result.NotMeasured, "-"},
		{memory, rows("peak-memory", 100), big, result.Ahead, "2.00"},
		{tps, marked, rows("tps", 10, 10), result.NotMeasured, "-"},
		{tps, rows("tps", 10), subjectRuns{subject: "y"}, result.NotMeasured, "-"},
		{tps, rows("tps", 0), rows("tps", 1), result.NotMeasured, "-"},
	} {
		s := compareByRatiosPerRound("row", c.f, c.ours, c.design, "")
		if s.outcome != c.outcome || !strings.HasPrefix(s.ratioText, c.in) || !strings.HasPrefix(s.text, "row: ") {
			t.Errorf("%s of %v and %v: %+v; want %s, %s", c.f.Name, c.ours.valuesOfValidRuns(c.f.Name), c.design.valuesOfValidRuns(c.f.Name), s, c.outcome, c.in)
		}
	}
}

// A multiple of what a design had done until the watchdog ended it says so, in the table and in words.
func TestEnded(t *testing.T) {
	finished, _ := probe.FindFigure("finished")
	run := func(name string, n float64, ended *result.Killed) subjectRuns {
		return subjectRuns{name, []*result.Run{{Round: 1, Figures: map[string]float64{"finished": n}, Jobs: &result.Jobs{Killed: ended}}}}
	}
	naive, ours := run("naive", 20_000, &result.Killed{After: 30 * time.Second, Limit: 12e9}), run("ours", 92_000, nil)
	rows := []subjectRuns{naive, ours}
	column := scenario.Column{Figure: "finished", Relative: "naive"}
	for _, c := range []struct {
		row  subjectRuns
		want string
	}{{naive, "1× (20,000 in 30.0 s, then ended at 12.00 GB)"}, {ours, "4.6× (92,000)"}, {run("idle", 0, nil), "0× (0)"}} {
		if got := formatMeasuredFigureOrRatio(column, rows, c.row); got != c.want {
			t.Errorf("%s: %q, want %q", c.row.subject, got, c.want)
		}
	}
	s := compareByRatiosPerRound("row", finished, ours, naive, "")
	if want := "row: ours is not measured against naive in finished: naive was ended by the watchdog of this lab at 12.00 GB after 30.0 s: 92,000 against 20,000 until then."; s.text != want || !s.designKilled {
		t.Errorf("got %q, want %q", s.text, want)
	}
}

// Each run that counts is a benchmark's line, with the figures that are better lower or higher.
func TestWriteBenchstat(t *testing.T) {
	s := newTestSet([]float64{100, 101}, []float64{200, 202})
	s.Machine = result.Machine{OS: "linux", Arch: "amd64", CPU: "A CPU"}
	runs := s.Reports[0].Runs
	runs[0].Figures["bytes-idle"] = 96
	runs[0].Figures["p99.9"] = stats.Never
	runs[1].Error, runs[2].Skipped = "broken", "no room"
	var b bytes.Buffer
	testkit.RequireNoError(t, WriteBenchstat(&b, s))
	in := benchfmt.NewReader(&b, "test")
	var found []string
	for in.Scan() {
		switch line := in.Result().(type) {
		case *benchfmt.SyntaxError:
			t.Error(line)
		case *benchfmt.Result:
			if cpu := line.GetConfig("cpu"); cpu != "A CPU" || line.Iters != 1 {
				t.Errorf("%s: %d times on CPU %q", line.Name, line.Iters, cpu)
			}
			text := line.Name.String()
			for _, v := range line.Values {
				text += fmt.Sprint(" ", v.Value, " ", v.Unit)
			}
			found = append(found, text)
		}
	}
	if err := in.Err(); err != nil || len(found) != len(runs)-2 {
		t.Fatalf("%d lines, %v, want one for each of %d runs that count", len(found), err, len(runs)-2)
	}
	if want := "Test/few-10/net 100 tps 0.01 p99-sec 96 bytes-idle-B"; found[0] != want {
		t.Errorf("got %q, want %q: neither in-flight, of which no more is better, nor what never was", found[0], want)
	}
	for unit, want := range map[string]int{"tps": 1, "p99-sec": -1, "bytes-idle-B": -1} {
		if got := in.Units().GetBetter(unit); got != want {
			t.Errorf("%s: better is %d, want %d", unit, got, want)
		}
	}
}

// A time line is drawn with rates of counters, and a gap where a counter began anew.
func TestTimelines(t *testing.T) {
	s := newTestSet([]float64{1}, []float64{2})
	run := &s.Reports[0].Runs[0]
	for i := range 5 {
		at := time.Duration(i) * time.Second
		run.Timeline = append(run.Timeline, result.Tick{At: at, Server: load.Usage{Process: sample.Process{User: at / 2, RSS: 1 << 20}}, Load: load.Usage{Process: sample.Process{RSS: 1}}, Answered: int64(100 * i), Slab: int64(1000 + i)})
	}
	run.Timeline[4].Server.User = 0
	for _, part := range buildTimelineSection(s.Reports[0]).Parts {
		if part.Chart == nil || part.Chart.Title != "CPU of server and load: few-10" {
			continue
		}
		y := part.Chart.Series[0].Y
		if len(y) != 5 || !math.IsNaN(y[0]) || y[1] != 0.5 || !math.IsNaN(y[4]) {
			t.Errorf("CPU: %v, want 0.5 between gaps", y)
		}
		return
	}
	t.Error("the CPU is not drawn")
}

// The page begins with the answer, and then names the claims that were not met.
func TestFirstLines(t *testing.T) {
	s := newTestSet([]float64{100, 101, 102}, []float64{200, 202, 204})
	SetVerdicts(s)
	p := NewReportPage(s)
	if want := "test: epoll serves 2 times as many as net; 4.95 ms."; p.Lead != want || p.Tone != page.Plain {
		t.Errorf("it begins with %q, %q; want %q", p.Lead, p.Tone, want)
	}
	if want := (page.Remark{Tone: page.Bad, Text: "No run failed, but 1 claim was not met: test: at most 1."}); len(p.Remarks) != 1 || p.Remarks[0] != want {
		t.Errorf("it goes on with %q; want %q", p.Remarks, want)
	}
	claim := s.Reports[0].Scenario.Claims[2]
	for i := range 3 * maxNamedClaims {
		claim.Text = "never " + string(rune('a'+i))
		s.Reports[0].Scenario.Claims = append(s.Reports[0].Scenario.Claims, claim)
	}
	SetVerdicts(s)
	if text := NewReportPage(s).Remarks[0].Text; !strings.Contains(text, "25 claims were not met: test: at most 1; test: never a; ") || !strings.HasSuffix(text, "; 17 more, in their sections.") {
		t.Errorf("of many claims it says %q", text)
	}
	s.Reports[0].Scenario.Answer = nil
	if p := NewReportPage(s); p.Tone != page.Bad || !strings.HasPrefix(p.Lead, "No run failed, but 25") || len(p.Remarks) > 0 {
		t.Errorf("without an answer it begins with %q, %q", p.Lead, p.Remarks)
	}
}
