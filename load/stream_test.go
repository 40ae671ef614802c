package load

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestReadStream(t *testing.T) {
	events := stalling(t)
	s := readBack(t, events)
	last := events[len(events)-1]
	if !s.Complete() || !reflect.DeepEqual(s.Result, last.Result) {
		t.Errorf("the result is not what was written: %+v", s.Result)
	}
	if !reflect.DeepEqual(s.Plan, events[0].Plan) {
		t.Errorf("the plan is not what was written: %+v", s.Plan)
	}
	if len(s.Intervals) != 72 || s.Span() != 72*time.Second || !reflect.DeepEqual(s.Intervals[40], *events[43].Interval) {
		t.Errorf("%d intervals up to %v; want 72 up to 72s, as they were written", len(s.Intervals), s.Span())
	}
	want := []Mark{{Phase: Began}, {Phase: Connected, After: 4 * time.Second}, {Phase: Measuring, After: 9 * time.Second}}
	if !reflect.DeepEqual(s.Marks, want) {
		t.Errorf("marks %v, want %v", s.Marks, want)
	}
}

// A stream that is cut off, at any byte, has all events that are whole.
func TestCutOff(t *testing.T) {
	text := streamText(t, []Event{
		{Phase: Began, Plan: &Plan{Mode: "hold"}},
		{Phase: Progress, Interval: &Interval{To: time.Second, Stage: "hold"}, Snapshot: Snapshot{Open: 7}},
		{Phase: Done, Result: &Result{Target: "a:1"}},
	}).Bytes()
	first := bytes.IndexByte(text, '\n')
	for n := first; n < len(text)-2; n++ {
		s, err := ReadStream(bytes.NewReader(text[:n]))
		if err != nil {
			t.Fatalf("cut off after %d bytes: %v", n, err)
		}
		if s.Complete() || s.Plan == nil || len(s.Intervals) > 1 {
			t.Fatalf("cut off after %d bytes: complete %v, %d intervals", n, s.Complete(), len(s.Intervals))
		}
	}
	s, err := ReadStream(bytes.NewReader(text[:len(text)-5]))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := s.WriteText(&b); err != nil || b.String() != "cut off     after 1s, before there was a result\nuntil then  7 open, 0 answered\n" {
		t.Errorf("the text is %q, %v", b.String(), err)
	}
}

func TestWrongStreams(t *testing.T) {
	const began = `{"phase":"began"}` + "\n"
	progress := func(interval string) string { return `{"phase":"progress","interval":` + interval + "}\n" }
	for _, test := range []struct{ name, text, says string }{
		{"nothing", "", "an empty stream"},
		{"blank lines", "\n \n", "an empty stream"},
		{"no JSON", "target 127.0.0.1\n", "line 1: invalid character"},
		{"no JSON at its only line", "target", "line 1: invalid character"},
		{"a broken line in the middle", began + "{\"phase\":\"prog\n" + began, "line 2: "},
		{"another type", began + `{"phase":1}`, "line 2: json: cannot unmarshal"},
		{"other JSON", `{"rate":1}` + "\n", `line 1: phase ""; expected one of`},
		{"an unknown phase", `{"phase":"later"}`, `phase "later"`},
		{"two runs", began + began, "line 2: \"began\" in the middle"},
		{"another run", began + `{"phase":"done","result":{}}` + "\n" + began, `line 3: "began" after "done"`},
		{"nothing but progress without intervals", `{"phase":"progress"}`, "an empty stream"},
		{"no result", began + "\n" + `{"phase":"done"}`, "line 3: no result"},
		{"an interval backwards", progress(`{"from":5,"to":4}`), "from 5ns to 4ns"},
		{"intervals that overlap", progress(`{"from":0,"to":5}`) + progress(`{"from":4,"to":9}`), "line 2: an interval from 4ns to 9ns; expected it to follow on 5ns"},
		{"a run of years", progress(`{"from":0,"to":9223372036854775807}`), "expected at most 8760h"},
		{"a negative count", progress(`{"to":5,"sent":-1}`), "negative figure"},
		{"a negative cause", progress(`{"to":5,"errors":{"x":-1}}`), "negative figure"},
		{"a negative server", progress(`{"to":5,"server":{"cpu":-1}}`), "negative figure"},
		{"a broken histogram", `{"phase":"done","result":{"histogram":"AAAA"}}`, "line 1: histogram: "},
		{"a long line", began + strings.Repeat(" ", maxStreamLine) + began, "line 2: more than 4194304 bytes"},
		{"many marks", began + strings.Repeat(`{"phase":"connected"}`+"\n", maxMarks), "more than 64 events beside progress"},
	} {
		_, err := ReadStream(strings.NewReader(test.text))
		if err == nil || !strings.HasPrefix(err.Error(), "load: ") || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: got %v, want %q", test.name, err, test.says)
		}
	}
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, fmt.Errorf("broken") }

// TestStreamBound has more intervals than are kept.
func TestStreamBound(t *testing.T) {
	s := Stream{Intervals: make([]Interval, maxIntervals-1, maxIntervals)}
	for want := range []bool{false, true} {
		err := s.add(Event{Phase: Progress, Interval: &Interval{}})
		if (err != nil) != (want == 1) {
			t.Errorf("interval %d: %v", len(s.Intervals), err)
		}
	}
}

func FuzzReadStream(f *testing.F) {
	text, err := json.Marshal(Event{Phase: Done, Result: measuredResult(f)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"phase":"began","plan":{"targets":["<script>"],"rate":{"per_second":1e308}}}` + "\n" + `{"phase":"progress","interval":{"to":1000000000,"latency":{"count":1,"p50":5}}}` + "\n"))
	f.Add(text)
	f.Add([]byte(`{"phase":"progress","interval":{"from":0,"to":31536000000000000,"generator":{"resident":9223372036854775807}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := ReadStream(bytes.NewReader(text))
		if err != nil {
			return
		}
		// All that can be made of a stream can be made of any.
		for name, write := range map[string]func(io.Writer) error{"text": s.WriteText, "CSV": s.WriteCSV, "HTML": func(w io.Writer) error { return s.WriteHTML(w) }} {
			if err := write(io.Discard); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		MergeStreams(s, s)
		if err := WriteComparison(io.Discard, []string{"a", "b"}, []*Stream{s, s}); err != nil {
			t.Error(err)
		}
	})
}
