package load

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Limits of a stream.
const (
	// maxStreamLine is the maximum length of a line in bytes.
	maxStreamLine = 4 << 20
	// maxIntervals limits the number of intervals. It is eleven days of one-second intervals.
	maxIntervals = 1_000_000
	// maxSpan limits the duration of the run.
	maxSpan = 365 * 24 * time.Hour
	// maxRecordedIntervals is the number of intervals at which a Recorder joins neighbours.
	maxRecordedIntervals = 4096
)

// Stream contains the events of a run in evaluated form. It is plain data.
type Stream struct {
	// Plan describes the planned run. It is nil if the stream does not contain the plan.
	Plan *Plan
	// Intervals are the intervals of Progress events, in order.
	Intervals []Interval
	// Last is the snapshot of the last event.
	Last Snapshot
	// Result is nil if the stream ends before the run did.
	Result *Result

	hasEvents bool
}

// Complete reports whether the stream contains a Result, because the run finished. A stream that a crash or a
// full disk cut off keeps all earlier events.
func (s *Stream) Complete() bool { return s.Result != nil }

// Recorder records the Stream of a run in this process. Use its method Observe as Config.Observe. At 4,096
// intervals a Recorder joins neighbours, so a run of any length needs only a few MiB. The zero Recorder is
// ready for use.
type Recorder struct {
	Stream Stream
	err    error
}

// Observe records the next event.
func (r *Recorder) Observe(e Event) {
	if r.err == nil {
		r.err = r.Stream.validateAndAddEvent(e)
	}
	if len(r.Stream.Intervals) >= maxRecordedIntervals {
		r.Stream.Intervals = joinNeighbouringIntervals(r.Stream.Intervals, maxRecordedIntervals/2)
	}
}

// Err returns nil if all events belong to one run. Otherwise it returns the first error.
func (r *Recorder) Err() error { return r.err }

// ReadStream reads the stream of one run: JSON Events, one per line. A line has at most 4 MiB, and a stream at
// most 1,000,000 intervals. ReadStream ignores blank lines and an incomplete last line. Errors contain the line
// number.
func ReadStream(r io.Reader) (*Stream, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxStreamLine)
	lines.Split(splitLinesKeepingNewline)
	s := new(Stream)
	number := 1
	for ; lines.Scan(); number++ {
		if err := s.parseAndAddEvent(lines.Bytes()); err != nil {
			return nil, fmt.Errorf("load: stream, line %d: %w", number, err)
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("load: stream, line %d: more than %d bytes; expected an event", number, maxStreamLine)
	case err != nil:
		return nil, fmt.Errorf("load: stream, line %d: %w", number, err)
	case !s.hasEvents:
		return nil, errors.New("load: empty stream; expected the events of a run as JSON, one per line")
	}
	return s, nil
}

// splitLinesKeepingNewline is a bufio.SplitFunc for lines. Only an incomplete last line lacks the final newline.
func splitLinesKeepingNewline(data []byte, atEOF bool) (advance int, line []byte, err error) {
	n := bytes.IndexByte(data, '\n') + 1
	if n == 0 && atEOF {
		n = len(data)
	}
	if n == 0 {
		return 0, nil, nil
	}
	return n, data[:n], nil
}

// parseAndAddEvent adds the event of a line. It ignores an incomplete last line: one without a newline that is not
// valid JSON.
func (s *Stream) parseAndAddEvent(line []byte) error {
	if len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	var e Event
	if err := json.Unmarshal(line, &e); err != nil {
		if _, ok := errors.AsType[*json.SyntaxError](err); ok && !bytes.HasSuffix(line, []byte("\n")) && s.hasEvents {
			return nil
		}
		return fmt.Errorf("%w; expected an event as JSON", err)
	}
	return s.validateAndAddEvent(e)
}

// allPhases lists the valid phases.
var allPhases = []Phase{Began, Connected, Checking, Checked, Measuring, Measured, Exchanged, Heard, Tried, Part, Published, Progress, Done}

