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

const (
	// maxStreamLine is the maximum length of a line in bytes.
	maxStreamLine = 4 << 20
	// maxIntervals limits the number of intervals to eleven days of one-second intervals.
	maxIntervals = 1_000_000
	maxSpan      = 365 * 24 * time.Hour
	// maxRecordedIntervals is the number of intervals at which a StreamBuilder joins neighboring intervals.
	maxRecordedIntervals = 4096
)

// Stream contains the data from the events of one run.
type Stream struct {
	// Plan describes the planned run. It is nil if no event contained a Plan.
	Plan      *Plan
	Intervals []Interval
	Last      Snapshot
	// Result is the outcome of the run. It is nil if the stream does not contain the end of the run.
	Result *Result

	hasEvents bool
}

// Complete reports whether the stream contains the Result of a finished run. If the load generator crashed or the disk
// became full, the stream contains only the events until then, and Complete returns false.
func (s *Stream) Complete() bool { return s.Result != nil }

// StreamBuilder records the Stream of a run in this process. To use a StreamBuilder, set Config.Observe to its method
// Observe. When the Stream has 4,096 intervals, the StreamBuilder joins neighboring intervals, so that at most 2,048
// are left. For this reason, even a long run needs only a few MiB. The zero StreamBuilder is ready for use.
type StreamBuilder struct {
	Stream Stream
	err    error
}

func (r *StreamBuilder) Observe(e Event) {
	if r.err == nil {
		r.err = r.Stream.validateAndAddEvent(e)
	}
	if len(r.Stream.Intervals) >= maxRecordedIntervals {
		r.Stream.Intervals = joinIntervalsIntoTimeParts(r.Stream.Intervals, maxRecordedIntervals/2)
	}
}

// Err returns nil if all observed events are valid and belong to one run. Otherwise, it returns the first error.
func (r *StreamBuilder) Err() error { return r.err }

// ReadStream reads the stream of one run. Each line of r must contain one Event as JSON. A line may have at most 4 MiB,
// and a stream at most 1,000,000 intervals. ReadStream ignores blank lines and an incomplete last line.
func ReadStream(r io.Reader) (*Stream, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxStreamLine)
	lines.Split(splitLinesKeepingNewline)
	s := new(Stream)
	number := 1
	for ; lines.Scan(); number++ {
		if err := s.addEventOfLineUnlessCutOff(lines.Bytes()); err != nil {
			return nil, fmt.Errorf("load: stream, line %d: %w", number, err)
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("load: stream, line %d: longer than %d bytes; expected an event as JSON", number, maxStreamLine)
	case err != nil:
		return nil, fmt.Errorf("load: stream, line %d: %w", number, err)
	case !s.hasEvents:
		return nil, errors.New("load: empty stream; expected the events of a run as JSON, one per line")
	}
	return s, nil
}

// splitLinesKeepingNewline is a bufio.SplitFunc that returns lines with their newlines.
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

