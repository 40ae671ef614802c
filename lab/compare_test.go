package lab

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/page"
)

// bookOf is a made-up book of one scenario with a workload, and a run for each value of a
// subject: its TPS. p99 is one millisecond, always.
func bookOf(values map[string][]float64) *Book {
	r := &Report{
		Scenario: Scenario{Name: "test", Question: "Is it the same?", Baseline: "net", Rounds: 4,
			Subjects:  []Subject{{Name: "net"}, {Name: "epoll"}, {Name: "uring"}},
			Workloads: []Workload{{Name: "echo-100", Kind: Throughput, App: Echo, Connections: 100, Pipeline: 1, Size: 64, Duration: time.Second}}},
		Pinning: twoCPUs,
	}
	for _, s := range r.Scenario.Subjects {
		for i, v := range values[s.Name] {
			r.Runs = append(r.Runs, RunRecord{Workload: "echo-100", Subject: s.Name, Round: i + 1,
				Throughput: &ThroughputFigures{TPS: v, P99: time.Millisecond}})
		}
	}
	return &Book{Format: BookFormat, Version: "v1", Machine: Machine{OS: "linux", Arch: "amd64", CPUs: 2, Memory: 24 << 30, Go: "go1.26", Kernel: "6.18"},
		Command: "myriad bench test", Reports: []*Report{r}}
}

// found is a compared figure by its subject and its name.
func (c *Comparison) found(t *testing.T, subject, figure string) *ComparedFigure {
	t.Helper()
	i := slices.IndexFunc(c.Figures, func(f ComparedFigure) bool { return f.Subject == subject && f.Figure.Name == figure })
	if i < 0 {
		t.Fatalf("no %s of %s in %+v", figure, subject, c.Figures)
	}
	return &c.Figures[i]
}

func TestCompare(t *testing.T) {
	a := bookOf(map[string][]float64{"net": {100, 101, 102, 103}, "epoll": {200, 201, 202, 203}, "uring": {300}})
	b := bookOf(map[string][]float64{"net": {90, 91, 92, 93}, "epoll": {203, 202, 201, 200}})
	c, err := Compare([]string{"a.json", "b.json"}, []*Book{a, b}, nil)
	if err != nil {
		t.Fatal(err)
	}
	d, ok := c.found(t, "net", "tps").Against(1)
	if !ok || !d.Worse() || d.Better() || math.Abs(d.Change+10.0/101.5) > 1e-9 || math.Abs(d.P-2.0/70) > 1e-9 {
		t.Errorf("net: %+v, want 9.9 %% worse, p = 0.029", d)
	}
	if d, ok := c.found(t, "epoll", "tps").Against(1); !ok || d.Significant() || d.Change != 0 {
		t.Errorf("epoll: %+v, want no difference", d)
	}
	if d, ok := c.found(t, "net", "p99").Against(1); !ok || d.Significant() {
		t.Errorf("p99: %+v, want no difference of values that are all the same", d)
	}
	if len(c.Warnings) > 0 || len(c.Missing) != 1 || !strings.Contains(c.Missing[0], "test/echo-100/uring: not in b.json") {
		t.Errorf("warnings %q, missing %q", c.Warnings, c.Missing)
	}
	if got := c.Regressions(0.05); len(got) != 1 || !strings.Contains(got[0], "net: TPS is worse in b.json: -9.9 %, p=0.029 n=4+4") {
		t.Errorf("regressions: %q", got)
	}
	if got := c.Regressions(0.10); len(got) != 0 {
		t.Errorf("regressions by more than 10 %%: %q", got)
	}
	if slices.ContainsFunc(c.Figures, func(f ComparedFigure) bool { return f.Figure.Better == Neither }) {
		t.Errorf("a figure of which neither more nor less is better is compared")
	}
	back, err := Compare([]string{"b", "a"}, []*Book{b, a}, regexp.MustCompile("net/tps"))
	if err != nil || len(back.Figures) != 1 || len(back.Regressions(0)) != 0 {
		t.Errorf("the other way round: %v, %+v", err, back)
	}
}

