package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/lab/app"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
)

// aStream is a stream of package load's tests.
const aStream = "../load/testdata/stream.jsonl"

// reportCase is a command line of report with its expected output.
type reportCase struct {
	args []string
	code int
	says []string
}

func (c *reportCase) runAndCheck(t *testing.T) {
	t.Helper()
	invokeCommand(t, append([]string{"report"}, c.args...)...).checkOutcome(t, fmt.Sprintf("report %q", c.args), c.code, c.says...)
}

func TestReport(t *testing.T) {
	const path = aStream
	for _, c := range []reportCase{
		{[]string{path}, 0, []string{"target", "98 of 100", "connection reset by peer"}},
		{[]string{path, "--format", "csv"}, 0, []string{"p99_us", "99.5", "\r\n"}},
		{[]string{path, "--format", "html"}, 0, []string{"<!doctype html>", "127.0.0.1:9000"}},
		{[]string{path, "--format", "html", "--expect", "unsent==0", "--expect", "connected==98"}, 1,
			[]string{"1 of 2 expectations were not met. unsent==0: 200.", "FAIL unsent==0: 200\n"}},
		{[]string{path, "--format", "json"}, 0, []string{`"connected": 98`}},
		{[]string{path, path}, 0, []string{"rate, 1/s", "1.00×"}},
		{[]string{path, "--expect", "p99<5ms", "--expect", "connected==98"}, 0, []string{"target"}},
		{[]string{path, "--expect", "p99<500us", "--expect", "errors==0", "--expect", "rate>1"}, 1,
			[]string{"FAIL p99<500us: 900µs\n", "FAIL errors==0: 203\n", "2 of 3 expectations were not met", "target"}},
		{[]string{path, path, "--expect", "unsent==0"}, 1, []string{path + ": FAIL unsent==0: 200\n", "2 of 2"}},
		{[]string{path, path, "--merge"}, 2, []string{"without a histogram"}},
		{[]string{path, "--merge"}, 2, []string{"--merge is given with one file"}},
		{[]string{path, path, "--format", "html"}, 2, []string{"--format is html with 2 files", "--merge"}},
		{[]string{path, "--format", "xml"}, 2, []string{`--format is "xml"; expected one of text, csv, html, json`}},
		{[]string{path, "--expect", "speed>1"}, 2, []string{`--expect: expectation "speed>1"`, "rate"}},
		{[]string{"/no/such/file"}, 2, []string{"/no/such/file: no such file"}},
		{[]string{path, "--out", "/no/such/directory/r.txt"}, 2, []string{"--out: ", "/no/such/directory/r.txt"}},
	} {
		c.runAndCheck(t)
	}
}

// What is not a stream is named by its line; the report is not begun.
func TestReportBadInput(t *testing.T) {
	path, out := filepath.Join(t.TempDir(), "bad.jsonl"), filepath.Join(t.TempDir(), "out.html")
	html := []string{"--format", "html", "--out", out, path}
	for text, says := range map[string]string{
		"":                               "empty file; expected the report.json of a bench, its directory, or the events of a load",
		"hello\n":                        "neither a bench report nor the events of a load",
		"{\"phase\":\"began\"}\nhello\n": "line 2: invalid character",
	} {
		testkit.RequireNoError(t, os.WriteFile(path, []byte(text), 0o600))
		(&reportCase{html, 2, []string{path + ": ", says}}).runAndCheck(t)
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%.40q: there is a report", text)
		}
	}
	// A run that is cut off meets no expectation, and has no result.
	testkit.RequireNoError(t, os.WriteFile(path, []byte("{\"phase\":\"began\"}\n{\"phase\""), 0o600))
	(&reportCase{html, 0, nil}).runAndCheck(t)
	(&reportCase{[]string{"--expect", "errors==0", path}, 1, []string{"FAIL errors==0: no result"}}).runAndCheck(t)
	(&reportCase{[]string{"--format", "json", path}, 1, []string{"no final result"}}).runAndCheck(t)
}

// writeSingleBenchReport writes the report of a bench with a message rate for each round, and one failed
// run.
func writeSingleBenchReport(t *testing.T, name string, rates ...float64) string {
	t.Helper()
	r := &result.Report{Scenario: scenario.Scenario{
		Name: "test", Question: "Is it?", Rounds: len(rates), Subjects: []scenario.Subject{{Name: "net"}},
		Workloads: []scenario.Workload{{Name: "echo", App: app.Echo, Connections: 1, Phases: []scenario.Phase{{Do: scenario.Load}}}},
	}}
	for i, rate := range rates {
		r.Runs = append(r.Runs, result.Run{Workload: "echo", Subject: "net", Round: i + 1, Figures: map[string]float64{"tps": rate}})
	}
	r.Runs = append(r.Runs, result.Run{Workload: "echo", Subject: "net", Round: len(rates) + 1, Error: "broken"})
	path := filepath.Join(t.TempDir(), name)
	f, err := os.Create(path)
	testkit.RequireNoError(t, err)
	defer f.Close()
	testkit.RequireNoError(t, (&result.Set{Format: result.Format, Reports: []*result.Report{r}}).WriteJSON(f))
	return path
}

func TestReportBenches(t *testing.T) {
	a, b := writeSingleBenchReport(t, "a.json", 100, 101, 102, 103), writeSingleBenchReport(t, "b.json", 90)
	out := filepath.Join(t.TempDir(), "out.html")
	for _, c := range []reportCase{
		{[]string{a}, 0, []string{"Myriad bench: test", "net", "102"}},
		{[]string{a, "--format", "html", "--out", out}, 0, nil},
		{[]string{a, "--format", "json"}, 0, []string{`"format": "myriad-bench-2"`}},
		{[]string{a, "--format", "benchstat"}, 0, []string{"Unit tps better=higher\n", "\nBenchmarkTest/echo/net 1 103 tps\n", "left out: 1 runs that failed or were not made"}},
		{[]string{a, "--format", "csv"}, 2, []string{`--format is "csv"; expected one of text, html, json, benchstat`}},
		{[]string{aStream, "--format", "benchstat"}, 2, []string{`--format is "benchstat"; expected one of text, csv, html, json`}},
		{[]string{a, b}, 2, []string{"2 bench reports; expected one (to compare two, write each with --format benchstat"}},
		{[]string{a, "--expect", "p99<1s"}, 2, []string{"--expect"}},
		{[]string{a, aStream}, 2, []string{"one contains a bench and the other a load"}},
	} {
		c.runAndCheck(t)
	}
	if text, err := os.ReadFile(out); err != nil || !strings.Contains(string(text), "<title>Myriad bench: test") {
		t.Errorf("--out: %.200s, %v", text, err)
	}
	dir := t.TempDir()
	testkit.RequireNoError(t, os.Rename(a, filepath.Join(dir, "report.json")))
	(&reportCase{[]string{dir}, 0, []string{"Myriad bench: test"}}).runAndCheck(t)
	bad := filepath.Join(t.TempDir(), "bad.json")
	testkit.RequireNoError(t, os.WriteFile(bad, []byte(`{"format": "myriad-bench-7"}`), 0o600))
	(&reportCase{[]string{bad}, 2, []string{bad + `: format is "myriad-bench-7"`}}).runAndCheck(t)
}
