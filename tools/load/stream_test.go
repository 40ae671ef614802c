package load

import (
	"bytes"
	"errors"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/sample"
)

func readRecordedStream(t testing.TB) (text []byte, s *Stream) {
	t.Helper()
	text = testkit.Must(os.ReadFile("testdata/stream.jsonl"))(t)
	return text, testkit.Must(ReadStream(bytes.NewReader(text)))(t)
}

// A stream that is cut off at any byte has all complete events.
func TestReadStream(t *testing.T) {
	text, all := readRecordedStream(t)
	if !all.Complete() || all.Plan.Connections != 100 || all.Last.Answered == 0 || len(all.Intervals) != 3 || all.Intervals[1].Latency.P99 != 99500 || all.Result.Connected != 98 {
		t.Errorf("%+v, %+v", all, all.Result)
	}
	for n := bytes.IndexByte(text, '\n'); n < len(text)-2; n++ {
		s, err := ReadStream(bytes.NewReader(text[:n]))
		if err != nil {
			t.Fatalf("cut off after %d bytes: %v", n, err)
		}
		whole := all.Intervals[:len(s.Intervals)]
		if s.Complete() || s.Plan == nil || len(whole) > 0 && !reflect.DeepEqual(s.Intervals, whole) {
			t.Fatalf("cut off after %d bytes: complete %v, %+v", n, s.Complete(), s.Intervals)
		}
	}
	s := testkit.Must(ReadStream(bytes.NewReader(text[:len(text)-5])))(t)
	var b strings.Builder
	if err := s.WriteText(&b); err != nil || !strings.HasPrefix(b.String(), "cut off     after ") || !strings.Contains(b.String(), "until then  97 open, ") {
		t.Errorf("the text is %q, %v", b.String(), err)
	}
}

func TestWrongStreams(t *testing.T) {
	const began = `{"phase":"began"}` + "\n"
	progress := func(interval string) string { return `{"phase":"progress","interval":` + interval + "}\n" }
	for _, test := range []struct{ name, text, says string }{
		{"nothing", "", "empty stream"},
		{"no JSON", "target 127.0.0.1\n", "line 1: invalid character"},
		{"no JSON at its only line", "target", "line 1: invalid character"},
		{"a broken line is not the first event", began + "{\"phase\":\"prog\n" + began, "line 2: "},
		{"other JSON", `{"rate":1}` + "\n", `line 1: phase ""; expected one of`},
		{"two runs", began + began, "line 2: \"began\" is not the first event"},
		{"another run", began + `{"phase":"done","result":{}}` + "\n" + began, `line 3: "began" after "done"`},
		{"no result", began + "\n" + `{"phase":"done"}`, `line 3: event "done" has no result`},
		{"an interval backwards", progress(`{"from":5,"to":4}`), "from 5ns to 4ns"},
		{"intervals that overlap", progress(`{"from":0,"to":5}`) + progress(`{"from":4,"to":9}`), "line 2: interval from 4ns to 9ns; expected it to start at 5ns or later"},
		{"a run of years", progress(`{"from":0,"to":9223372036854775807}`), "expected at most 8760h"},
		{"a negative count", progress(`{"to":5,"sent":-1}`), "negative figure"},
		{"a negative cause", progress(`{"to":5,"errors":{"x":-1}}`), "negative figure"},
		{"a negative server", progress(`{"to":5,"server":{"user":-1}}`), "negative figure"},
		{"a broken histogram", `{"phase":"done","result":{"histogram":"AAAA"}}`, "line 1: histogram: "},
		{"a long line", began + strings.Repeat(" ", maxStreamLine) + began, "line 2: longer than 4194304 bytes"},
	} {
		_, err := ReadStream(strings.NewReader(test.text))
		if err == nil || !strings.HasPrefix(err.Error(), "load: ") || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: got %v, want %q", test.name, err, test.says)
		}
	}
	s := Stream{Intervals: make([]Interval, maxIntervals-1, maxIntervals)}
	for want := range []bool{false, true} {
		err := s.validateAndAddEvent(Event{Phase: Progress, Interval: &Interval{}})
		if (err != nil) != (want == 1) {
			t.Errorf("interval %d: %v", len(s.Intervals), err)
		}
	}
}