// TestCompareFewRounds falls back on what is printed as ±.
func TestCompareFewRounds(t *testing.T) {
	for name, c := range map[string]struct {
		a, b []float64
		want bool
		says string
	}{
		"far apart":        {[]float64{100, 101, 102}, []float64{80, 81, 82}, true, "further apart than both ±, n=3+3"},
		"within the ±":     {[]float64{100, 110, 120}, []float64{80, 90, 100}, false, "within both ±, n=3+3"},
		"one round":        {[]float64{100}, []float64{1}, false, "need ≥ 2 rounds"},
		"against one":      {[]float64{100, 101, 102}, []float64{1}, false, "need ≥ 2 rounds"},
		"better":           {[]float64{80, 81, 82}, []float64{100, 101, 102}, false, "further apart"},
		"three and five":   {[]float64{100, 101, 102}, []float64{80, 81, 82, 83, 84}, true, "p=0.036 n=3+5"},
		"many, and a mess": {[]float64{1, 200, 3, 100}, []float64{2, 150, 4, 90}, false, "p="},
	} {
		x, err := Compare([]string{"a", "b"}, []*Book{bookOf(map[string][]float64{"net": c.a}), bookOf(map[string][]float64{"net": c.b})}, nil)
		if err != nil {
			t.Fatal(err)
		}
		f := x.found(t, "net", "tps")
		d, _ := f.Against(1)
		if d.Worse() != c.want || len(x.Regressions(0.05)) != map[bool]int{true: 1}[c.want] {
			t.Errorf("%s: %+v, want worse: %v", name, d, c.want)
		}
		if why := d.why(len(c.a), len(c.b)); !strings.Contains(why, c.says) {
			t.Errorf("%s: %q, want %q", name, why, c.says)
		}
	}
}

// TestCompareZero has figures that were 0, and one that never was.
func TestCompareZero(t *testing.T) {
	f := ComparedFigure{Figure: tps, Values: [][]float64{{0, 0, 0, 0}, {5, 6, 7, 8}, {0, 0, 0, 0}, {}}}
	if d, ok := f.Against(1); !ok || !d.Better() || d.change() != "from 0" {
		t.Errorf("got %+v", d)
	}
	if d, ok := f.Against(2); !ok || d.Significant() || d.change() != "+0.0 %" {
		t.Errorf("got %+v", d)
	}
	if _, ok := f.Against(3); ok {
		t.Errorf("compared with nothing")
	}
}

// TestCompareNever has latencies of no job: they are apart from any other.
func TestCompareNever(t *testing.T) {
	ms := 0.001
	f := ComparedFigure{Figure: p99, Values: [][]float64{{5 * ms, 5 * ms}, {never, never}, {never}, {5 * ms, 6 * ms, never}, {5 * ms, 5 * ms}}}
	for i, want := range map[int]string{1: "worse, no job against some, n=2+2", 2: "worse, no job against some, n=2+1", 3: "no ± is known, need ≥ 4 rounds; n=2+3", 4: "within both ±, n=2+2"} {
		change, why, _ := f.verdict(i)
		if why != want || (change == "to never") != strings.HasPrefix(want, "worse") {
			t.Errorf("%d: got %s, %s; want %s", i, change, why, want)
		}
	}
	f.Values[0] = f.Values[1]
	for i, want := range map[int]string{1: "~", 4: "from never"} {
		if change, _, _ := f.verdict(i); change != want {
			t.Errorf("%d: got %s, want %s", i, change, want)
		}
	}
	if middle, around := f.text(f.Values[1]); middle != "never" || around != none {
		t.Errorf("got %s %s", middle, around)
	}
}

