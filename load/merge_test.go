package load

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// generatorStream is the stream of one that answered each message within took.
func generatorStream(t testing.TB, start time.Time, answered int64, window, took time.Duration) *Stream {
	t.Helper()
	h := newHistogram()
	h.RecordValues(int64(took), answered)
	text, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		t.Fatal(err)
	}
	events := []Event{{Phase: Began, Plan: &Plan{Start: start, Targets: []string{"a:1"}, Mode: "open loop", Connections: 5, Sources: 1, Loops: 1, Host: "m", Rate: &Rate{PerSecond: 100}}}}
	for n := range 3 {
		from := time.Duration(n) * time.Second
		i := &Interval{
			From: from, To: from + time.Second, Stage: "window", Open: 5, Sent: 7, Answered: answered / 3, Errors: map[string]int64{"timed out": 1},
			Latency: Latency{Count: answered / 3, Min: took, Mean: took, P50: took, P99: took, Max: took}, Generator: Usage{CPU: time.Second / 2, Resident: 100},
		}
		events = append(events, Event{Phase: Progress, Interval: i, Snapshot: Snapshot{5, 0, 7, 7}})
	}
	return readBack(t, append(events, Event{Phase: Done, Snapshot: Snapshot{0, 1, 7, 7}, Result: &Result{
		Target: "a:1", Mode: "open loop", Corrected: true, CPUs: 1, Connections: 5, Connected: 4, ConnectErrors: map[string]int64{"timed out": 1},
		Window: window, Sent: answered, Answered: answered, Intended: answered, Latency: readLatency(h), Histogram: string(text),
		Service: &Latency{Count: answered, Mean: took, P99: took}, Schedule: &Rate{PerSecond: 100}, UserCPU: time.Second, Bytes: Bytes{Sent: 64 * answered, Answered: 64 * answered},
	}}))
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestMergeStreams(t *testing.T) {
	a := generatorStream(t, noon, 3000, 3*time.Second, time.Millisecond)
	b := generatorStream(t, noon.Add(400*time.Millisecond), 9000, 3100*time.Millisecond, 3*time.Millisecond)
	before := fmt.Sprintf("%+v %+v", *a.Result, a.Intervals)
	s, err := MergeStreams(a, b)
	if err != nil {
		t.Fatal(err)
	}
	if after := fmt.Sprintf("%+v %+v", *a.Result, a.Intervals); after != before {
		t.Error("the first stream has been changed")
	}
	r := s.Result
	if want := a.Result.Rate() + b.Result.Rate(); math.Abs(r.Rate()-want) > .01 {
		t.Errorf("a rate of %f, want the sum %f", r.Rate(), want)
	}
	l := r.Latency
	near := func(d, want time.Duration) bool { return d > want*998/1000 && d < want*1002/1000 }
	if l.Count != 12_000 || !near(l.P50, 3*time.Millisecond) || !near(l.Mean, 2500*time.Microsecond) || !near(l.Min, time.Millisecond) {
		t.Errorf("latency %+v; expected a quarter of 1ms, the rest 3ms", l)
	}
	if p := time.Duration(s.histogram.ValueAtPercentile(24)); !near(p, time.Millisecond) {
		t.Errorf("24 %% of the merged histogram are %v, want 1ms", p)
	}
	if r.Service.Count != 12_000 || r.Service.P99 != 3*time.Millisecond || r.Service.Mean != 2500*time.Microsecond {
		t.Errorf("service %+v; expected the worse percentile and the mean of both", r.Service)
	}
	if r.Connected != 8 || r.ConnectErrors["timed out"] != 2 || r.CPUs != 2 || r.UserCPU != 2*time.Second || r.Bytes.Sent != 768_000 || r.Schedule.PerSecond != 200 {
		t.Errorf("figures don't add up: %+v", r)
	}
	if s.Plan.Connections != 10 || s.Plan.Rate.PerSecond != 200 || s.Plan.Host != "m" || !s.Plan.Start.Equal(noon) || s.Last.Sent != 14 {
		t.Errorf("plan %+v, last %+v", s.Plan, s.Last)
	}
	if len(s.Intervals) != 3 {
		t.Fatalf("%d intervals, want those of the first", len(s.Intervals))
	}
	if i := s.Intervals[1]; i.Open != 10 || i.Answered != 4000 || i.Errors["timed out"] != 2 || i.Latency.P99 != 3*time.Millisecond || i.Generator != (Usage{CPU: time.Second, Resident: 200}) {
		t.Errorf("the second interval is %+v", i)
	}
	if one, err := MergeStreams(a); err != nil || one.Result.Answered != 3000 || !reflect.DeepEqual(one.Intervals, a.Intervals) {
		t.Errorf("one stream is not itself: %v", err)
	}
}

