package lab

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// scaled is a scenario of workloads of every kind whose size a scale changes.
func scaled() Scenario {
	most := acting("a", "plain")
	most.Workloads = []string{"few", "most"}
	return Scenario{
		Name: "test", Rounds: 3, Baseline: "a",
		Subjects: []Subject{most, acting("b", "plain")},
		Workloads: []Workload{
			{Name: "few", Kind: Throughput, App: Echo, Connections: 10, Size: 64, Pipeline: 1, WarmUp: time.Second, Duration: 2 * time.Second},
			{Name: "many", Caption: "On {connections}.", Kind: Throughput, App: Echo, Connections: 100_000, Size: 64, Pipeline: 1, WarmUp: time.Second, Duration: 2 * time.Second},
			{Name: "most", Kind: Throughput, App: Echo, Connections: 1_000_000, Size: 64, Pipeline: 1, WarmUp: time.Second, Duration: 2 * time.Second},
			{Name: "still", Kind: Idle, App: Echo, Connections: 1000, Size: 64, Pipeline: 1, Hold: 4 * time.Second},
			{Name: "beats", Caption: "Each {interval}.", Kind: Heartbeats, App: Sink, Connections: 1000, Pipeline: 1, Interval: time.Minute, Duration: 90 * time.Second},
			{Name: "parked", Kind: Parking, Connections: 1_000_000},
		},
		Published: []Published{{Rows: []PublishedRow{{Name: "x", Workload: "most"}, {Name: "y", Workload: "few"}}}},
		Scales: map[string]Scale{
			"small": {Rounds: 1, Connections: 10_000, Duration: time.Second, WarmUp: 500 * time.Millisecond, Hold: 2 * time.Second, Without: []string{"b", "beats"}},
			"tiny":  {Rounds: 3},
		},
	}
}

// sizes are a scenario's, in short.
func sizes(s Scenario) (all []string) {
	for _, w := range s.Workloads {
		all = append(all, strings.Join([]string{w.Name, thousands(float64(w.Connections)), w.WarmUp.String(), w.Duration.String(), w.Hold.String(), w.Interval.String()}, " "))
	}
	return all
}

func TestScaleOwn(t *testing.T) {
	was := scaled()
	s, err := was.With(Options{Scale: "small"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"few 10 500ms 1s 0s 0s", "many 10,000 500ms 1s 0s 0s", "still 1,000 0s 0s 2s 0s", "parked 10,000 0s 0s 0s 0s"}
	if got := sizes(s); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	notes := []string{
		"Left out: b and beats (scale small).",
		"Rounds: 1 instead of 3 (scale small).",
		"many and most have 10,000 connections instead of 100,000 and 1,000,000 (scale small).",
		"parked has 10,000 goroutines instead of 1,000,000 (scale small).",
		"few, many and most have a duration of 1s instead of 2s (scale small).",
		"few, many and most have a warm-up of 500ms instead of 1s (scale small).",
		"still has a hold of 2s instead of 4s (scale small).",
		"The same as many then, and left out: most (scale small).",
	}
	if !slices.Equal(s.notes, notes) {
		t.Errorf("got notes\n%s\nwant\n%s", strings.Join(s.notes, "\n"), strings.Join(notes, "\n"))
	}
	if s.Rounds != 1 || len(s.Subjects) != 1 || s.Workloads[1].Caption != "On 10,000." {
		t.Errorf("got %d rounds, %d subjects, caption %q", s.Rounds, len(s.Subjects), s.Workloads[1].Caption)
	}
	if rows := s.Published[0].Rows; rows[0].Workload != "many" || rows[1].Workload != "few" {
		t.Errorf("published rows are of %q and %q, want what is run", rows[0].Workload, rows[1].Workload)
	}
	if got := s.Subjects[0].Workloads; !slices.Equal(got, []string{"few", "many"}) || was.Subjects[0].Workloads[1] != "most" {
		t.Errorf("the subject is run under %q, want what is run", got)
	}
	if got := was.Published[0].Rows[0].Workload; got != "most" || len(was.Workloads) != 6 || len(was.notes) > 0 || len(was.Subjects) != 2 {
		t.Errorf("the scenario itself has been changed: %+v", was)
	}
	report := newReport(s, &Book{}, 0)
	if !slices.Equal(report.Notes, notes) {
		t.Errorf("the report has notes %q", report.Notes)
	}
}

func TestScaleFactor(t *testing.T) {
	for factor, want := range map[string][]string{
		"0.5": {"few 5 500ms 1s 0s 0s", "many 50,000 500ms 1s 0s 0s", "most 500,000 500ms 1s 0s 0s", "still 500 0s 0s 2s 0s",
			"beats 500 0s 45s 0s 30s", "parked 500,000 0s 0s 0s 0s"},
		"3": {"few 30 3s 6s 0s 0s", "many 300,000 3s 6s 0s 0s", "most 3,000,000 3s 6s 0s 0s", "still 3,000 0s 0s 12s 0s",
			"beats 3,000 0s 4m30s 0s 3m0s", "parked 3,000,000 0s 0s 0s 0s"},
		"0.001": {"few 1 1ms 100ms 0s 0s", "many 100 1ms 100ms 0s 0s", "most 1,000 1ms 100ms 0s 0s", "still 1 0s 0s 1s 0s",
			"beats 1 0s 112.5ms 0s 100ms", "parked 1,000 0s 0s 0s 0s"},
		"1000": {"few 10,000 16m40s 33m20s 0s 0s", "many 100,000,000 16m40s 33m20s 0s 0s", "most 1,000,000,000 16m40s 33m20s 0s 0s", "still 1,000,000 0s 0s 1h6m40s 0s",
			"beats 1,000,000 0s 24h0m0s 0s 16h40m0s", "parked 67,108,864 0s 0s 0s 0s"},
	} {
		s, err := scaled().With(Options{Scale: factor})
		if err != nil {
			t.Errorf("%s: %v", factor, err)
		}
		if got := sizes(s); !slices.Equal(got, want) {
			t.Errorf("%s: got  %q\nwant %q", factor, got, want)
		}
		if s.Rounds != 3 || s.Workloads[4].beats() < 1 && factor == "0.5" {
			t.Errorf("%s: %d rounds, %d heartbeats, want 3 and at least one", factor, s.Rounds, s.Workloads[4].beats())
		}
	}
	s, err := scaled().With(Options{Scale: "0.5"})
	if err != nil || !strings.HasPrefix(s.notes[0], "few has 5 connections instead of 10 (scale 0.5).") || s.Workloads[4].Caption != "Each 30s." {
		t.Errorf("got notes %q, caption %q, %v", s.notes, s.Workloads[4].Caption, err)
	}
}

// TestScaleNothing changes nothing, and says nothing.
func TestScaleNothing(t *testing.T) {
	for _, scale := range []string{"", "full", "1", "tiny"} {
		s, err := scaled().With(Options{Scale: scale})
		if err != nil || len(s.notes) > 0 || !slices.Equal(sizes(s), sizes(scaled())) {
			t.Errorf("%q: got %q, notes %q, %v", scale, sizes(s), s.notes, err)
		}
	}
}

func TestScaleRefuses(t *testing.T) {
	for scale, want := range map[string]string{
		"large": `test has no scale "large"; expected one of small, tiny, full, or a factor such as 0.5`,
		"0":     "expected a factor from 0.001 to 1000", "-1": "expected a factor", "1001": "expected a factor", "NaN": "expected a factor", "Inf": "expected a factor",
	} {
		var wrong ScenarioError
		if _, err := scaled().With(Options{Scale: scale}); !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", scale, err, want)
		}
	}
}