// TestCompareFailed has subjects that failed in the second book in all rounds, in one, in
// as many as before, and one that was not run.
func TestCompareFailed(t *testing.T) {
	rates := map[string][]float64{"net": {1, 1}, "epoll": {1, 1}, "uring": {1, 1}, "other": {1, 1}}
	book := func() *Book {
		b := bookOf(rates)
		b.Reports[0].Scenario.Subjects = append(b.Reports[0].Scenario.Subjects, Subject{Name: "other"})
		for i := range 2 {
			b.Reports[0].Runs = append(b.Reports[0].Runs, RunRecord{Workload: "echo-100", Subject: "other", Round: i + 1, Throughput: &ThroughputFigures{TPS: 1}})
		}
		return b
	}
	a, b := book(), book()
	fail := func(b *Book, subject string, rounds int, error, skipped string) {
		for i := range b.Reports[0].Runs {
			if run := &b.Reports[0].Runs[i]; run.Subject == subject && run.Round <= rounds {
				run.Error, run.Skipped = error, skipped
			}
		}
	}
	fail(b, "net", 2, "it crashed\nat length", "")
	fail(b, "epoll", 1, "too slow", "")
	fail(a, "uring", 1, "once", "")
	fail(b, "uring", 1, "once", "")
	fail(b, "other", 2, "", "no memory")
	c, err := Compare([]string{"a", "b"}, []*Book{a, b}, nil)
	if err != nil {
		t.Fatal(err)
	}
	net, epoll := "test/echo-100/net failed in 2 of 2 rounds in b: it crashed", "test/echo-100/epoll failed in 1 of 2 rounds in b: too slow"
	if want := []string{net, epoll, "test/echo-100/uring failed in 1 of 2 rounds in a: once", "test/echo-100/uring failed in 1 of 2 rounds in b: once"}; !slices.Equal(c.Failed, want) {
		t.Errorf("failed: %q, want %q", c.Failed, want)
	}
	if got := c.Regressions(0.05); !slices.Equal(got, []string{net, epoll}) {
		t.Errorf("regressions: %q", got)
	}
	if want := []string{"test/echo-100/other: not run in b: no memory."}; !slices.Equal(c.Missing, want) {
		t.Errorf("missing: %q, want %q", c.Missing, want)
	}
	if c, err := Compare([]string{"a", "b"}, []*Book{a, b}, regexp.MustCompile("/net/")); err != nil || !slices.Equal(c.Failed, []string{net}) || len(c.Regressions(0)) != 1 {
		t.Errorf("of net only: %v, %+v", err, c)
	}
	if c, err := Compare([]string{"b", "a"}, []*Book{b, a}, nil); err != nil || len(c.Regressions(0)) != 0 {
		t.Errorf("the other way round: %v, %+v", err, c)
	}
	if remark := c.Page().Sections[0].Parts[0].Remarks[0]; remark.Tone != page.Bad || remark.Text != net {
		t.Errorf("the page says first: %+v", remark)
	}
}

// TestCompareUndecided counts the figures that have too few rounds. The overview and the
// JSON count as many.
func TestCompareUndecided(t *testing.T) {
	for want, rates := range map[[2]int][]float64{{2, 2}: {100}, {0, 2}: {100, 101}} {
		b := bookOf(map[string][]float64{"net": rates})
		c, err := Compare([]string{"a", "b"}, []*Book{b, b}, regexp.MustCompile("tps|p99"))
		if err != nil {
			t.Fatal(err)
		}
		if few, all := c.Undecided(); [2]int{few, all} != want {
			t.Errorf("%v: %d of %d, want %v", rates, few, all, want)
		}
		overview := c.overview()
		table := overview.Parts[len(overview.Parts)-1].Table
		if line := table.Lines[1]; !slices.Equal(line[3:], []string{fmt.Sprint(want[1] - want[0]), fmt.Sprint(want[0])}) {
			t.Errorf("%v: the overview says %q of %q", rates, line, table.Lines[0])
		}
		var text bytes.Buffer
		if err := c.WriteJSON(&text); err != nil || strings.Count(text.String(), verdictFew) != want[0] || strings.Count(text.String(), verdictSame) != want[1]-want[0] {
			t.Errorf("%v: %v, the JSON says %s", rates, err, text.String())
		}
	}
}

