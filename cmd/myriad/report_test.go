package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/load"
)

// aStream is a stream of package load's tests.
const aStream = "../../load/testdata/stream.jsonl"

func streamPath(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(aStream)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReport(t *testing.T) {
	path := streamPath(t)
	for _, c := range []struct {
		args []string
		code int
		says []string
	}{
		{[]string{path}, 0, []string{"target", "98 of 100", "connection reset by peer"}},
		{[]string{path, "--format", "csv"}, 0, []string{"p99_us", "99.5", "\r\n"}},
		{[]string{path, "--format", "html"}, 0, []string{"<!doctype html>", "127.0.0.1:9000"}},
		{[]string{path, "--format", "html", "--expect", "unsent==0", "--expect", "connected==98"}, 1,
			[]string{"1 of 2 expectations not met. unsent==0: 200.", "FAIL unsent==0: 200\n"}},
		{[]string{path, "--format", "json"}, 0, []string{`"connected": 98`}},
		{[]string{path, path}, 0, []string{"rate, 1/s", "1.00×"}},
		{[]string{path, "--expect", "p99<5ms", "--expect", "connected==98"}, 0, []string{"target"}},
		{[]string{path, "--expect", "p99<500us", "--expect", "errors==0", "--expect", "rate>1"}, 1,
			[]string{"FAIL p99<500us: 900µs\n", "FAIL errors==0: 203\n", "2 of 3 expectations not met", "target"}},
		{[]string{path, path, "--expect", "unsent==0"}, 1, []string{path + ": FAIL unsent==0: 200\n", "2 of 2"}},
		{[]string{path, path, "--merge"}, 2, []string{"no histogram"}},
		{[]string{path, "--merge"}, 2, []string{"--merge of one file"}},
		{[]string{path, path, "--format", "html"}, 2, []string{"--format html of 2 files", "--merge"}},
		{[]string{path, "--format", "xml"}, 2, []string{`--format is "xml"`, "text, csv, html, json"}},
		{[]string{path, "--expect", "speed>1"}, 2, []string{`--expect: expectation "speed>1"`, "rate"}},
		{append([]string{}, make([]string, maxReported+1)...), 2, []string{"65 files; expected at most 64"}},
		{nil, 2, []string{"FILE"}},
		{[]string{"/no/such/file"}, 2, []string{"/no/such/file: no such file"}},
		{[]string{path, "--out", "/no/such/directory/r.txt"}, 2, []string{"--out: ", "/no/such/directory/r.txt"}},
	} {
		got := invoke(t, append([]string{"report"}, c.args...)...)
		if got.code != c.code {
			t.Errorf("report %q: exit code %d, want %d; stderr %s", c.args, got.code, c.code, got.stderr)
		}
		for _, word := range c.says {
			if !strings.Contains(got.stdout+got.stderr, word) {
				t.Errorf("report %q doesn't say %q: %s%s", c.args, word, got.stdout, got.stderr)
			}
		}
	}
}

// What is not a stream is named by its line; the report is not begun.
func TestReportBadInput(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bad.jsonl")
	out := filepath.Join(t.TempDir(), "out.html")
	for text, says := range map[string]string{
		"":                                  "it is empty; expected the report.json of a bench, or its directory, or the events of a load",
		"{}\n":                              "it is neither of a bench nor of a load; expected the report.json of a bench, or its directory, or the events of a load",
		"hello\n":                           "it is neither of a bench nor of a load",
		"{\"phase\":\"began\"}\nhello\n":    "line 2: invalid character",
		"{\"phase\":\"began\"}\n{\"phase\"": "", // cut off
		"{\"phase\":\"done\"}\n":            "line 1: no result",
		"{\"phase\":\"" + strings.Repeat("x", 5<<20) + "\"}\n": "more than 4194304 bytes",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := invoke(t, "report", "--format", "html", "--out", out, path)
		_, err := os.Stat(out)
		if says == "" {
			if got.code != 0 || err != nil {
				t.Errorf("a stream that is cut off: exit code %d, %s, %v", got.code, got.stderr, err)
			}
			os.Remove(out)
			continue
		}
		if got.code != 2 || !strings.Contains(got.stderr, path+": ") || !strings.Contains(got.stderr, says) || err == nil {
			t.Errorf("%.40q: exit code %d, %q, a report: %v; want 2, %q and none", text, got.code, got.stderr, err == nil, says)
		}
	}
	// A run that is cut off meets no expectation, and has no result.
	if err := os.WriteFile(path, []byte("{\"phase\":\"began\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := invoke(t, "report", "--expect", "errors==0", path); got.code != 1 || !strings.Contains(got.stderr, "FAIL errors==0: no result") {
		t.Errorf("a run that is cut off: exit code %d, %s", got.code, got.stderr)
	}
	if got := invoke(t, "report", "--format", "json", path); got.code != 1 || !strings.Contains(got.stderr, "cut off") {
		t.Errorf("a run that is cut off, as JSON: exit code %d, %s", got.code, got.stderr)
	}
}

// The report of a real run, by a pipe, is what the run said, and a file of it
// is replaced.
func TestReportOfLoad(t *testing.T) {
	s := startServer(t, "serve", "--app", "lines")
	run := invoke(t, "load", "-c", "5", "--duration", "200ms", "--json", s.addr)
	if run.code != 0 {
		t.Fatalf("load: exit code %d, %s", run.code, run.stderr)
	}
	out := filepath.Join(t.TempDir(), "out.json")
	if err := os.WriteFile(out, []byte(strings.Repeat("old", 1<<16)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := command(t, "report", "-", "--format", "json", "--out", out, "--expect", "connected==5", "--expect", "errors==0")
	cmd.Stdin = strings.NewReader(run.stdout)
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var r load.Result
	if err := json.Unmarshal(text, &r); err != nil || r.Target != s.addr || r.Answered == 0 {
		t.Errorf("%v; target %q, %d answered", err, r.Target, r.Answered)
	}
}
