package lab

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/page"
)

// TestOverview has the verdict of a published table, failures, walls and marks counted.
func TestOverview(t *testing.T) {
	b := drawnBook(t, 2, 0)
	r := b.Reports[0]
	b.Notes = []string{"A note of the book."}
	for i := range r.Runs {
		switch run := &r.Runs[i]; {
		case run.Workload == "idle-100" && run.Subject == "s0":
			run.Skipped = "one table of descriptors is too small"
		case run.Workload == "idle-100":
			run.Error = "it fell over\nat length"
		case run.Workload == "idle-1000" && run.Round == 1:
			run.Marks = []Mark{{RuleNoise, "somebody else"}, {RuleCount, "one more"}}
		case run.Workload == "idle-1000" && run.Round == 2:
			run.Superseded, run.Error = true, "this counts for nothing"
		}
	}
	if text, tone := b.status(); text != "3 of 34 runs failed." || tone != page.Bad {
		t.Errorf("the status is %q, %q", text, tone)
	}
	if top := b.top(); len(top) != 3 || !strings.HasPrefix(top[0][0], "Highest throughput") || !strings.HasPrefix(top[1][0], "Least memory") || top[2][1] != "3 of 34" {
		t.Errorf("the figures at the top are %q", top)
	}
	var out bytes.Buffer
	p := page.Page{Sections: []page.Section{b.overview()}}
	if err := p.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"Theirs 2 0 0 0 0 0 Drawn",
		"Drawn 36 3 3 2 2 count 2/34, noise 2/34",
		"A note of the book.",
		"What failed Drawn/idle-100/s1: it fell over",
		"What could not run Drawn/idle-100/s0: one table of descriptors is too small",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
	if strings.Count(text, "it fell over") != 1 || strings.Contains(text, "at length") || strings.Contains(text, "counts for nothing") {
		t.Errorf("an error is there more than once, at length, or counts for nothing:\n%s", out.String())
	}
}

// TestStatus has a book for each of what there is to say of its runs.
func TestStatus(t *testing.T) {
	made, marked, skipped := RunRecord{}, RunRecord{Marks: []Mark{{RuleNoise, ""}}}, RunRecord{Skipped: "no room"}
	again := RunRecord{Superseded: true, Marks: marked.Marks}
	for _, c := range []struct {
		runs    []RunRecord
		planned int
		want    string
		tone    page.Tone
	}{
		{[]RunRecord{made, again}, 2, "No run failed, and none broke a rule.", page.Good},
		{[]RunRecord{made, marked}, 2, "No run failed, but 1 of 2 broke a rule: their figures say less.", page.Warn},
		{[]RunRecord{made, marked, skipped}, 4, "No run failed, but 2 runs were not made.", page.Warn},
		{[]RunRecord{made, {Error: "x"}}, 2, "1 of 2 runs failed.", page.Bad},
	} {
		b := &Book{Reports: []*Report{{Runs: c.runs, Planned: c.planned}}}
		if text, tone := b.status(); text != c.want || tone != c.tone {
			t.Errorf("got %q, %q; want %q, %q", text, tone, c.want, c.tone)
		}
	}
}

// TestOverviewMissed has a run that came to its end and missed what is claimed.
func TestOverviewMissed(t *testing.T) {
	run := RunRecord{Workload: "w", Subject: "s", Round: 1, Million: &MillionRun{Missed: true, Findings: []MillionFinding{
		{Finding{"holds all", Met, ""}, false}, {Finding{"every one answered", NotMet, "2 lost"}, false}, {Finding{"small", NotMeasured, ""}, true},
	}}}
	b := &Book{Reports: []*Report{{Scenario: Scenario{Name: "million"}, Planned: 1, Runs: []RunRecord{run}}}}
	if got := b.told((*RunRecord).failure); len(got) != 1 || got[0] != "million/w/s: every one answered: NOT MET: 2 lost" {
		t.Errorf("got %q", got)
	}
	if line := b.counts().Lines[1]; line[2] != "1" {
		t.Errorf("got %q, want one that failed", line)
	}
}

