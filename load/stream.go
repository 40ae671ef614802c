package load

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// The bounds of a stream.
const (
	// maxStreamLine is the length of the longest line that is read, in bytes.
	maxStreamLine = 4 << 20
	// maxIntervals is how many intervals it can have: eleven days of seconds.
	maxIntervals = 1_000_000
	// maxSpan is how long its run can have been.
	maxSpan = 365 * 24 * time.Hour
	// maxMarks bounds its other events; a run has at most nine.
	maxMarks = 64
	// foldAt is from how many intervals on a Recorder joins neighbours.
	foldAt = 4096
)

// Stream is what a run told of itself: its events, put together. It is plain data.
type Stream struct {
	// Plan is what the run was about to do, nil where the stream doesn't say.
	Plan *Plan
	// Marks are the moments of the run, but for Progress and Done.
	Marks []Mark
	// Intervals are what happened from Progress to Progress, in order.
	Intervals []Interval
	// Last is how far the run was in its last event.
	Last Snapshot
	// Result is nil if the stream ends before the run did.
	Result *Result

	histogram *hdrhistogram.Histogram // that of Result, nil where it has none
}

// Mark is a moment of a run.
type Mark struct {
	Phase Phase
	// After is the end of the interval before it, since the run's start: it
	// happened then or in the interval that follows.
	After    time.Duration
	Snapshot Snapshot
}

// Complete says whether the run came to its end, so that there is a Result. A
// stream that was cut off in the middle, by a crash or a full disk, still has
// everything up to there.
func (s *Stream) Complete() bool { return s.Result != nil }

// Recorder makes a Stream of a run in this process. Observe is for Config.Observe; the
// Stream is there when the run is over. From 4,096 intervals on neighbours are joined, so
// that a run of any length takes a few MiB. The zero Recorder is ready.
type Recorder struct {
	Stream Stream
	err    error
}

// Observe takes the next event.
func (r *Recorder) Observe(e Event) {
	if r.err == nil {
		r.err = r.Stream.add(e)
	}
	if len(r.Stream.Intervals) >= foldAt {
		r.Stream.Intervals = fold(r.Stream.Intervals, foldAt/2)
	}
}

// Err says what was wrong with the events: nothing, where they are all of one run.
func (r *Recorder) Err() error { return r.err }

// ReadStream reads the stream of one run: JSON Events, one a line of at most
// 4 MiB, with at most 1,000,000 intervals. Blank lines don't count, nor does a
// last line that breaks off in the middle. Errors name the line.
func ReadStream(r io.Reader) (*Stream, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxStreamLine)
	lines.Split(splitLines)
	s := new(Stream)
	number := 1
	for ; lines.Scan(); number++ {
		if err := s.addLine(lines.Bytes()); err != nil {
			return nil, fmt.Errorf("load: stream, line %d: %w", number, err)
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("load: stream, line %d: more than %d bytes; expected an event", number, maxStreamLine)
	case err != nil:
		return nil, fmt.Errorf("load: stream, line %d: %w", number, err)
	case !s.begun() && s.Result == nil:
		return nil, errors.New("load: an empty stream; expected the events of a run as JSON, one a line")
	}
	return s, nil
}

// splitLines keeps the newline at the end of a line, which a last line that is
// cut off doesn't have.
func splitLines(data []byte, end bool) (advance int, line []byte, err error) {
	n := bytes.IndexByte(data, '\n') + 1
	if n == 0 && end {
		n = len(data)
	}
	if n == 0 {
		return 0, nil, nil
	}
	return n, data[:n], nil
}

// addLine adds the event of a line. One without a newline can be cut off.
func (s *Stream) addLine(line []byte) error {
	if len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	var e Event
	if err := json.Unmarshal(line, &e); err != nil {
		if _, ok := errors.AsType[*json.SyntaxError](err); ok && !bytes.HasSuffix(line, []byte("\n")) && s.begun() {
			return nil
		}
		return fmt.Errorf("%w; expected an event as JSON", err)
	}
	return s.add(e)
}

