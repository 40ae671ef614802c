package load

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/sample"
)

func renderHTML(t testing.TB, s *Stream, expected ...Expectation) string {
	t.Helper()
	var b strings.Builder
	testkit.RequireNoError(t, s.WriteHTML(&b, expected...))
	return b.String()
}

// Hostile texts in a stream appear as text.
func TestHTML(t *testing.T) {
	_, s := readRecordedStream(t)
	page := renderHTML(t, s)
	for _, want := range []string{
		"127.0.0.1:9000", "2 attempts to connect failed", "1,000/s", "Messages a second", "Errors a second", "Connections", "CPU", "Memory", "Percentiles",
		"intended", "The measured window is from 0:",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page doesn't say %q", want)
		}
	}
	const hostile = `</script><script>alert("x")</script><img src=x onerror=alert(1)>'"&`
	s.Plan.Host, s.Plan.Model, s.Plan.Mode = hostile, hostile, hostile
	s.Intervals[1].Errors = map[string]int64{hostile: 3}
	r := s.Result
	r.Target, r.Model, r.Mode, r.TLS = hostile, hostile, hostile, hostile
	r.ConnectErrors, r.Lost = map[string]int64{hostile: 1}, map[string]int64{hostile: 1}
	r.Limits = []Limit{{hostile, hostile, hostile}}
	r.Mismatched, r.FirstMismatch = 1, &Mismatch{Want: hostile, Got: hostile}
	page = renderHTML(t, s)
	for _, bad := range []string{"<img src=x", "<script>alert", "</script><script>alert"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %s", bad)
		}
	}
	if n := strings.Count(page, "&lt;/script&gt;"); n < 8 {
		t.Errorf("the hostile text is there %d times; expected it wherever the stream has it", n)
	}
}

// Incomplete streams still produce a page and a verdict.
func TestHTMLVerdict(t *testing.T) {
	_, whole := readRecordedStream(t)
	cut := *whole
	cut.Result = nil
	expect := func(text string) []Expectation {
		e := testkit.Must(ParseExpectation(text))(t)
		return []Expectation{e}
	}
	clean := Result{Connected: 1, Counts: Counts{Answered: 1}, Window: time.Second, CPUs: 1, Generator: Usage{Process: sample.Process{User: time.Second / 2}}}
	for name, test := range map[string]struct {
		stream   *Stream
		expected []Expectation
		says     string
	}{
		"cut off":             {&cut, nil, "The run was cut off after "},
		"interrupted":         {&Stream{Result: &Result{Connected: 1, Took: 7 * time.Second, Interrupted: true}}, nil, "The run was interrupted after 7s"},
		"a short interval":    {&Stream{Intervals: []Interval{{Counts: Counts{Sent: 5}}}}, nil, "unknown target"},
		"a clean run":         {&Stream{Result: &clean}, nil, "used 50 % of its CPUs and reached no known limit."},
		"met":                 {&Stream{Result: &clean}, expect("answered==1"), "The expectation is met."},
		"not met":             {&Stream{Result: &clean}, expect("answered==2"), "1 of 1 expectations were not met. answered==2: 1."},
		"met with faults":     {&Stream{Result: &Result{Connected: 1, Lost: map[string]int64{"x": 1}}}, expect("lost>0"), "The expectation is met."},
		"not all of it sent":  {&Stream{Result: &Result{Connected: 1, Counts: Counts{Sent: 5000, Intended: 8000}, Window: time.Second, NoReply: true}}, nil, "Fewer messages were sent than intended: 5,000/s of 8,000/s."},
		"a limit":             {&Stream{Result: &Result{Connected: 1, Limits: []Limit{{"ports", "no port was free", "add sources"}}}}, nil, "no port was free. Remedy: add sources."},
		"few answers":         {&Stream{Result: &Result{Latency: Latency{Count: 1, P50: 5, Max: 5}}}, nil, "Percentiles"},
		"too short a window":  {&Stream{Result: &Result{Connected: 1, Counts: Counts{Answered: 1}, Window: minUsageWindow - 1, CPUs: 1, Generator: Usage{Process: sample.Process{User: time.Second}}}}, nil, "was correct.<"},
		"a search's last try": {&Stream{Result: &Result{Connected: 1, Search: &Found{Rate: 5}}}, nil, "Nothing failed."},
	} {
		if page := renderHTML(t, test.stream, test.expected...); !strings.Contains(page, test.says) || regexp.MustCompile(`>[^<]*NaN`).MatchString(strings.Split(page, "<script")[0]) {
			t.Errorf("%s: the page doesn't say %q, or has a NaN", name, test.says)
		}
	}
}
