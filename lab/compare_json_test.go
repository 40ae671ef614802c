package lab

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// comparedBooks are three: the second is worse, lacks a subject and has one that never
// answered, and the third is the first again.
func comparedBooks(t *testing.T) *Comparison {
	t.Helper()
	a := bookOf(map[string][]float64{"net": {100, 101, 102, 103}, "epoll": {0, 0}, "uring": {300}})
	b := bookOf(map[string][]float64{"net": {90, 91, 92, 93}, "epoll": {5, 6}})
	b.Scale, b.Machine.Kernel, b.Command = "small", "6.19", "myriad bench test --scale small"
	b.Reports[0].Runs[0].Error = "it crashed"
	c, err := Compare([]string{"a.json", "b.json", "c.json"}, []*Book{a, b, a}, regexp.MustCompile("tps|p99"))
	if err != nil {
		t.Fatal(err)
	}
	jobs := ComparedFigure{Scenario: "jobs", Workload: "cpu-1x", Subject: "naive", Figure: p99, Values: [][]float64{{0.25, 0.5}, {never, never}, {}}}
	c.Figures = append(c.Figures, jobs)
	return c
}

// TestComparisonJSON holds the JSON against a file: programs of others read it.
func TestComparisonJSON(t *testing.T) {
	var got bytes.Buffer
	if err := comparedBooks(t).WriteJSON(&got); err != nil {
		t.Fatal(err)
	}
	golden(t, "comparison.golden.json", got.String())
}

// TestComparisonJSONValues reads it as a program would.
func TestComparisonJSONValues(t *testing.T) {
	var text bytes.Buffer
	if err := comparedBooks(t).WriteJSON(&text); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Format  string
		Reports []struct {
			Name, Command, Scale string
			Machine              Machine
			Date                 time.Time
		}
		Failed, Broken, Missing, Warnings []string
		Figures                           []struct {
			Subject, Figure, Unit, Better string
			Values                        []struct {
				Rounds    int
				Median    *float64
				PlusMinus *float64 `json:"plus_minus"`
				Change    *struct {
					Ratio   *float64
					P       float64
					Verdict string
				}
			}
		}
	}
	if err := json.Unmarshal(text.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Format != ComparisonFormat || len(got.Reports) != 3 || got.Reports[1].Command != "myriad bench test --scale small" || got.Reports[1].Machine.Kernel != "6.19" {
		t.Errorf("got %+v", got)
	}
	if len(got.Failed) != 1 || !slices.Equal(got.Failed, got.Broken) || len(got.Missing) == 0 || len(got.Warnings) == 0 {
		t.Errorf("got failed %q, broken %q, missing %q, warnings %q", got.Failed, got.Broken, got.Missing, got.Warnings)
	}
	verdicts := map[string]string{}
	for _, f := range got.Figures {
		for i, v := range f.Values[1:] {
			if v.Change != nil {
				verdicts[f.Subject+" "+f.Figure+" "+got.Reports[i+1].Name] = v.Change.Verdict
			}
		}
		first, second := f.Values[0], f.Values[1]
		switch f.Subject + " " + f.Figure {
		case "net tps":
			if first.Change != nil || *first.Median != 101.5 || *second.Median != 92 || second.Rounds != 3 || *second.Change.Ratio != 92/101.5 || *second.PlusMinus != 1.304*2 || f.Better != "higher" {
				t.Errorf("%+v", f)
			}
		case "epoll tps":
			if *first.Median != 0 || second.Change == nil || second.Change.Ratio != nil {
				t.Errorf("a ratio to 0: %+v", f)
			}
		case "naive p99":
			if second.Rounds != 2 || second.Median != nil || second.PlusMinus != nil || second.Change.Ratio != nil || f.Values[2].Rounds != 0 || f.Values[2].Change != nil || f.Unit != "seconds" || f.Better != "lower" {
				t.Errorf("the latency of no job: %+v", f)
			}
		}
	}
	want := map[string]string{
		"net tps b.json": "worse", "net p99 b.json": "not significant", "net tps c.json": "not significant", "net p99 c.json": "not significant",
		"epoll tps b.json": "not significant", "epoll p99 b.json": "not significant", "epoll tps c.json": "not significant", "epoll p99 c.json": "not significant",
		"uring tps c.json": "too few rounds", "uring p99 c.json": "too few rounds", "naive p99 b.json": "worse",
	}
	if !reflect.DeepEqual(verdicts, want) {
		t.Errorf("got %q\nwant %q", verdicts, want)
	}
}

// TestComparisonDocs has docs/scenarios.md name every key.
func TestComparisonDocs(t *testing.T) {
	text, err := os.ReadFile("../docs/scenarios.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range []any{comparisonJSON{}, comparedBookJSON{}, comparedFigureJSON{}, comparedValueJSON{}, comparedChangeJSON{}} {
		for i := range reflect.TypeOf(of).NumField() {
			key := reflect.TypeOf(of).Field(i).Tag.Get("json")
			if !strings.Contains(string(text), "`"+key+"`") {
				t.Errorf("%T: docs/scenarios.md does not name `%s`", of, key)
			}
		}
	}
	for _, verdict := range []string{verdictBetter, verdictWorse, verdictSame, verdictFew} {
		if !strings.Contains(string(text), "`"+verdict+"`") {
			t.Errorf("docs/scenarios.md does not name the verdict %q", verdict)
		}
	}
}