// TestRoundsOfWorkload has one of them run more often than the rest, until all are asked
// for in as many rounds; of two that become the same the one with more rounds counts.
func TestRoundsOfWorkload(t *testing.T) {
	runs := func(o Options) map[string]int {
		was := scaled()
		was.Workloads[2].Rounds = 5
		s, err := was.With(o)
		if err != nil {
			t.Fatal(err)
		}
		steps, err := s.plan(nil)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]int{}
		for _, step := range steps {
			if step.subject.Name == "a" {
				all[step.workload.Name]++
			}
		}
		return all
	}
	for _, c := range []struct {
		options   Options
		few, most int
	}{
		{Options{}, 3, 5},
		{Options{Rounds: 2}, 2, 2},
		{Options{Scale: "small"}, 1, 0},
		{Options{Connections: 10}, 5, 0},
	} {
		if got := runs(c.options); got["few"] != c.few || got["most"] != c.most {
			t.Errorf("%+v: few %d times, most %d times; want %d and %d", c.options, got["few"], got["most"], c.few, c.most)
		}
	}
	s := scaled()
	s.Workloads[0].Rounds = maxRounds + 1
	if err := s.check(); err == nil || !strings.Contains(err.Error(), "workload few: 1001 rounds; expected 1 to 1000") {
		t.Errorf("too many rounds: %v", err)
	}
}

// TestOptionsNotes has the notes say what was asked for beside a scale.
func TestOptionsNotes(t *testing.T) {
	s, err := scaled().With(Options{Scale: "small", Connections: 500, Duration: 3 * time.Second, Rounds: 2})
	if err != nil {
		t.Fatal(err)
	}
	const why = " (scale small, at most 500 connections and duration 3s)."
	for _, note := range []string{
		"Rounds: 2 instead of 1 (asked for).",
		"many, most and still have 500 connections instead of 100,000, 1,000,000 and 1,000" + why,
		"few, many and most have a duration of 3s instead of 2s" + why,
	} {
		if !slices.Contains(s.notes, note) {
			t.Errorf("got notes\n%s\nwant among them\n%s", strings.Join(s.notes, "\n"), note)
		}
	}
	if _, err := scaled().With(Options{Connections: -1}); err == nil || !strings.Contains(err.Error(), "-1 connections at most") {
		t.Errorf("got %v", err)
	}
}

// TestOnlyNotes has no notes on workloads that Only leaves out.
func TestOnlyNotes(t *testing.T) {
	s, err := scaled().With(Options{Scale: "small", Only: regexp.MustCompile("^few/")})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"Left out: b and beats (scale small).",
		"Rounds: 1 instead of 3 (scale small).",
		"few has a duration of 1s instead of 2s (scale small).",
		"few has a warm-up of 500ms instead of 1s (scale small).",
	}
	if !slices.Equal(s.notes, want) {
		t.Errorf("got notes\n%s\nwant\n%s", strings.Join(s.notes, "\n"), strings.Join(want, "\n"))
	}
}
