package load

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// expecting parses expectations.
func expecting(t *testing.T, texts ...string) (all []Expectation) {
	t.Helper()
	for _, text := range texts {
		e, err := ParseExpectation(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

// The page has each expectation with what was measured, and calls no run clean
// that missed one.
func TestHTMLExpectations(t *testing.T) {
	const (
		clean  = "A clean run"
		met    = `<td class="good">met</td>`
		notMet = `<td class="bad">not met</td>`
	)
	run := &Stream{Result: &Result{Connected: 2, Answered: 6, Window: time.Second, Latency: Latency{Count: 6, P99: 3 * time.Millisecond, Max: 3 * time.Millisecond}}}
	faulty := &Stream{Result: &Result{
		Connected: 2, Answered: 6, Window: time.Second, Lost: map[string]int64{"x": 2}, Limits: []Limit{{"ports", "no port was free", "add sources"}},
	}}
	for _, test := range []struct {
		name        string
		stream      *Stream
		expected    []string
		says, never []string
	}{
		{"none", run, nil, []string{clean}, []string{"<h2>Expectations</h2>", "met</td>"}},
		{"all met", run, []string{"p99<5ms", "errors==0"},
			[]string{"</header>\n<div class=\"verdict good\"><b>All 2 expectations met.</b>p99&lt;5ms: 3ms; errors==0: 0.</div>", "<h2>Expectations</h2>", "<tr><td class=\"long\">p99&lt;5ms</td><td>3ms</td>" + met, "<td class=\"long\">errors==0</td><td>0</td>" + met},
			[]string{notMet, "not met."}},
		{"met, by a run that has faults", faulty, []string{"errors<9", "lost<9"},
			[]string{"</header>\n<div class=\"verdict good\"><b>All 2 expectations met.", "<div class=\"verdict fair\"><b>The run has faults.", "met a limit: ports."}, []string{"verdict bad"}},
		{"one met", run, []string{"errors==0"}, []string{"The expectation is met."}, []string{"verdict bad"}},
		{"one missed", run, []string{"p99<1us", "errors==0"},
			[]string{`<div class="verdict bad"><b>1 of 2 expectations not met.</b>p99&lt;1us: 3ms.</div>`, "p99&lt;1us</td><td>3ms</td>" + notMet, "errors==0</td><td>0</td>" + met},
			[]string{clean, "verdict good"}},
		{"two missed", run, []string{"p99<1us", "connected>2", "rate>1"}, []string{"2 of 3 expectations not met.</b>p99&lt;1us: 3ms; connected&gt;2: 2.<"}, []string{clean, "verdict good"}},
		{"not measured", run, []string{"service.p99<1s"}, []string{"1 of 1 expectations not met.</b>service.p99&lt;1s: not measured.", "<td>not measured</td>" + notMet}, []string{clean}},
		{"cut off", readBack(t, stalling(t)[:30]), []string{"errors==0"}, []string{"The run was cut off", "errors==0: no result.", "<td>no result</td>" + notMet}, []string{met}},
	} {
		var b strings.Builder
		if err := test.stream.WriteHTML(&b, expecting(t, test.expected...)...); err != nil {
			t.Fatal(err)
		}
		page := b.String()
		wellFormed(t, page)
		for _, part := range test.says {
			if !strings.Contains(page, part) {
				t.Errorf("%s: the page doesn't say %q", test.name, part)
			}
		}
		for _, part := range test.never {
			if strings.Contains(page, part) {
				t.Errorf("%s: the page says %q", test.name, part)
			}
		}
	}
}

// What a run missed stands beside its other faults, before what is only fair.
func TestVerdictsOfMissed(t *testing.T) {
	s := &Stream{Result: &Result{
		Connected: 1, Window: time.Second, Answered: 5000, Intended: 8000,
		Limits: []Limit{{"ports", "no port was free", "add sources."}},
	}}
	var classes []string
	all := s.verdicts(s.checkAll(expecting(t, "errors==1", "connected==1")))
	for _, v := range all {
		classes = append(classes, v.Class)
	}
	if !slices.Equal(classes, []string{"bad", "bad", "fair"}) || all[0].Text != "1 of 2 expectations not met." {
		t.Errorf("got %+v; want what was missed, the limit, the rate", all)
	}
}
