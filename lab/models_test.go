package lab

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestModels checks that the scenario is sound and as short as it promises, that
// it leaves out what can't run, and that nothing in it is pinned.
func TestModels(t *testing.T) {
	all := []string{"goroutine", "epoll-1", "epoll-2", "prefork-2", "epoll-workers", "uring-1", "uring-workers", "auto"}
	for available, want := range map[string][]string{
		"goroutine epoll uring": all,
		"goroutine epoll":       {"goroutine", "epoll-1", "epoll-2", "prefork-2", "epoll-workers", "auto"},
		"goroutine":             {"goroutine", "auto"},
	} {
		s := Models(strings.Fields(available))
		if err := s.check(); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, subject := range s.Subjects {
			names = append(names, subject.Name)
		}
		if !slices.Equal(names, want) {
			t.Errorf("%s: got %q, want %q", available, names, want)
		}
		if !slices.Contains(names, s.Baseline) || !slices.Contains(names, s.Auto) {
			t.Errorf("%s: baseline %q or %q is not a subject", available, s.Baseline, s.Auto)
		}
		if took := s.Takes(); took < time.Minute || took > 15*time.Minute {
			t.Errorf("%s: it takes %v, want at most 15 minutes", available, took)
		}
	}
	for _, w := range Models(nil).Workloads {
		if !w.Unpinned {
			t.Errorf("%s is pinned", w.Name)
		}
	}
}

// TestTakes has a subject that does not serve every app.
func TestTakes(t *testing.T) {
	for _, s := range []Scenario{Quick(), Peers([]string{"epoll"}), Models([]string{"epoll"})} {
		steps, err := s.plan(nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := s.Takes(), estimate(steps); got != want {
			t.Errorf("%s: got %v, want what is estimated of its steps, %v", s.Name, got, want)
		}
	}
}

// TestChoice compares one subject with the best of the others.
func TestChoice(t *testing.T) {
	r := goldenReport()
	for auto, want := range map[string]string{
		"epoll":  "  epoll is at 1.50 of the best of the others (net)\n",
		"net":    "  net is at 0.67 of the best of the others (epoll)\n",
		"broken": "",
		"absent": "",
		"":       "",
	} {
		r.Scenario.Auto = auto
		var got bytes.Buffer
		r.choice(&got, r.rows("echo-100"))
		if got.String() != want {
			t.Errorf("%q: got %q, want %q", auto, got.String(), want)
		}
	}
	r.Scenario.Auto = "epoll"
	var alone bytes.Buffer
	if r.choice(&alone, r.rows("echo-100")[1:2]); alone.Len() > 0 {
		t.Errorf("no others: got %q", alone.String())
	}
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if strings.Count(text.String(), "best of the others") != 1 {
		t.Errorf("want it once, under the table of throughput:\n%s", text.String())
	}
}

// TestHeaderUnpinned has a report of which nothing is pinned.
func TestHeaderUnpinned(t *testing.T) {
	r := goldenReport()
	for i := range r.Scenario.Workloads {
		r.Scenario.Workloads[i].Unpinned = true
	}
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "pinning  none: not asked for\n") {
		t.Errorf("got:\n%s", text.String())
	}
}
