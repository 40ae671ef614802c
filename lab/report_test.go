package lab

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/page"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden holds a text against a file of testdata, or writes the file anew.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != strings.ReplaceAll(string(want), "\r\n", "\n") {
		t.Errorf("%s: got:\n%s\nwant:\n%s", name, got, want)
	}
}

// goldenReport has a clean row, marked rows, a failed run and a subject of
// which nothing worked.
func goldenReport() *Report {
	r := &Report{
		Scenario: Scenario{
			Name: "golden", Question: "Is the report readable?", Baseline: "net", Rounds: 3,
			Subjects: []Subject{{Name: "net"}, {Name: "epoll"}, {Name: "broken"}},
			Workloads: []Workload{
				{Name: "echo-100", Caption: "Echo on 100 connections.", Kind: Throughput, Connections: 100, Pipeline: 1},
				{Name: "idle-100", Caption: "100 connections, silent.", Kind: Idle, Connections: 100, Pipeline: 1},
				{Name: "unused", Caption: "Filtered out.", Kind: Idle},
			},
		},
		Machine: Machine{OS: "linux", Arch: "amd64", Kernel: "6.18.4", CPU: "Example CPU", CPUs: 2, Memory: 24 << 30, Go: "go1.26"},
		Pinning: twoCPUs,
		Date:    time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Command: "myriad bench golden",
		Notes:   []string{"A note."},
	}
	for round := 1; round <= 3; round++ {
		for _, s := range r.Scenario.Subjects {
			for _, w := range r.Scenario.Workloads[:2] {
				r.Runs = append(r.Runs, goldenRun(w, s.Name, round))
			}
		}
	}
	return r
}

func goldenRun(w Workload, subject string, round int) RunRecord {
	r := goodRun()
	if w.Kind == Idle {
		r = goodIdle()
	}
	r.Workload, r.Subject, r.Round = w.Name, subject, round
	r.Result.Answered += int64(round) * 1000
	switch {
	case subject == "broken", subject == "epoll" && w.Kind == Idle && round == 2:
		r.Error, r.Result = "the server ended: exit status 1: no such file\nsecond line", nil
		return *r
	case subject == "epoll" && w.Kind == Idle:
		r.Samples[1].RSS -= 8_000
	case subject == "epoll":
		r.Result.Answered = r.Result.Answered * 3 / 2
		r.Result.Latency.P50 = 640 * time.Nanosecond
		if round == 3 {
			r.Result.Mismatched = 2
		}
	}
	r.judge(w, twoCPUs)
	return *r
}

func TestWriteText(t *testing.T) {
	r := goldenReport()
	var got bytes.Buffer
	if err := r.WriteText(&got); err != nil {
		t.Fatal(err)
	}
	golden(t, "report.golden", got.String())
	if r.Failed() != 8 { // one of them answered wrongly
		t.Errorf("failed: got %d, want 8", r.Failed())
	}
}

// TestWriteTextWithoutBaseline has no ratio, and no figures of the server.
func TestWriteTextWithoutBaseline(t *testing.T) {
	r := goldenReport()
	r.Scenario.Baseline = "other"
	r.Pinning = Pinning{Why: "there is only one CPU"}
	var got bytes.Buffer
	if err := r.WriteText(&got); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(got.String(), "none: there is only one CPU") || !strings.Contains(got.String(), "ratio to other") {
		t.Errorf("got:\n%s", got.String())
	}
}

func TestFormats(t *testing.T) {
	for in, want := range map[float64]string{
		0: "0", 7: "7", 999.4: "999", 999.5: "1,000", 1234567.8: "1,234,568", -1234: "-1,234", -999: "-999",
	} {
		if got := thousands(in); got != want {
			t.Errorf("thousands(%v): got %s, want %s", in, got, want)
		}
	}
	for in, want := range map[time.Duration]string{
		0: "0 ns", 640: "640 ns", 999_400: "999 µs", 999_600: "1.00 ms", 1_234_000: "1.23 ms",
		99_960_000: "100 ms", 12_340_000: "12.3 ms", 2_500_000_000: "2.50 s", 9_996_000: "10.0 ms",
	} {
		if got := latency(float64(in)); got != want {
			t.Errorf("latency(%d): got %s, want %s", in, got, want)
		}
	}
}

// TestSectionTones has what is serious look so; a run that was made again is told of and
// counts for nothing.
func TestSectionTones(t *testing.T) {
	r := goldenReport()
	again := goldenRun(r.Scenario.Workloads[0], "net", 1)
	again.Superseded, again.Attempt, again.Marks = true, 1, []Mark{{RuleNoise, "others"}}
	again.Throughput.TPS = 1
	first := slices.IndexFunc(r.Runs, func(run RunRecord) bool { return run.Subject == "net" })
	r.Runs[first].Marks = []Mark{{RuleNoise, "others"}}
	r.Runs = append(r.Runs, again)
	s := r.Section()
	if s.ID != "golden" || s.Title != "golden" || s.Lead != r.Scenario.Question {
		t.Errorf("got %q, %q, %q", s.ID, s.Title, s.Lead)
	}
	tones := make(map[page.Tone]int)
	for _, p := range s.Parts {
		for _, remark := range p.Remarks {
			tones[remark.Tone]++
			if want := "net, round 1: made again, and attempt 1 counts for nothing: noise: others"; remark.Tone == page.Faint && remark.Text != want {
				t.Errorf("got %q, want %q", remark.Text, want)
			}
		}
		if p.Table == nil || p.Table.Lines[0][1] != tps.Heading {
			continue
		}
		last := len(p.Table.Lines[0]) - 1
		for i, want := range []page.Tone{page.Plain, page.Warn, page.Bad, page.Bad} {
			if got := p.Table.Tone(i, last); got != want {
				t.Errorf("%q: tone %q, want %q", p.Table.Lines[i], got, want)
			}
		}
		if got := p.Table.Lines[1][1]; got != "101,000" {
			t.Errorf("net has %s TPS, want 101,000", got)
		}
	}
	if tones[page.Faint] != 1 || tones[page.Warn] != 5 || tones[page.Bad] != 8 || tones[page.Plain] != 1 {
		t.Errorf("tones of the remarks: %v", tones)
	}
	if got := partID("My test_2"); got != "my-test-2" {
		t.Errorf("got %q", got)
	}
}
