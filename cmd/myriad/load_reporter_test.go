package main

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/load"
)

// aRun is the events of a short run.
func aRun() []load.Event {
	return []load.Event{
		{Phase: load.Began, Plan: &load.Plan{Start: time.Unix(1_700_000_000, 0), Targets: []string{"a:1"}, Mode: "closed loop", Connections: 2}},
		{Phase: load.Connected, Snapshot: load.Snapshot{Open: 2}},
		{Phase: load.Progress, Snapshot: load.Snapshot{Open: 2}, Interval: &load.Interval{To: time.Second, Stage: "window", Open: 2, Answered: 77}},
		{Phase: load.Done, Result: &load.Result{Target: "a:1", Connections: 2, Connected: 2, Window: time.Second, Answered: 77}},
	}
}

// tell has the flags tell of a run, whose last event, if it is Done, has its result.
func tell(t *testing.T, f *resultFlags, run []load.Event) (stdout, stderr string, err error) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	cmd.SetErr(&errOut)
	f.quiet = true // the tests may have a terminal
	reporter, err := f.open(cmd)
	if err != nil {
		return "", "", err
	}
	for _, e := range run {
		reporter.observe(e)
	}
	var result *load.Result
	if len(run) > 0 {
		result = run[len(run)-1].Result
	}
	err = reporter.finish(result)
	return out.String(), errOut.String(), err
}

// Documents are written with and without a file of events, which is not left
// behind if nobody asked for it.
func TestTellDocuments(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, test := range map[string]struct {
		flags resultFlags
		files []string
	}{
		"a table":               {resultFlags{csv: path("a.csv")}, []string{"a.csv"}},
		"a page":                {resultFlags{html: path("a.html")}, []string{"a.html"}},
		"all":                   {resultFlags{csv: path("a.csv"), html: path("a.html"), out: path("a.jsonl")}, []string{"a.csv", "a.html", "a.jsonl"}},
		"events":                {resultFlags{out: path("a.jsonl")}, []string{"a.jsonl"}},
		"a table beside events": {resultFlags{csv: path("a.csv"), json: true}, []string{"a.csv"}},
		"nothing":               {resultFlags{}, nil},
	} {
		stdout, _, err := tell(t, &test.flags, aRun())
		if err != nil || !strings.Contains(stdout, "77") {
			t.Errorf("%s: %v, stdout %q; want a result with 77 answers", name, err, stdout)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var left []string
		for _, e := range entries {
			left = append(left, e.Name())
			if text, err := os.ReadFile(path(e.Name())); err != nil || !strings.Contains(string(text), "77") {
				t.Errorf("%s: %s is %q, %v; want 77 answers in it", name, e.Name(), text, err)
			}
			os.Remove(path(e.Name()))
		}
		if !slices.Equal(left, test.files) {
			t.Errorf("%s: left %q, want %q", name, left, test.files)
		}
	}
}

// A run that could not begin leaves no scratch file, and no result.
func TestTellNothing(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	f := &resultFlags{csv: filepath.Join(dir, "a.csv"), expect: []string{"connected==2"}}
	stdout, _, err := tell(t, f, nil)
	left, _ := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil || stdout != "" || len(left) > 0 {
		t.Errorf("got %v, stdout %q, left %q", err, stdout, left)
	}
}

func TestTellExpected(t *testing.T) {
	for _, test := range []struct {
		expect []string
		json   bool
		failed string // the lines
		err    string
	}{
		{[]string{"connected==2", "rate>=77"}, false, "ok   connected==2: 2\nok   rate>=77: 77\n", ""},
		{[]string{"connected==3", "rate>=77", "p99<5ms"}, false, "FAIL connected==3: 2\nok   rate>=77: 77\nFAIL p99<5ms: not measured\n", "2 of 3 expectations not met"},
		{[]string{"connected==3"}, true, "FAIL connected==3: 2\n", "1 of 1 expectations not met"},
		{[]string{"connected==3", "joy>1"}, false, "", `--expect: expectation "joy>1": name "joy"; expected one of`},
	} {
		stdout, stderr, err := tell(t, &resultFlags{expect: test.expect, json: test.json}, aRun())
		text := ""
		if err != nil {
			text = err.Error()
		}
		if !strings.HasPrefix(text, test.err) || (text == "") != (test.err == "") {
			t.Errorf("%q: got %v, want %q", test.expect, err, test.err)
		}
		lines, other := stdout, stderr
		if test.json {
			lines, other = stderr, stdout
		}
		if !strings.HasSuffix(lines, test.failed) || strings.Count(lines+other, "FAIL") != strings.Count(test.failed, "FAIL") {
			t.Errorf("%q: stdout %q, stderr %q; want %q, not among events", test.expect, stdout, stderr, test.failed)
		}
	}
}

func TestTellWhereItCannot(t *testing.T) {
	for want, f := range map[string]*resultFlags{
		"--csv: open /no/such":  {csv: "/no/such/directory/a"},
		"--html: open /no/such": {html: "/no/such/directory/a"},
		"--out: open /no/such":  {out: "/no/such/directory/a"},
		"--metrics is ":         {metrics: "127.0.0.1:no-such-port"},
	} {
		if _, _, err := tell(t, f, aRun()); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// Metrics are served while it runs.
func TestTellMetrics(t *testing.T) {
	var out, errOut bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	cmd.SetErr(&errOut)
	reporter, err := (&resultFlags{metrics: "127.0.0.1:0", quiet: true}).open(cmd)
	if err != nil {
		t.Fatal(err)
	}
	run := aRun()
	for _, e := range run[:3] {
		reporter.observe(e)
	}
	url, found := strings.CutPrefix(strings.TrimSpace(errOut.String()), "metrics on ")
	if !found {
		t.Fatalf("stderr %q does not say where the metrics are", errOut.String())
	}
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	if err != nil || !strings.Contains(string(text), "\nmyriad_load_connections 2\n") {
		t.Errorf("got %q, %v; want 2 connections", text, err)
	}
	if err := reporter.finish(run[3].Result); err != nil {
		t.Error(err)
	}
	if answer, err := http.Get(url); err == nil {
		answer.Body.Close()
		t.Error("metrics are served after the run")
	}
}