// TestOverviewNotMet names the claims of all runs together that were not met.
func TestOverviewNotMet(t *testing.T) {
	runs := sound()
	runs[2].Overload.Result.Good = 949
	b := &Book{Reports: []*Report{madeUpReport(runs...)}}
	if got := b.notMet(); len(got) != 1 || !strings.HasPrefix(got[0], "overload: cpu: goodput at 10x") {
		t.Errorf("got %q, want the goodput", got)
	}
	if parts := b.overview().Parts; parts[len(parts)-2].Heading != "What was not met" {
		t.Errorf("the overview has %+v at its end", parts[len(parts)-2:])
	}
}

// TestOverviewNotMetOfRun has a run that is not failed by a rate that it missed: the claim is
// named, once for rounds that say the same, the row of its scenario is marked, and the
// verdicts have it. A run that was made again counts for nothing.
func TestOverviewNotMetOfRun(t *testing.T) {
	run := func(rate string) RunRecord {
		return RunRecord{Workload: "w", Subject: "s", Million: &MillionRun{Findings: []MillionFinding{
			{Finding{"holds all", Met, ""}, false}, {Finding{"fast", NotMet, rate}, true},
		}}}
	}
	again := run("8")
	again.Superseded = true
	r := &Report{Scenario: Scenario{Name: "million"}, Planned: 3, Runs: []RunRecord{run("9"), again, run("9")}}
	b := &Book{Reports: []*Report{r}}
	if got := b.notMet(); len(got) != 1 || got[0] != "million/w/s: fast: NOT MET: 9" {
		t.Errorf("got %q", got)
	}
	if got := b.counts().Tone(1, 0); got != page.Warn {
		t.Errorf("the row has tone %q", got)
	}
	if got := r.judged(); len(got) != 4 || got[0] != (Verdict{"holds all", Met, "w/s"}) || got[3] != (Verdict{"fast", NotMet, "w/s: 9"}) {
		t.Errorf("got %+v", got)
	}
	r.Runs = nil
	r.Planned = 0
	if got := b.counts().Tone(1, 0); got != page.Plain || b.notMet() != nil {
		t.Errorf("nothing was missed: tone %q, %q", got, b.notMet())
	}
}

// TestOverviewBound has more walls than the overview tells.
func TestOverviewBound(t *testing.T) {
	var texts []string
	for i := range maxRemarks + 2 {
		texts = append(texts, fmt.Sprint(i))
	}
	all := bounded(page.Warn, texts)
	if len(all) != maxRemarks+1 || all[maxRemarks].Text != "And 2 more, in their scenarios." || len(bounded(page.Warn, texts[:maxRemarks])) != maxRemarks {
		t.Errorf("got %d: %+v", len(all), all[len(all)-1])
	}
}

// TestIDs are names that a page takes, each once.
func TestIDs(t *testing.T) {
	all := newIDs("overview")
	long := strings.Repeat("long-", 30)
	for _, c := range []struct{ words, want string }{
		{"overview", "overview-2"}, {"Any Thing: ü/2", "any-thing-2"}, {"--", "x"}, {"", "x-2"}, {"overview", "overview-3"},
		{long, strings.TrimSuffix(long[:56], "-")}, {long, strings.TrimSuffix(long[:56], "-") + "-2"},
	} {
		if got := all.id(c.words); got != c.want {
			t.Errorf("%.20q: got %q, want %q", c.words, got, c.want)
		}
	}
}

// TestWriteReports writes all three, of a book with two reports of the same name.
func TestWriteReports(t *testing.T) {
	b := drawnBook(t, 2, 5)
	b.Reports = append(b.Reports, b.Reports[0])
	dir := t.TempDir()
	if err := b.writeReports(dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"report.html": "<!doctype html>", "report.md": "# Myriad bench: Drawn and Drawn", "report.json": `"format": "myriad-bench-1"`,
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v, %.300s", name, err, text)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 3 {
		t.Errorf("left: %v, %v", left, err)
	}
}