// begun says whether there has been an event.
func (s *Stream) begun() bool { return len(s.Marks)+len(s.Intervals) > 0 }

func (s *Stream) add(e Event) (err error) {
	if s.Result != nil {
		return fmt.Errorf("%q after %q; expected the stream of one run", e.Phase, Done)
	}
	s.Last = e.Snapshot
	switch e.Phase {
	case Began:
		if s.begun() {
			return fmt.Errorf("%q in the middle; expected the stream of one run", e.Phase)
		}
		s.Plan = e.Plan
	case Connected, Measuring, Measured, Exchanged, Checking, Checked, Heard:
	case Tried:
		return nil // what a search tried is in its result
	case Progress:
		return s.addInterval(e.Interval)
	case Done:
		if e.Result == nil {
			return fmt.Errorf("no result; expected one with %q", Done)
		}
		if s.histogram, err = decodeHistogram(e.Result.Histogram); err == nil {
			s.Result = e.Result
		}
		return err
	default:
		return fmt.Errorf("phase %q; expected one of %q", e.Phase, []Phase{Began, Connected, Checking, Checked, Measuring, Measured, Exchanged, Heard, Tried, Progress, Done})
	}
	if len(s.Marks) >= maxMarks {
		return fmt.Errorf("more than %d events beside progress; expected the stream of one run", maxMarks)
	}
	s.Marks = append(s.Marks, Mark{e.Phase, s.Span(), e.Snapshot})
	return nil
}

// addInterval adds what happened up to a Progress.
func (s *Stream) addInterval(i *Interval) error {
	switch {
	case i == nil:
		return nil // as older versions wrote it
	case len(s.Intervals) >= maxIntervals:
		return fmt.Errorf("more than %d intervals", maxIntervals)
	case i.From < s.Span() || i.To < i.From:
		return fmt.Errorf("an interval from %v to %v; expected it to follow on %v", i.From, i.To, s.Span())
	case i.To > maxSpan:
		return fmt.Errorf("an interval up to %v; expected at most %v", i.To, maxSpan)
	case slices.Min(i.figures()) < 0:
		return errors.New("an interval with a negative figure; expected 0 or more")
	}
	s.Intervals = append(s.Intervals, *i)
	return nil
}

// figures are the figures of an interval that can't be negative.
func (i *Interval) figures() []int64 {
	all := []int64{int64(i.Generator.CPU), i.Generator.Resident}
	for k := range Counters {
		if n, ok := Counters[k].Of(i); ok {
			all = append(all, n)
		}
	}
	if i.Server != nil {
		all = append(all, int64(i.Server.CPU), i.Server.Resident)
	}
	for _, n := range i.Errors {
		all = append(all, n)
	}
	for _, l := range []*Latency{&i.Latency, &i.Connect} {
		all = append(all, l.Count)
		for _, of := range latencyPoints {
			all = append(all, int64(of(l)))
		}
	}
	return all
}

// Span is how long the run went on, up to the end of the last interval.
func (s *Stream) Span() time.Duration {
	if len(s.Intervals) == 0 {
		return 0
	}
	return s.Intervals[len(s.Intervals)-1].To
}

// decodeHistogram reads Result.Histogram; it is nil for none.
func decodeHistogram(text string) (*hdrhistogram.Histogram, error) {
	if text == "" {
		return nil, nil
	}
	h, err := hdrhistogram.Decode([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("histogram: %w; expected the compressed encoding V2 in base64", err)
	}
	return h, nil
}

// readLatency reads a distribution off a histogram.
func readLatency(h *hdrhistogram.Histogram) Latency {
	if h == nil || h.TotalCount() == 0 {
		return Latency{}
	}
	at := func(percent float64) time.Duration { return time.Duration(h.ValueAtPercentile(percent)) }
	return Latency{
		Count: h.TotalCount(), Min: time.Duration(h.Min()), Mean: time.Duration(h.Mean()),
		P50: at(50), P75: at(75), P90: at(90), P95: at(95), P99: at(99), P999: at(99.9), P9999: at(99.99),
		Max: time.Duration(h.Max()),
	}
}