// addEventOfLineUnlessCutOff adds the event in a line. It ignores a blank line and an incomplete last line.
func (s *Stream) addEventOfLineUnlessCutOff(line []byte) error {
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

var allPhases = []Phase{Began, Connected, Checking, Checked, Measuring, Measured, Exchanged, Heard, Tried, Part, Published, Progress, Done}

func (s *Stream) validateAndAddEvent(e Event) error {
	switch {
	case !slices.Contains(allPhases, e.Phase):
		return fmt.Errorf("phase %q; expected one of %q", e.Phase, allPhases)
	case s.Result != nil:
		return fmt.Errorf("%q after %q; expected the stream of one run", e.Phase, Done)
	case e.Phase == Began && s.hasEvents:
		return fmt.Errorf("%q is not the first event; expected the stream of one run", e.Phase)
	case e.Phase == Done && e.Result == nil:
		return fmt.Errorf("event %q has no result; expected one", Done)
	}
	s.hasEvents, s.Last, s.Plan = true, e.Snapshot, cmp.Or(e.Plan, s.Plan)
	if e.Phase == Done {
		if _, err := decodeHistogramOrNil(e.Result.Histogram); err != nil {
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
		return fmt.Errorf("more than %d intervals; expected a shorter run or a longer --interval", maxIntervals)
	case i.From < s.Span() || i.To < i.From:
		return fmt.Errorf("interval from %v to %v; expected it to start at %v or later", i.From, i.To, s.Span())
	case i.To > maxSpan:
		return fmt.Errorf("interval ends at %v; expected at most %v", i.To, maxSpan)
	case slices.Min(i.figuresThatMustNotBeNegative()) < 0:
		return fmt.Errorf("interval from %v has the negative figure %d; expected 0 or more", i.From, slices.Min(i.figuresThatMustNotBeNegative()))
	}
	s.Intervals = append(s.Intervals, *i)
	return nil
}

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

// joinIntervalsIntoTimeParts divides the run's time into maxParts equal parts, and joins the intervals that begin in
// the same part. If there are at most maxParts intervals, it returns them unchanged.
func joinIntervalsIntoTimeParts(intervals []Interval, maxParts int) []Interval {
	if len(intervals) <= maxParts {
		return intervals
	}
	span := intervals[len(intervals)-1].To
	var folded []Interval
	last := -1
	for _, i := range intervals {
		part := min(int(float64(i.From)/float64(max(span, 1))*float64(maxParts)), maxParts-1)
		if part != last {
			folded = append(folded, i)
			last = part
			continue
		}
		folded[len(folded)-1].Join(i)
	}
	return folded
}

// Join adds the next interval to i. Counts are added up. Gauges, such as memory, get the values of the later interval.
// If both intervals have Histograms, the joined percentiles are exact. Otherwise, Join keeps the worse value of each
// percentile.
func (i *Interval) Join(next Interval) {
	was := *i
	mergeFieldsByTag(i, &next, true)
	if was.Histograms != nil || next.Histograms != nil {
		_ = mergeCompleteHistograms(i, &i.Histograms, &was, &next) // an unreadable histogram is dropped
	}
}

// Phase is the name of an event of a run.
type Phase string

const (
	// Began means that the run begins. Event.Plan is set.
	Began Phase = "began"
	// Connected means that every connection attempt has succeeded or failed.
	Connected Phase = "connected"
	// Measuring means that the window has begun, after the warm-up.
	Measuring Phase = "measuring"
	// Measured means that the window has ended.
	Measured Phase = "measured"
	// Exchanged means that every connection has exchanged its messages. It occurs only with Config.Messages.
	Exchanged Phase = "exchanged"
	// Checking means that a verification of held connections begins.
	Checking Phase = "checking"
	// Checked means that a verification is over. Event.Verification is set.
	Checked Phase = "checked"
	// Heard means that all open held connections have received the broadcast. Event.Broadcast is set. Heard occurs at
	// most once, after the connect phase.
	Heard Phase = "heard"
	// Progress means that an interval has ended, usually after Config.ProgressEvery. Event.Interval is set.
	Progress Phase = "progress"
	// Tried means that a search has tried a rate. Event.Step is set. With Config.Begin, Event.Result is also set.
	Tried Phase = "tried"
	// Part, with Config.Enough, means that a tenth of Config.Duration has passed in the window. Event.Received is set.
	Part Phase = "part"
	// Published, with Config.Published, means that the publishers have finished. Event.Published is set.
	Published Phase = "published"
	// Done means that all connections are closed. Event.Result is set.
	Done Phase = "done"
)

// Event is one event of a run. Each line of a stream contains one Event as JSON.
type Event struct {
	Phase        Phase         `json:"phase"`
	Snapshot     Snapshot      `json:"snapshot" merge:"sum"`
	Plan         *Plan         `json:"plan,omitempty" merge:"sum"`
	Interval     *Interval     `json:"interval,omitempty" merge:"sum"`
	Step         *Step         `json:"step,omitempty"`
	Verification *Verification `json:"verification,omitempty" merge:"sum"`
	Broadcast    *Broadcast    `json:"broadcast,omitempty" merge:"sum"`
	// Received is the number of bytes received per second since the last event Part or the beginning of the window.
	Received float64 `json:"received,omitempty" merge:"sum"`
	// Published is the number of messages of each publisher.
	Published []int64 `json:"published,omitempty"`
	Result    *Result `json:"result,omitempty"`
}

// Plan describes what a run is going to do. The first event of a run contains a Plan.
type Plan struct {
	Start   time.Time `json:"start"`
	Targets []string  `json:"targets"`
	// Mode is "closed loop", "open loop", "flood", "unprompted" or "hold".
	Mode string `json:"mode"`
	// Connections is the number of connections to open, Sources the number of source addresses.
	Connections int  `json:"connections" merge:"sum"`
	Sources     int  `json:"sources" merge:"sum"`
	Pipeline    int  `json:"pipeline"`
	NoReply     bool `json:"no_reply,omitempty"`
	// Rate is the plan of an open loop, nil for other modes.
	Rate     *Rate         `json:"rate,omitempty" merge:"sum"`
	Duration time.Duration `json:"duration,omitempty"`
	Messages int64         `json:"messages,omitempty"`
	Check    int           `json:"check,omitempty" merge:"sum"`
	Seed     uint64        `json:"seed"`
	Model    string        `json:"model"`
	Loops    int           `json:"loops" merge:"sum"`
	Host     string        `json:"host" merge:"sum"`
	// Generator and Server are the resources that the generator and the server used before the first connection.
	// They are nil without Config.Observe. Server is also nil if the server cannot be inspected.
	Generator *Usage `json:"generator,omitempty" merge:"sum"`
	Server    *Usage `json:"server,omitempty" merge:"shared"`
}

type Snapshot struct {
	Open   int64 `json:"open" merge:"sum"`
	Failed int64 `json:"failed" merge:"sum"`
	// Sent and Answered count messages since the start of the run.
	Sent     int64 `json:"sent" merge:"sum"`
	Answered int64 `json:"answered" merge:"sum"`
}
