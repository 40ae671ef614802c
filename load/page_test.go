package load

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// pageOf is the report of a stream.
func pageOf(t testing.TB, s *Stream, expected ...Expectation) string {
	t.Helper()
	var b strings.Builder
	if err := s.WriteHTML(&b, expected...); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestHTML(t *testing.T) {
	page := pageOf(t, readBack(t, stalling(t)))
	for _, want := range []string{
		"10.0.0.7:9000", "The run has faults: connections lost: 240 × connection reset by peer.", "12 attempts to connect failed",
		"50,000/s, Poisson, for 1m", "loader-1, 8 × Xeon, Linux 6.8", "Messages a second", "Errors a second", "Connections", "CPU", "Memory", "Percentiles",
		"intended", "service time", "The account adds up", "120 from 0:40 to 0:41", "The measured window is from 0:",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page doesn't say %q", want)
		}
	}
}

// Hostile texts of a stream are texts of the page.
func TestHTMLEscapes(t *testing.T) {
	const hostile = `</script><script>alert("x")</script><img src=x onerror=alert(1)>'"&`
	events := stalling(t)
	events[0].Plan.Host, events[0].Plan.Model, events[0].Plan.Mode = hostile, hostile, hostile
	events[10].Interval.Errors = map[string]int64{hostile: 3}
	r := events[len(events)-1].Result
	r.Target, r.Model, r.Mode, r.TLS = hostile, hostile, hostile, hostile
	r.ConnectErrors, r.Lost = map[string]int64{hostile: 1}, map[string]int64{hostile: 1}
	r.Limits = []Limit{{hostile, hostile, hostile}}
	r.Mismatched, r.FirstMismatch = 1, &Mismatch{Want: hostile, Got: hostile}
	page := pageOf(t, readBack(t, events))
	for _, bad := range []string{"<img src=x", "<script>alert", "</script><script>alert"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %s", bad)
		}
	}
	if n := strings.Count(page, "&lt;/script&gt;"); n < 8 {
		t.Errorf("the hostile text is there %d times; expected it wherever the stream has it", n)
	}
}

// Streams that lack this or that still make a page, and its verdict is of what there is.
func TestHTMLVerdict(t *testing.T) {
	events := stalling(t)
	expect := func(text string) []Expectation {
		e, err := ParseExpectation(text)
		if err != nil {
			t.Fatal(err)
		}
		return []Expectation{e}
	}
	clean := Result{Connected: 1, Answered: 1, Window: time.Second, CPUs: 1, UserCPU: time.Second / 2}
	for name, test := range map[string]struct {
		stream   *Stream
		expected []Expectation
		says     string
	}{
		"cut off":             {readBack(t, events[:30]), nil, "The run was cut off after 27s."},
		"no plan":             {&Stream{Result: &Result{Target: "a:1", Connected: 1}}, nil, "Nothing failed."},
		"a short interval":    {&Stream{Intervals: []Interval{{Sent: 5}}}, nil, "unknown target"},
		"one interval":        {readBack(t, events[40:41]), nil, "Latency"},
		"a clean run":         {&Stream{Result: &clean}, nil, "used 50 % of its CPUs, and met no limit that it knows of."},
		"met":                 {&Stream{Result: &clean}, expect("answered==1"), "The expectation is met."},
		"not met":             {&Stream{Result: &clean}, expect("answered==2"), "1 of 1 expectations not met. answered==2: 1."},
		"met with faults":     {readBack(t, events), expect("lost>0"), "The expectation is met."},
		"not all of it sent":  {&Stream{Result: &Result{Connected: 1, Sent: 5000, Window: time.Second, Intended: 8000, NoReply: true}}, nil, "Less was sent than intended: 5,000/s of 8,000/s."},
		"no answers":          {&Stream{Result: &Result{NoReply: true, Bytes: Bytes{Sent: 9}}}, nil, "No answers were awaited."},
		"a limit":             {&Stream{Result: &Result{Connected: 1, Limits: []Limit{{"ports", "no port was free", "add sources"}}}}, nil, "no port was free. To move it: add sources."},
		"bytes are missing":   {&Stream{Result: &Result{Bytes: Bytes{Sent: 9, Answered: 4}}}, nil, "5 are missing"},
		"few answers":         {&Stream{Result: &Result{Latency: Latency{Count: 1, P50: 5, Max: 5}}}, nil, "Percentiles"},
		"too short a window":  {&Stream{Result: &Result{Connected: 1, Answered: 1, Window: shortest - 1, CPUs: 1, UserCPU: time.Second}}, nil, "was right.<"},
		"a search's last try": {&Stream{Result: &Result{Connected: 1, Search: &Found{Rate: 5}}}, nil, "Nothing failed."},
	} {
		if page := pageOf(t, test.stream, test.expected...); !strings.Contains(page, test.says) || regexp.MustCompile(`>[^<]*NaN`).MatchString(strings.Split(page, "<script")[0]) {
			t.Errorf("%s: the page doesn't say %q, or has a NaN", name, test.says)
		}
	}
}

// TestHTMLBound has more intervals and causes than are shown, and more than are kept.
func TestHTMLBound(t *testing.T) {
	var r Recorder
	for n := range 2*foldAt + 17 {
		from := time.Duration(n) * time.Second
		r.Observe(Event{Phase: Progress, Interval: &Interval{
			From: from, To: from + time.Second, Sent: 5, Open: int64(n),
			Errors: map[string]int64{"cause " + strconv.Itoa(n%(mostCauses+7)): 1}, Latency: Latency{Count: 1, Max: time.Millisecond},
		}})
	}
	s, sent := &r.Stream, int64(0)
	for _, i := range s.Intervals {
		sent += i.Sent
	}
	if last := s.Intervals[len(s.Intervals)-1]; r.Err() != nil || len(s.Intervals) >= foldAt || sent != 5*(2*foldAt+17) || last.Open != 2*foldAt+16 {
		t.Errorf("%v, %d intervals with %d messages, the last %+v", r.Err(), len(s.Intervals), sent, last)
	}
	page := pageOf(t, s)
	if len(page) > 1<<20 {
		t.Errorf("a page of %d bytes; expected less than 1 MiB", len(page))
	}
	if !strings.Contains(page, "And 7 more causes") || !strings.Contains(page, "the worst of their percentiles") {
		t.Error("the page doesn't say that it leaves something out")
	}
}