func (s *Stream) validateAndAddEvent(e Event) error {
	switch {
	case !slices.Contains(allPhases, e.Phase):
		return fmt.Errorf("phase %q; expected one of %q", e.Phase, allPhases)
	case s.Result != nil:
		return fmt.Errorf("%q after %q; expected the stream of one run", e.Phase, Done)
	case e.Phase == Began && s.hasEvents:
		return fmt.Errorf("%q in the middle; expected the stream of one run", e.Phase)
	case e.Phase == Done && e.Result == nil:
		return fmt.Errorf("no result; expected one with %q", Done)
	}
	s.hasEvents, s.Last, s.Plan = true, e.Snapshot, cmp.Or(e.Plan, s.Plan)
	if e.Phase == Done {
		if _, err := decodeHistogram(e.Result.Histogram); err != nil {
			return err
		}
		s.Result = e.Result
	}
	return s.validateAndAddInterval(e.Interval)
}

func (s *Stream) validateAndAddInterval(i *Interval) error {
	switch {
	case i == nil:
		return nil
	case len(s.Intervals) >= maxIntervals:
		return fmt.Errorf("more than %d intervals", maxIntervals)
	case i.From < s.Span() || i.To < i.From:
		return fmt.Errorf("an interval from %v to %v; expected it to follow on %v", i.From, i.To, s.Span())
	case i.To > maxSpan:
		return fmt.Errorf("an interval up to %v; expected at most %v", i.To, maxSpan)
	case slices.Min(i.figuresThatMustNotBeNegative()) < 0:
		return errors.New("an interval with a negative figure; expected 0 or more")
	}
	s.Intervals = append(s.Intervals, *i)
	return nil
}

// figuresThatMustNotBeNegative returns the figures of an interval that must not be negative.
func (i *Interval) figuresThatMustNotBeNegative() []int64 {
	all := []int64{int64(i.Generator.User), int64(i.Generator.System), i.Generator.RSS}
	for _, c := range Counters {
		if n, ok := c.Of(i); ok {
			all = append(all, n)
		}
	}
	if i.Server != nil {
		all = append(all, int64(i.Server.User), int64(i.Server.System), i.Server.RSS)
	}
	for _, n := range i.Errors {
		all = append(all, n)
	}
	for _, l := range []*Latency{&i.Latency, &i.Connect} {
		all = append(all, l.Count)
		for _, p := range LatencyPoints {
			all = append(all, int64(p.Of(l)))
		}
	}
	return all
}

// Span returns the duration of the run up to the end of the last interval.
func (s *Stream) Span() time.Duration {
	if len(s.Intervals) == 0 {
		return 0
	}
	return s.Intervals[len(s.Intervals)-1].To
}

// joinNeighbouringIntervals joins neighbours until at most maxCount intervals are left, which divide the time equally.
// Counts are added up. Of percentiles, the worst is kept.
func joinNeighbouringIntervals(intervals []Interval, maxCount int) []Interval {
	if len(intervals) <= maxCount {
		return intervals
	}
	span := intervals[len(intervals)-1].To
	var folded []Interval
	last := -1
	for _, i := range intervals {
		part := min(int(float64(i.From)/float64(max(span, 1))*float64(maxCount)), maxCount-1)
		if part != last {
			folded = append(folded, i)
			last = part
			continue
		}
		folded[len(folded)-1].Join(i)
	}
	return folded
}

// Join adds the next interval. Gauges keep the later value. Percentiles are exact if both intervals have
// Histograms; otherwise the worse is kept.
func (i *Interval) Join(next Interval) {
	was := *i
	mergeFieldsByTag(i, &next, true)
	if was.Histograms != nil || next.Histograms != nil {
		_ = mergeCompleteHistograms(i, &i.Histograms, &was, &next) // an unreadable histogram is dropped
	}
}

// Phase is the name of an event in a run.
type Phase string

