package load

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/sample"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newGeneratorResult(t testing.TB, start time.Time, answered int64, window, took time.Duration) *Result {
	t.Helper()
	h := newHistogram()
	h.RecordValues(int64(took), answered)
	return &Result{
		Start: start, Took: 3 * time.Second,
		Target: "a:1", Mode: "open loop", Corrected: true, CPUs: 1, Connections: 5, Connected: 4, ConnectErrors: map[string]int64{"timed out": 1},
		Window: window, Counts: Counts{Sent: answered, Answered: answered, Intended: answered, Delivered: 5 * answered}, Latency: summarizeHistogram(h), Histogram: encodeHistogram(h),
		Service: &Latency{Count: answered, Mean: took, P99: took}, Schedule: &Rate{PerSecond: 100}, Generator: Usage{Process: sample.Process{User: time.Second}}, Bytes: Bytes{Sent: 64 * answered, Answered: 64 * answered},
		Verifications: []Verification{{Number: 1, InFlight: 4, Open: 10, Asked: 10, Checked: 5, Wrong: 2, Lost: 1, Unanswered: 2, Time: took}},
		PubSub:        &PubSub{Protocol: "redis", Topics: 5, Publishers: 1, Slow: 2}, Doubled: 1,
		Broadcast: &Broadcast{Open: 10, Heard: 8, Again: 3, Time: took, After: Latency{Count: 8}},
	}
}

func TestMerge(t *testing.T) {
	a := newGeneratorResult(t, noon, 3000, 3*time.Second, time.Millisecond)
	b := newGeneratorResult(t, noon.Add(400*time.Millisecond), 9000, 3100*time.Millisecond, 3*time.Millisecond)
	b.Target, b.Interrupted = "b:1", true
	b.Verifications = append(b.Verifications, Verification{Number: 2, Open: 1, Checked: 1})
	before := fmt.Sprintf("%+v %+v", *a, a.ConnectErrors)
	r := testkit.Must(Merge(a, b))(t)
	if after := fmt.Sprintf("%+v %+v", *a, a.ConnectErrors); after != before {
		t.Error("the first result has been changed")
	}
	if want := a.Rate() + b.Rate(); math.Abs(r.Rate()-want) > .01 {
		t.Errorf("a rate of %f, want the sum %f", r.Rate(), want)
	}
	l := r.Latency
	near := func(d, want time.Duration) bool { return d > want*998/1000 && d < want*1002/1000 }
	if l.Count != 12_000 || !near(l.P50, 3*time.Millisecond) || !near(l.Mean, 2500*time.Microsecond) || !near(l.Min, time.Millisecond) {
		t.Errorf("latency %+v; expected a quarter of 1ms, the rest 3ms", l)
	}
	if h, err := decodeHistogramOrNil(r.Histogram); err != nil || !near(time.Duration(h.ValueAtPercentile(24)), time.Millisecond) {
		t.Errorf("%v; 24 %% of the merged histogram are not 1ms", err)
	}
	if r.Service.Count != 12_000 || r.Service.P99 != 3*time.Millisecond || r.Service.Mean != 2500*time.Microsecond {
		t.Errorf("service %+v; expected the worse percentile and the mean of both", r.Service)
	}
	if r.Target != "a:1, b:1" || !r.Interrupted || r.Connected != 8 || r.ConnectErrors["timed out"] != 2 || r.CPUs != 2 || r.Generator.User != 2*time.Second || r.Bytes.Sent != 768_000 || r.Schedule.PerSecond != 200 {
		t.Errorf("figures don't add up: %+v", r)
	}
	if p := *r.PubSub; p != (PubSub{Protocol: "redis", Topics: 5, Publishers: 2, Slow: 4}) || r.Delivered != 60_000 || r.Doubled != 2 {
		t.Errorf("%+v, %d delivered, %d twice; expected the sums, on 5 topics", p, r.Delivered, r.Doubled)
	}
	want := Verification{Number: 1, InFlight: 8, Open: 20, Asked: 20, Checked: 10, Wrong: 4, Lost: 2, Unanswered: 4, Time: 3 * time.Millisecond}
	if len(r.Verifications) != 2 || r.Verifications[0] != want || r.Broadcast.Heard != 16 || r.Broadcast.Again != 6 || r.Broadcast.After.Count != 16 {
		t.Errorf("verifications %+v, broadcast %+v", r.Verifications, r.Broadcast)
	}
	// Without answers, the rates of sending add up.
	for _, of := range []*Result{a, b} {
		of.NoReply, of.Answered = true, 0
	}
	if r, err := Merge(a, b); err != nil || math.Abs(r.Rate()-1000-9000/3.1) > .01 {
		t.Errorf("%v, a rate of %f without answers", err, r.Rate())
	}
}

