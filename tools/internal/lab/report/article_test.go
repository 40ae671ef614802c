package report

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
)

func articleSet(cpu float64) *result.Set {
	run := func(subject string, cpu float64) result.Run {
		return result.Run{
			Workload: "echo", Subject: subject, Round: 1, Connections: 30_000, Started: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC),
			Figures: map[string]float64{"cpu": cpu, "tps": 1000}, Origin: result.Origin{Commit: "abc", Scale: "small", Machine: "2 CPUs", LoadAverage: "0.5"},
		}
	}
	noisy := run("net", 8)
	noisy.AddCaveat("noise", "something else")
	return &result.Set{Reports: []*result.Report{{
		Scenario: scenario.Scenario{
			Name: "quick", Subjects: []scenario.Subject{{Name: "net", MaxConns: 20_000}, {Name: "epoll"}},
			Workloads: []scenario.Workload{{Name: "echo", Connections: 30_000}},
			References: []scenario.ReferenceTable{{
				Columns: []scenario.Column{{Figure: "tps"}},
				Rows:    []scenario.ReferenceRow{{Count: 1_000_000, Cells: []string{"42,495"}, Workload: "echo", Design: "net"}},
			}},
		},
		Runs: []result.Run{run("epoll", cpu), noisy},
	}}}
}

// The parts of a page get the figures of the runs that they select; all else stays, and nothing is added twice.
func TestUpdateArticle(t *testing.T) {
	const page = "Text.\n<!-- chart quick ^echo/ cpu A <title> -->\n<img>\n<!-- end -->\n<!-- lines quick ^echo/ cpu B -->\n<!-- end -->\n" +
		"<!-- table quick ^echo/ connections tps cpu -->\n|a|b|c|d|e|f|\n|---|---|---|---|---|---|\n<!-- end -->\nEnd.\n"
	want := strings.Replace(page, "|---|\n<", `|---|
|`+"`echo`"+`|published|1,000,000|42,495|-||
||`+"`net`"+`|20,000|1,000|8.00|noise 1/1|
||`+"`epoll`"+`|30,000|1,000|5.00||

Commit `+"`abc`"+`; 2026-01-02; scale small; 2 CPUs; load average before 0.5.
<`, 1)
	for _, from := range []string{page, want} {
		got, svg, err := UpdateArticle(from, articleSet(5), false)
		if err != nil || got != want {
			t.Errorf("got %v and\n%s\nwant\n%s", err, got, want)
		}
		for d := xml.NewDecoder(strings.NewReader(svg)); ; {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("chart: %v in %s", err, svg)
			}
		}
		if strings.Count(svg, "<rect") != 3 || !strings.Contains(svg, "A &lt;title&gt;") {
			t.Errorf("got the chart %s, want a background and two bars", svg)
		}
		if strings.Count(svg, "<circle") != 2 || !strings.Contains(svg, ">10,000</text>") || !strings.Contains(svg, ">100,000</text>") {
			t.Errorf("got the chart %s, want a point for each server, between powers of ten", svg)
		}
	}
	set := articleSet(5)
	rows := &set.Reports[0].Scenario.References[0].Rows
	*rows = append(*rows, (*rows)[0])
	(*rows)[1].Name = "another"
	if got, _, err := UpdateArticle(page, set, true); err != nil || !strings.Contains(got, "|原文: another|") {
		t.Errorf("two published rows of a design: got %v and\n%s\nwant their names in the labels", err, got)
	}
	for from, to := range map[string]string{"quick": "slow", "tps cpu -->": "tps gpu -->", "cpu B": "p99 B", "^echo": "(", "|---|---|---|---|---|---|\n": ""} {
		if _, _, err := UpdateArticle(strings.Replace(page, from, to, 1), articleSet(5), false); err == nil {
			t.Errorf("%q instead of %q: no error", to, from)
		}
	}
}

// Earlier runs stay unless they are repeated, with their workloads and subjects.
func TestAddMissingRuns(t *testing.T) {
	set, earlier := articleSet(5), articleSet(9)
	set.Reports[0].Runs = set.Reports[0].Runs[:1]
	set.Reports[0].Scenario.Subjects = set.Reports[0].Scenario.Subjects[1:]
	earlier.Reports = append(earlier.Reports, &result.Report{Scenario: scenario.Scenario{Name: "another"}})
	set.AddMissingRuns(earlier)
	runs := set.Reports[0].Runs
	if len(set.Reports) != 2 || len(runs) != 2 || runs[0].Figures["cpu"] != 5 || runs[1].Subject != "net" || set.Reports[0].Scenario.FindSubject("net") == nil {
		t.Errorf("got %+v", set.Reports[0])
	}
}