func FuzzReadStream(f *testing.F) {
	text, _ := readRecordedStream(f)
	f.Add(text)
	f.Add([]byte(`{"phase":"began","plan":{"targets":["<script>"],"rate":{"per_second":1e308}}}` + "\n" + `{"phase":"progress","interval":{"to":1000000000,"latency":{"count":1,"p50":5}}}` + "\n"))
	f.Add([]byte(`{"phase":"progress","interval":{"from":0,"to":31536000000000000,"generator":{"rss":9223372036854775807}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := ReadStream(bytes.NewReader(text))
		if err != nil {
			return
		}
		// Every output can be produced from every stream.
		for name, write := range map[string]func(io.Writer) error{"text": s.WriteText, "CSV": s.WriteCSV, "HTML": func(w io.Writer) error { return s.WriteHTML(w) }} {
			if err := write(io.Discard); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if s.Complete() {
			Merge(s.Result, s.Result)
		}
		testkit.ExpectNoError(t, WriteComparisonToFirst(io.Discard, []string{"a", "b"}, []*Stream{s, s}))
	})
}

// A Recorder joins intervals beyond a limit; only details are lost.
func TestRecorder(t *testing.T) {
	const n = 2*maxRecordedIntervals + 17
	var r StreamBuilder
	for i := range n {
		from := time.Duration(i) * time.Second
		r.Observe(Event{Phase: Progress, Interval: &Interval{
			From: from, To: from + time.Second, Counts: Counts{Sent: 5}, Open: int64(i),
			Errors: map[string]int64{"cause " + strconv.Itoa(i%(maxErrorRows+7)): 1}, Latency: Latency{Count: 1, P99: time.Duration(i)},
			Generator: Usage{Process: sample.Process{User: 2, RSS: int64(i)}}, Server: &Usage{Process: sample.Process{System: 3}},
		}})
	}
	s := &r.Stream
	if r.Err() != nil || len(s.Intervals) >= maxRecordedIntervals {
		t.Fatalf("%v, %d intervals", r.Err(), len(s.Intervals))
	}
	var sent, errors, count int64
	var cpu, at time.Duration
	for _, i := range s.Intervals {
		if i.From != at {
			t.Errorf("an interval from %v after %v", i.From, at)
		}
		at = i.To
		sent, errors, count = sent+i.Sent, errors+i.countErrors(), count+i.Latency.Count
		cpu += i.Generator.CPU() + i.Server.CPU()
		if last := int64(i.To/time.Second) - 1; i.Open != last || int64(i.Latency.P99) != last || i.Generator.RSS != last {
			t.Errorf("to %v: %d open, p99 %v; want the last and the worst, %d", i.To, i.Open, i.Latency.P99, last)
		}
	}
	if sent != 5*n || errors != n || count != n || cpu != 5*n {
		t.Errorf("sent %d, errors %d, latencies %d, CPU %v", sent, errors, count, cpu)
	}
	if page := renderHTML(t, s); len(page) > 1<<20 || !strings.Contains(page, "And 7 more causes") {
		t.Errorf("a page of %d bytes doesn't say that it leaves causes out", len(page))
	}
}

func TestWriteCSV(t *testing.T) {
	_, s := readRecordedStream(t)
	want := testkit.Must(os.ReadFile("testdata/stream.csv"))(t)
	var got bytes.Buffer
	if err := s.WriteCSV(&got); err != nil || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%v, got\n%s\nwant\n%s", err, got.Bytes(), want)
	}
	s.Intervals = make([]Interval, 1000)
	if err := s.WriteCSV(fullDisk{}); err == nil {
		t.Error("a full disk is no error")
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("full") }