const (
	// Began: the run begins; Plan is set.
	Began Phase = "began"
	// Connected: every connection has been established or has failed.
	Connected Phase = "connected"
	// Measuring: the window has begun, after the warm-up.
	Measuring Phase = "measuring"
	// Measured: the window has ended.
	Measured Phase = "measured"
	// Exchanged: every connection has exchanged its messages (only with Config.Messages).
	Exchanged Phase = "exchanged"
	// Checking: a verification of held connections begins.
	Checking Phase = "checking"
	// Checked: a verification is over; Verification is set.
	Checked Phase = "checked"
	// Heard: all open held connections have received the broadcast; Broadcast is set. The event is sent once,
	// after all connections are established.
	Heard Phase = "heard"
	// Progress: Config.ProgressEvery has passed; Interval is set.
	Progress Phase = "progress"
	// Tried: a search has tried a rate. Step is set, and Result with Config.Begin.
	Tried Phase = "tried"
	// Part: a tenth of Duration of the window has passed (only with Config.Enough); Received is
	// set.
	Part Phase = "part"
	// Published: the publishers have finished (only with Config.Published); Event.Published is set.
	Published Phase = "published"
	// Done: all connections are closed; Result is set.
	Done Phase = "done"
)

// Event is one line of a run's stream of events. Reports can be derived from the stream alone.
type Event struct {
	Phase        Phase         `json:"phase"`
	Snapshot     Snapshot      `json:"snapshot" merge:"sum"`
	Plan         *Plan         `json:"plan,omitempty" merge:"sum"`
	Interval     *Interval     `json:"interval,omitempty" merge:"sum"`
	Step         *Step         `json:"step,omitempty"`
	Verification *Verification `json:"verification,omitempty" merge:"sum"`
	Broadcast    *Broadcast    `json:"broadcast,omitempty" merge:"sum"`
	// Received is the number of bytes received a second.
	Received float64 `json:"received,omitempty" merge:"sum"`
	// Published is the number of messages that each publisher has published.
	Published []int64 `json:"published,omitempty"`
	Result    *Result `json:"result,omitempty"`
}

// Plan describes a run before its start.
type Plan struct {
	Start time.Time `json:"start"`
	// Targets are the addresses to load.
	Targets []string `json:"targets"`
	// Mode is "closed loop", "open loop", "flood", "unprompted" or "hold".
	Mode string `json:"mode"`
	// Connections is the number of connections to open. Sources is the number of source addresses.
	Connections int `json:"connections" merge:"sum"`
	Sources     int `json:"sources" merge:"sum"`
	Pipeline    int `json:"pipeline"`
	// NoReply reports that no answers are expected.
	NoReply bool `json:"no_reply,omitempty"`
	// Rate is the plan of an open loop.
	Rate *Rate `json:"rate,omitempty" merge:"sum"`
	// Duration, Messages and Check are as in Config.
	Duration time.Duration `json:"duration,omitempty"`
	Messages int64         `json:"messages,omitempty"`
	Check    int           `json:"check,omitempty" merge:"sum"`
	Seed     uint64        `json:"seed"`
	// Model and Loops describe the generator's engine.
	Model string `json:"model"`
	Loops int    `json:"loops" merge:"sum"`
	// Host describes the generator's machine.
	Host string `json:"host" merge:"sum"`
	// Generator and Server are the resources that the two processes used before the first connection, as in
	// Interval. They are nil without Config.Observe.
	Generator *Usage `json:"generator,omitempty" merge:"sum"`
	Server    *Usage `json:"server,omitempty" merge:"shared"`
}

// Snapshot is the state of a run at one moment.
type Snapshot struct {
	Open int64 `json:"open" merge:"sum"`
	// Failed counts failed connection attempts.
	Failed int64 `json:"failed" merge:"sum"`
	// Sent and Answered count messages since the start of the run.
	Sent     int64 `json:"sent" merge:"sum"`
	Answered int64 `json:"answered" merge:"sum"`
}