func TestCompareWarns(t *testing.T) {
	a, b := bookOf(map[string][]float64{"net": {1}}), bookOf(map[string][]float64{"net": {1}})
	b.Machine.CPUs, b.Machine.Kernel, b.Version, b.Scale = 8, "7.0", "v2", "small"
	b.Machine.Go = "go2"
	b.Reports[0].Pinning = Pinning{Why: "no"}
	b.Reports[0].Scenario.Subjects[0] = Subject{Name: "net", Command: Words{"net", "--loops", "2"}, MaxConns: 5}
	b.Reports[0].Scenario.Workloads[0].Duration = time.Minute
	b.Reports[0].Scenario.Workloads[0].Caption = "Another caption is no other workload."
	b.Reports = append(b.Reports, &Report{Scenario: Scenario{Name: "more"}})
	c, err := Compare([]string{"a", "b"}, []*Book{a, b}, nil)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(c.Warnings, "\n")
	for _, want := range []string{"Another machine", "8 CPUs", "Another kernel", "version of Go", "version of Myriad: a has v1, b has v2",
		"Another scale: a has none, b has small", "pinning of test", "Another command of test/net: a has none, b has net --loops 2", "Another most connections of test/net: a has 0, b has 5", "test/echo-100 is not the same workload"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in %s", want, all)
		}
	}
	if len(c.Missing) != 1 || c.Missing[0] != "more: only in b." {
		t.Errorf("missing: %q", c.Missing)
	}
}

func TestCompareWrong(t *testing.T) {
	a := bookOf(map[string][]float64{"net": {1}})
	var wrong ScenarioError
	for want, try := range map[string]func() error{
		"1 reports with 1 names": func() error { _, err := Compare([]string{"a"}, []*Book{a}, nil); return err },
		"17 reports": func() error {
			_, err := Compare(make([]string, 17), make([]*Book, 17), nil)
			return err
		},
		`"nothing" matches no figure`: func() error {
			_, err := Compare([]string{"a", "b"}, []*Book{a, a}, regexp.MustCompile("nothing"))
			return err
		},
		"a and b have no figure in common": func() error {
			_, err := Compare([]string{"a", "b"}, []*Book{a, {Format: BookFormat}}, nil)
			return err
		},
	} {
		if err := try(); !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a ScenarioError with %q", err, want)
		}
	}
}

// TestComparisonPage writes it in each way, with three books of which one lacks a row.
func TestComparisonPage(t *testing.T) {
	a := bookOf(map[string][]float64{"net": {100, 101, 102, 103}, "epoll": {1, 2}})
	b := bookOf(map[string][]float64{"net": {90, 91, 92, 93}})
	b.Scale = "small"
	c, err := Compare([]string{"a.json", "b.json", "c.json"}, []*Book{a, b, a}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := c.Page()
	for name, write := range map[string]func(*bytes.Buffer) error{
		"text":     func(w *bytes.Buffer) error { return p.WriteText(w) },
		"markdown": func(w *bytes.Buffer) error { return p.WriteMarkdown(w) },
		"html":     func(w *bytes.Buffer) error { return p.WriteHTML(w) },
	} {
		var out bytes.Buffer
		if err := write(&out); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, want := range []string{"net, TPS", "worse, p=0.029 n=4+4", "Another scale", "epoll: not in b.json"} {
			if !strings.Contains(strings.ReplaceAll(html.UnescapeString(out.String()), `\~`, "~"), want) {
				t.Errorf("%s: no %q", name, want)
			}
		}
	}
	table := p.Sections[1].Parts[1].Table
	if table.Tone(1, 5) != page.Bad {
		t.Errorf("what is worse has tone %q in %q", table.Tone(1, 5), table.Lines[1])
	}
}
