package lab

import (
	"bytes"
	"strings"
	"testing"
)

// TestTakes has a subject that does not serve every app.
func TestTakes(t *testing.T) {
	for _, name := range []string{"quick", "peers", "idle"} {
		s := builtIn(t, name).expanded(ideal)
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
		"epoll":  "epoll is at 1.50 of the best of the others (net)",
		"net":    "net is at 0.67 of the best of the others (epoll)",
		"broken": "",
		"absent": "",
		"":       "",
	} {
		r.Scenario.Auto = auto
		if got := r.choice(r.rows("echo-100")); got != want {
			t.Errorf("%q: got %q, want %q", auto, got, want)
		}
	}
	r.Scenario.Auto = "epoll"
	if alone := r.choice(r.rows("echo-100")[1:2]); alone != "" {
		t.Errorf("no others: got %q", alone)
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
	if !strings.Contains(text.String(), "Pinning: none: not asked for.") {
		t.Errorf("got:\n%s", text.String())
	}
}