func TestMergeRefuses(t *testing.T) {
	first := newGeneratorResult(t, noon, 30, time.Second, time.Millisecond)
	coarse := hdrhistogram.New(1, int64(time.Hour), 3)
	coarse.RecordValue(int64(30 * time.Minute))
	for says, change := range map[string]func(*Result){
		`result 2: mode is "flood"; expected "open loop"`: func(r *Result) { r.Mode = "flood" },
		"corrected only in this":                          func(r *Result) { r.Corrected = false },
		"without a histogram":                             func(r *Result) { r.Histogram = "" },
		"result 2: histogram: ":                           func(r *Result) { r.Histogram = "AAAA" },
		"to overlap the first":                            func(r *Result) { r.Start = noon.Add(3 * time.Second) },
		"expected it to overlap the first, which":         func(r *Result) { r.Start = noon.Add(-3 * time.Second) },
		"result 2: histogram has 1 latencies above 1m0s":  func(r *Result) { r.Histogram = encodeHistogram(coarse) },
	} {
		r := newGeneratorResult(t, noon, 30, time.Second, time.Millisecond)
		change(r)
		if _, err := Merge(first, r); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
	if _, err := Merge(); err == nil {
		t.Error("no results are merged")
	}
}

func TestWriteComparison(t *testing.T) {
	a := &Stream{Result: newGeneratorResult(t, noon, 3000, 3*time.Second, time.Millisecond)}
	b := &Stream{Result: newGeneratorResult(t, noon, 9000, 3*time.Second, 3*time.Millisecond)}
	a.Result.Verifications, a.Result.Broadcast, b.Result.Verifications, b.Result.Broadcast = nil, nil, nil, nil
	a.Result.Doubled, b.Result.Doubled = 0, 0
	b.Result.ConnectErrors, b.Result.Generator.User, b.Result.Connected = nil, 0, 1000
	var out strings.Builder
	testkit.RequireNoError(t, WriteComparisonToFirst(&out, []string{"old", "new", "broken"}, []*Stream{a, b, {Intervals: []Interval{{To: 3 * time.Second}}}}))
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
	if err := WriteComparisonToFirst(&out, []string{"one"}, nil); err == nil {
		t.Error("a name without a stream is no error")
	}
}

func recordEqual(took time.Duration, n int) (l Latency, histogram string) {
	var d distribution
	d.record(took, n)
	return summarizeDistribution(&d), encodeHistogram(d.histogram)
}

// checkMergedLatency checks that distributions are exactly those of 990 messages of 1 ms and 10 of 1 s.
func checkMergedLatency(t *testing.T, what string, l Latency, histogram string) {
	t.Helper()
	if l.Count != 1000 || l.P95 > 1100*time.Microsecond || l.P999 < 999*time.Millisecond {
		t.Errorf("%s: %+v; want 99 %% of 1ms, the rest of 1s", what, l)
	}
	if h, err := decodeHistogramOrNil(histogram); err != nil || h.TotalCount() != 1000 {
		t.Errorf("%s: %v: the histogram is not that of both", what, err)
	}
}

// TestMergeTimes checks that the other distributions of results, and those of intervals, are merged exactly if all have
// histograms, for simultaneous generators and for successive intervals. Otherwise the worse of both is kept.
func TestMergeTimes(t *testing.T) {
	part := func(took time.Duration, n int) (*Result, *Interval) {
		l, histogram := recordEqual(took, n)
		r := newGeneratorResult(t, noon, int64(n), time.Second, took)
		r.Service, r.Histograms = &l, map[string]string{"service": histogram}
		return r, &Interval{Latency: l, Histograms: map[string]string{"latency": histogram}}
	}
	a, i := part(time.Millisecond, 990)
	b, k := part(time.Second, 10)
	r, err := Merge(a, b)
	testkit.RequireNoError(t, err)
	checkMergedLatency(t, "results", *r.Service, r.Histograms["service"])
	sum := MergeEvents(Event{Interval: i}, Event{Interval: k}).Interval
	checkMergedLatency(t, "intervals at the same time", sum.Latency, sum.Histograms["latency"])
	next := *i
	next.Join(*k)
	checkMergedLatency(t, "intervals one after the other", next.Latency, next.Histograms["latency"])
	k.Histograms = map[string]string{"latency": "nonsense"}
	if sum := MergeEvents(Event{Interval: i}, Event{Interval: k}).Interval; sum.Latency.P50 != k.Latency.P50 || sum.Latency.Count != 1000 || sum.Histograms != nil {
		t.Errorf("with a histogram that is none: %+v; want the worse of both", sum)
	}
	b.Histograms = nil
	if r, err = Merge(a, b); err != nil || r.Service.P50 != b.Service.P50 || r.Histograms != nil {
		t.Errorf("of one histogram: %v, %+v; want the worse of both", err, r.Service)
	}
	b.Histograms = map[string]string{"late": "nonsense"}
	if _, err = Merge(a, b); err == nil || !strings.Contains(err.Error(), "result 2: late: histogram") {
		t.Errorf("nonsense: %v", err)
	}
}

func TestMergeEvents(t *testing.T) {
	if MergeEvents() != nil {
		t.Error("no events make one")
	}
	event := func(n int64) Event {
		return Event{
			Phase: Progress, Snapshot: Snapshot{Open: n, Failed: 1, Sent: 3 * n, Answered: 2 * n},
			Plan:         &Plan{Connections: int(n), Loops: 1, Host: "h", Rate: &Rate{PerSecond: float64(n)}, Generator: &Usage{Process: sample.Process{RSS: n}}, Server: &Usage{Process: sample.Process{RSS: 7}}},
			Interval:     &Interval{From: time.Duration(n), To: time.Duration(10 * n), Open: n, Counts: Counts{Answered: 2 * n}, Errors: map[string]int64{"e": n}, Latency: Latency{Count: n, P99: time.Duration(n)}, Generator: Usage{Process: sample.Process{User: time.Duration(n)}}, Server: &Usage{Process: sample.Process{User: 5}}},
			Verification: &Verification{Open: n, Checked: n},
		}
	}
	a, b, c := event(1), event(2), event(4)
	e := MergeEvents(a, b, c)
	if e.Phase != Progress || e.Snapshot != (Snapshot{Open: 7, Failed: 3, Sent: 21, Answered: 14}) {
		t.Errorf("%+v", e)
	}
	if p := e.Plan; p.Connections != 7 || p.Loops != 3 || p.Host != "h; h; h" || p.Rate.PerSecond != 7 || p.Generator.RSS != 7 || p.Server.RSS != 7 {
		t.Errorf("plan %+v", p)
	}
	if i := e.Interval; i.From != 1 || i.To != 40 || i.Open != 7 || i.Answered != 14 || i.Errors["e"] != 7 || i.Latency.Count != 7 || i.Latency.P99 != 4 || i.Generator.CPU() != 7 || i.Server.CPU() != 5 {
		t.Errorf("interval %+v", i)
	}
	if v := e.Verification; v.Open != 7 || v.Checked != 7 {
		t.Errorf("verification %+v", v)
	}
	if a.Interval.Open != 1 || a.Interval.Errors["e"] != 1 || b.Plan.Connections != 2 || a.Verification.Open != 1 {
		t.Error("what is merged has changed")
	}
}

// TestHistogramSize checks that the largest histogram, with a value in each step, is far below the
// message limit of agents. Longer times count as the longest.
func TestHistogramSize(t *testing.T) {
	h := newHistogram()
	for at := int64(1); at <= int64(maxLatency); at += max(at/2048, 1) {
		_ = h.RecordValues(at, at*at%1_000_003+1)
	}
	if n := len(encodeHistogram(h)); n > 128<<10 {
		t.Errorf("%d bytes; want at most 128 KiB", n)
	}
	if _, late := summarizeLatencies([]time.Duration{time.Hour}); !isNear(float64(late.Max), float64(maxLatency), 0.001) {
		t.Errorf("an hour is counted as %v, want the limit, %v", late.Max, maxLatency)
	}
}

// TestLostAgent checks that a missing part is a fault that is named.
func TestLostAgent(t *testing.T) {
	r := newGeneratorResult(t, noon, 3000, 3*time.Second, time.Millisecond)
	before := r.countAllFailures()
	r.Agents = []Agent{
		{Name: "a", Connections: 5, Connected: 4, Rate: 1000, Offset: -3 * time.Millisecond, Uncertainty: time.Millisecond},
		{Name: "b", Connections: 6, Lost: "gone", Last: &Snapshot{Open: 6, Answered: 9}},
	}
	r.Connections = 11
	if err := r.Err(); err == nil || err.Error() != "load: lost agent b with 6 of 11 connections: gone" {
		t.Errorf("%v", err)
	}
	if n := r.countAllFailures() - before; n != 1 {
		t.Errorf("%d faults more, want 1", n)
	}
	var text strings.Builder
	testkit.RequireNoError(t, r.WriteText(&text))
	for _, want := range []string{
		"a: 4 of 5 connections, 1,000/s", "its clock is 3ms ± 1ms behind",
		"b: lost, its part is missing below: gone; of 6 connections, last known: 6 open, 9 answered",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("it doesn't say %q:\n%s", want, text.String())
		}
	}
}