// TestMergeMute adds up the rates at which was sent where no answers were awaited.
func TestMergeMute(t *testing.T) {
	of := func(sent int64, window time.Duration) *Stream {
		s := generatorStream(t, noon, 3, time.Second, time.Millisecond)
		s.Result.NoReply, s.Result.Sent, s.Result.Answered, s.Result.Window = true, sent, 0, window
		return s
	}
	s, err := MergeStreams(of(3000, 3*time.Second), of(9000, 3100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	if want := 1000 + 9000/3.1; math.Abs(s.Result.Rate()-want) > .01 {
		t.Errorf("a rate of %f, want the sum %f", s.Result.Rate(), want)
	}
}

func TestMergeRefuses(t *testing.T) {
	first := generatorStream(t, noon, 30, time.Second, time.Millisecond)
	change := func(f func(*Stream)) *Stream {
		s := generatorStream(t, noon, 30, time.Second, time.Millisecond)
		f(s)
		return s
	}
	coarse := hdrhistogram.New(1, int64(time.Hour), 3)
	coarse.RecordValue(int64(30 * time.Minute))
	for _, test := range []struct {
		says    string
		streams []*Stream
	}{
		{"merge of no streams", nil},
		{"stream 2: it is cut off", []*Stream{first, change(func(s *Stream) { s.Result = nil })}},
		{"stream 1: it is cut off", []*Stream{change(func(s *Stream) { s.Result = nil }), first}},
		{`stream 2: mode "flood"; expected "open loop"`, []*Stream{first, change(func(s *Stream) { s.Result.Mode = "flood" })}},
		{"only one of", []*Stream{first, change(func(s *Stream) { s.Result.Corrected = false })}},
		{"no histogram", []*Stream{first, change(func(s *Stream) { s.histogram = nil })}},
		{"at the time of the first", []*Stream{first, change(func(s *Stream) { s.Plan.Start = noon.Add(3 * time.Second) })}},
		{"at the time of the first", []*Stream{first, change(func(s *Stream) { s.Plan.Start = noon.Add(-3 * time.Second) })}},
		{"stream 2: histogram: 1 latencies of more than 1m0s", []*Stream{first, change(func(s *Stream) { s.histogram = coarse })}},
	} {
		if _, err := MergeStreams(test.streams...); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("got %v, want %q", err, test.says)
		}
	}
}

// Folding loses nothing but detail.
func TestFold(t *testing.T) {
	var all []Interval
	for n := range 1000 {
		from := time.Duration(n) * time.Second
		all = append(all, Interval{
			From: from, To: from + time.Second, Sent: 3, Open: int64(n), Errors: map[string]int64{"x": 1}, Latency: Latency{Count: 1, P99: time.Duration(n)},
			Generator: Usage{CPU: 2, Resident: int64(n)}, Server: &Usage{CPU: 3},
		})
	}
	folded := fold(all, 30)
	if len(folded) > 30 || len(folded) < 29 {
		t.Fatalf("%d intervals, want 30", len(folded))
	}
	var sent, errors, at, count int64
	var cpu time.Duration
	for _, i := range folded {
		if int64(i.From) != at {
			t.Errorf("an interval from %v after %v", i.From, time.Duration(at))
		}
		at = int64(i.To)
		sent, errors, count = sent+i.Sent, errors+i.errors(), count+i.Latency.Count
		cpu += i.Generator.CPU + i.Server.CPU
		if last := int64(i.To/time.Second) - 1; i.Open != last || int64(i.Latency.P99) != last || i.Generator.Resident != last {
			t.Errorf("to %v: %d open, p99 %v; want the last and the worst, %d", i.To, i.Open, i.Latency.P99, last)
		}
	}
	if sent != 3000 || errors != 1000 || count != 1000 || cpu != 5000 {
		t.Errorf("sent %d, errors %d, latencies %d, CPU %v", sent, errors, count, cpu)
	}
	if all[0].Errors["x"] != 1 || all[0].Sent != 3 || all[0].Server.CPU != 3 {
		t.Error("what was folded has been changed")
	}
	if same := fold(all, 1000); len(same) != 1000 {
		t.Errorf("%d intervals of 1000 that may stay", len(same))
	}
}

func TestWriteComparison(t *testing.T) {
	a := generatorStream(t, noon, 3000, 3*time.Second, time.Millisecond)
	b := generatorStream(t, noon, 9000, 3*time.Second, 3*time.Millisecond)
	b.Result.ConnectErrors, b.Result.UserCPU, b.Result.Connected = nil, 0, 1000
	var out strings.Builder
	if err := WriteComparison(&out, []string{"old", "new", "broken"}, []*Stream{a, b, {Intervals: a.Intervals}}); err != nil {
		t.Fatal(err)
	}
	const want = `                 old        new           broken
target           a:1        a:1           cut off after 3s
mode             open loop  open loop     -
connected        4          1,000  250×   -
rate, 1/s        1,000      3,000  3.00×  -
mean             1ms        3ms  3.00×    -
50%              1ms        3ms  3.00×    -
90%              1ms        3ms  3.00×    -
99%              1ms        3ms  3.00×    -
99.9%            1ms        3ms  3.00×    -
max              1ms        3ms  3.00×    -
errors           1          0  0.00×      -
generator's CPU  33%        -             -
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	if err := WriteComparison(&out, []string{"one"}, nil); err == nil {
		t.Error("a name without a stream is no error")
	}
}
