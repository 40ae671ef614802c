package load

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/myriad-go/myriad/internal/format"
)

// WriteText writes the result as text, one figure per line.
func (r *Result) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	line("target", "%s", r.Target)
	if r.Interrupted && r.Mode != modeNameHold {
		line("interrupted", "after %v; the figures cover the time until then", format.RoundToThreeDigits(r.Took))
	}
	r.writeAgentLines(line)
	r.writeConnectionLines(line)
	if r.Window > 0 {
		r.writeTrafficOrHeldLines(line)
	}
	r.writeVerificationsAndBroadcast(line)
	if r.Window > 0 {
		r.writeBytesGeneratorAndLimitLines(line)
	}
	r.writeFaultLines(line)
	return t.Flush()
}

type lineWriter func(name, format string, args ...any)

func (r *Result) writeAgentLines(line lineWriter) {
	name := "agents"
	for i := range r.Agents {
		a := &r.Agents[i]
		text := fmt.Sprintf("%s: %s of %s connections", a.Name, format.Count(a.Connected), format.Count(a.Connections))
		switch {
		case a.Lost != "":
			text = fmt.Sprintf("%s: lost, its part is missing below: %s; of %s connections, last known: %v", a.Name, a.Lost, format.Count(a.Connections), a.Last)
		case a.Rate > 0:
			text += fmt.Sprintf(", %s/s, 50%% %v, 99%% %v, %.0f%% of its CPU", format.Count(int64(math.Round(a.Rate))), format.RoundToThreeDigits(a.Latency.P50), format.RoundToThreeDigits(a.Latency.P99), 100*a.CPUUtilization)
		}
		ahead, way := a.Offset, "ahead"
		if ahead < 0 {
			ahead, way = -ahead, "behind"
		}
		line(name, "%s; its clock is %v ± %v %s", text, format.RoundToThreeDigits(ahead), format.RoundToThreeDigits(a.Uncertainty), way)
		if a.Behind > 0 {
			line("", "  began %v after the first", format.RoundToThreeDigits(a.Behind))
		}
		name = ""
	}
}

func (l *Latency) formatShort() string {
	return fmt.Sprintf("50%% %v, 99%% %v, max %v", format.RoundToThreeDigits(l.P50), format.RoundToThreeDigits(l.P99), format.RoundToThreeDigits(l.Max))
}

func (r *Result) writeConnectionLines(line lineWriter) {
	rate := ""
	if r.ConnectTime > 0 {
		rate = fmt.Sprintf(" in %v, %s/s", format.RoundToThreeDigits(r.ConnectTime), format.Count(int64(float64(r.Connected)/r.ConnectTime.Seconds())))
	}
	if r.Closed > 0 {
		line("connected", "%s in all, for %s at a time", format.Count(r.Connected), format.Count(r.Connections))
	} else {
		line("connected", "%s of %s%s", format.Count(r.Connected), format.Count(r.Connections), rate)
	}
	if l := r.Connect; l.Count > 0 {
		line("connect time", "%s", l.formatShort())
	}
	if l := r.FirstByte; l.Count > 0 {
		line("first byte", "%s after connecting, including waits before the first message", l.formatShort())
	}
	if r.Closed > 0 {
		line("closed", "%s whose lifetime was over, with %s messages in flight", format.Count(r.Closed), format.Count(r.CutOff))
	}
	if r.Reconnected > 0 {
		text := ""
		if r.Resent > 0 {
			text = fmt.Sprintf("; %s messages were sent again", format.Count(r.Resent))
		}
		line("reconnected", "%s times, when the server ended keep-alive%s", format.Count(r.Reconnected), text)
	}
	if r.TLS != "" {
		line("encrypted", "%s", r.TLS)
	}
	if len(r.ConnectErrors) > 0 {
		line("failed", "%s", format.Tally(r.ConnectErrors))
	}
}

func (r *Result) writeTrafficOrHeldLines(line lineWriter) {
	if r.Mode == modeNameHold {
		line("held", "%v, %s bytes received", format.RoundToThreeDigits(r.Window), format.Count(r.BytesReceived))
		return
	}
	r.writeLoadSettings(line)
	if r.Corrected {
		line("intended", "%s", format.Count(r.Intended))
	}
	line("sent", "%s, %s bytes", format.Count(r.Sent), format.Count(r.BytesSent))
	counted := ""
	if r.NoReply {
		line("received", "%s bytes, no answers expected", format.Count(r.BytesReceived))
		counted = " sent"
	} else {
		line("answered", "%s, %s bytes", format.Count(r.Answered), format.Count(r.BytesReceived))
	}
	varied := ""
	if r.Variation > SteadyVariation && r.Schedule == nil {
		varied = fmt.Sprintf(", unsteady: the receive rate varied by %.0f %%", r.Variation*100)
	}
	mbps := 8e-6 / r.Window.Seconds()
	if r.PubSub != nil {
		line("delivered", "%s, %s/s, each compared, in order", format.Count(r.Delivered), format.Count(int64(math.Round(r.DeliveriesPerSecond()))))
	}
	line("rate", "%s/s%s over %v, %.2f Mbps in, %.2f out%s", format.Count(int64(math.Round(r.Rate()))), counted, format.RoundToThreeDigits(r.Window),
		mbps*float64(r.BytesReceived), mbps*float64(r.BytesSent), varied)
	r.writeLatencyLines(line)
	r.writeMeanInFlight(line)
}

func (r *Result) writeMeanInFlight(line lineWriter) {
	if r.Corrected && r.Latency.Count > 0 {
		line("in flight", "%s (rate × mean latency), including messages that waited to be sent", formatRate(r.InFlight()))
	}
	if r.PubSub != nil || r.Messages > 0 || r.Closed > 0 || r.NoReply || r.Mode != "closed loop" {
		return // not all connections are meant to be busy all the time
	}
	want := float64(r.Connected) * float64(r.Pipeline)
	verdict := ""
	if d := math.Abs(r.InFlight() - want); d > want/10 {
		verdict = ": not all connections were loaded all the time"
	}
	line("in flight", "%s of %s (rate × mean latency)%s", format.Count(int64(math.Round(r.InFlight()))), format.Count(int64(want)), verdict)
}

func (r *Result) answeredOrSentVerb() string {
	if r.NoReply {
		return "sent"
	}
	return "answered"
}

func (r *Result) writeLoadSettings(line lineWriter) {
	switch {
	case r.Schedule != nil:
		line("load", "open loop, %v, at most %d in flight a connection, seed %d", r.Schedule, r.Pipeline, r.Seed)
	case r.Mode == "flood":
		line("load", "flood: as fast as connections accept data, no answers expected")
	case r.Mode != "":
		line("load", "%s, %d in flight a connection", r.Mode, r.Pipeline)
	}
	if p := r.PubSub; p != nil {
		line("", "%s: %d publishers, %s subscribers on %s topics, %s that never read, of which the server disconnected %s", p.Protocol, p.Publishers,
			format.Count(r.Connections-p.Publishers-p.Slow), format.Count(p.Topics), format.Count(p.Slow), format.Count(r.SlowEnded))
	}
	line("messages", "%s bytes", format.Count(r.MessageSize))
}

func (r *Result) writeLatencyLines(line lineWriter) {
	writeTimes := func(name, from string, l *Latency) {
		line(name, "%s", from)
		line("", "mean %v, min %v, max %v", format.RoundToThreeDigits(l.Mean), format.RoundToThreeDigits(l.Min), format.RoundToThreeDigits(l.Max))
		line("", "50%% %v, 90%% %v, 99%% %v, 99.9%% %v", format.RoundToThreeDigits(l.P50), format.RoundToThreeDigits(l.P90), format.RoundToThreeDigits(l.P99), format.RoundToThreeDigits(l.P999))
	}
	l := r.Latency
	if l.Count == 0 {
		return
	}
	if !r.Corrected {
		writeTimes("latency", "since sending: messages that a stalled server delayed count only from then", &l)
		r.writeLongestAnswerWait(line, &l)
		return
	}
	writeTimes("latency", "since the planned time (corrected for coordinated omission)", &l)
	if never := r.Unsent + r.Unanswered; never > 0 && r.Intended > 0 {
		share := 100 * (1 - float64(never)/float64(r.Intended))
		line("", "%s messages were never sent or answered: percentiles above %.4g%% are at least this", format.Count(never), share)
	}
	if r.Service != nil && r.Service.Count > 0 {
		writeTimes("service time", "since sending: what a closed loop would have measured", r.Service)
		r.writeLongestAnswerWait(line, r.Service)
	}
	if r.Late != nil && r.Late.Count > 0 {
		line("late sends", "99%% %v, max %v after their time, with a connection free", format.RoundToThreeDigits(r.Late.P99), format.RoundToThreeDigits(r.Late.Max))
	}
}

func (r *Result) writeLongestAnswerWait(line lineWriter, l *Latency) {
	if r.PubSub != nil {
		return
	}
	text := ""
	if r.Unanswered > 0 {
		text = fmt.Sprintf("; %s messages have none", format.Count(r.Unanswered))
	}
	line("longest gap", "%v of a connection from a message to its answer, 99%% of them at most %v%s", format.RoundToThreeDigits(l.Max), format.RoundToThreeDigits(l.P99), text)
}

// String returns the rate as text, such as "1,000 to 5,000/s, Poisson".
func (r *Rate) String() string {
	text := formatRate(r.PerSecond) + "/s"
	if r.To > 0 {
		text = formatRate(r.PerSecond) + " to " + formatRate(r.To) + "/s"
	}
	if r.Each {
		text += " on each connection"
	}
	if r.Poisson {
		text += ", Poisson"
	}
	return text
}

func formatRate(x float64) string {
	if x >= 1000 {
		return format.Count(int64(math.Round(x)))
	}
	return strconv.FormatFloat(x, 'g', 4, 64)
}

func (r *Result) writeBytesGeneratorAndLimitLines(line lineWriter) {
	b := r.Bytes
	if b.Sent > 0 && !r.NoReply && r.PubSub == nil {
		line("bytes", "%s sent = %s answered + %s in flight + %s cut off", format.Count(b.Sent), format.Count(b.Answered), format.Count(b.InFlight), format.Count(b.CutOff))
	}
	text := r.Model
	if r.Generator.CPU() > 0 {
		text += fmt.Sprintf(", user %v, system %v", format.RoundToThreeDigits(r.Generator.User), format.RoundToThreeDigits(r.Generator.System))
	}
	if r.hasMeaningfulCPUUsage() {
		text += fmt.Sprintf(", %.0f%% of %d CPU", 100*r.GeneratorCPUUtilization(), r.CPUs)
	}
	line("generator", "%s", text)
	for _, l := range r.Limits {
		line("limited by", "%s (generator): %s", l.Wall, l.Evidence)
		line("", "remedy: %s", l.Advice)
	}
}

func (r *Result) writeFaultLines(line lineWriter) {
	if r.Mismatched > 0 {
		line("wrong", "answers on %s connections; first: %v", format.Count(r.Mismatched), r.FirstMismatch)
	}
	if len(r.BadStatus) > 0 {
		line("refused", "%s", format.Tally(r.BadStatus))
	}
	if len(r.Lost) > 0 {
		line("lost", "%s", format.Tally(r.Lost))
		if r.Sent > 0 && r.Answered == 0 && r.TLS == "" && !r.NoReply {
			line("", "remedy: if the server expects TLS, use --tls")
		}
	}
	for _, c := range Counters {
		n, _ := c.resultValue(r)
		if !c.Fault || n == 0 || c.Name == "mismatched" {
			continue
		}
		text := format.Count(n)
		if c.Name == "unexpected" {
			text += " lines; first: " + r.FirstUnexpected
		}
		line(c.Name, "%s", text)
	}
}

// String returns the counts of the snapshot as one line.
func (s Snapshot) String() string {
	text := format.Count(s.Open) + " open, " + format.Count(s.Answered) + " answered"
	if s.Failed > 0 {
		text += ", " + format.Count(s.Failed) + " failed"
	}
	return text
}

func (r *Result) writeVerificationsAndBroadcast(line lineWriter) {
	for _, v := range r.Verifications {
		text := fmt.Sprintf("%s of %s connections answered in %v, %s/s, at most %s in flight",
			format.Count(v.Checked), format.Count(v.Open), format.RoundToThreeDigits(v.Time), format.Count(int64(v.CheckedPerSecond())), format.Count(v.InFlight))
		for _, w := range []struct {
			n    int64
			what string
		}{{v.Wrong, "wrong"}, {v.Lost, "lost"}, {v.Unanswered, "unanswered"}} {
			if w.n > 0 {
				text += fmt.Sprintf("; %s %s", format.Count(w.n), w.what)
			}
		}
		line(fmt.Sprintf("verified %d", v.Number), "%s", text)
		if l := v.Latency; l.Count > 0 {
			line("", "%s", l.formatShort())
		}
	}
	if r.Heartbeats > 0 {
		line("heartbeats", "%s", format.Count(r.Heartbeats))
	}
	b := r.Broadcast
	if b == nil {
		return
	}
	line("broadcast", "received on %s of %s connections, within %v of each other", format.Count(b.Heard), format.Count(b.Open), format.RoundToThreeDigits(b.Time))
	if l := b.After; l.Count > 0 {
		line("", "%s after the first", l.formatShort())
	}
	if b.Again > 0 {
		line("", "received again %s times", format.Count(b.Again))
	}
}

// WriteText writes the stream's Result as text. If the stream has no Result, it writes the last known progress.
func (s *Stream) WriteText(w io.Writer) error {
	if s.Complete() {
		return s.Result.WriteText(w)
	}
	_, err := fmt.Fprintf(w, "cut off     after %v, before there was a result\nuntil then  %v\n", format.RoundToThreeDigits(s.Span()), s.Last)
	return err
}

// comparisonRows lists the figures that WriteComparisonToFirst writes, one per row. title is the heading of the row.
// name is the name that the figure has in an Expectation.
var comparisonRows = []struct{ title, name string }{
	{"connected", "connected"}, {"rate, 1/s", "rate"}, {"mean", "mean"}, {"50%", "p50"}, {"90%", "p90"}, {"99%", "p99"},
	{"99.9%", "p99.9"}, {"max", "max"}, {"errors", "errors"}, {"generator's CPU", "cpu"},
}

// WriteComparisonToFirst writes the results of several runs side by side. names are the headings of the columns. Each
// figure is followed by its ratio to the figure of the first run. An unknown figure is shown as "-". A run without a
// result is shown as "cut off".
func WriteComparisonToFirst(w io.Writer, names []string, streams []*Stream) error {
	if len(names) != len(streams) || len(names) == 0 {
		return fmt.Errorf("load: comparison: %d names for %d streams; expected at least one stream, and a name for each", len(names), len(streams))
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(title string, of func(*Result) string) {
		fmt.Fprint(t, title)
		for _, s := range streams {
			text := "-"
			if s.Complete() {
				text = cmp.Or(of(s.Result), "-")
			} else if title == "target" {
				text = "cut off after " + format.RoundToThreeDigits(s.Span()).Round(time.Millisecond).String()
			}
			fmt.Fprint(t, "\t", text)
		}
		fmt.Fprintln(t)
	}
	fmt.Fprintln(t, "\t"+strings.Join(names, "\t"))
	row("target", func(r *Result) string { return r.Target })
	row("mode", func(r *Result) string { return r.Mode })
	first := streams[0].Result
	for _, c := range comparisonRows {
		f, _ := findFigure(c.name)
		row(c.title, func(r *Result) string {
			value, ok := f.value(r)
			if !ok {
				return ""
			}
			text := format.Count(int64(math.Round(value)))
			switch {
			case f.isTime:
				text = format.RoundToThreeDigits(time.Duration(value)).String()
			case c.name == "cpu":
				text = strconv.FormatFloat(100*value, 'f', 0, 64) + "%"
			}
			if r == first || first == nil {
				return text
			}
			base, ok := f.value(first)
			if !ok || base == 0 {
				return text
			}
			digits := 2
			if value/base >= 100 {
				digits = 0
			}
			return fmt.Sprintf("%s  %.*f×", text, digits, value/base)
		})
	}
	return t.Flush()
}

type csvColumn struct {
	name string
	of   func(*Interval) string
}

var csvColumns = slices.Concat(
	[]csvColumn{
		{"from_s", func(i *Interval) string { return formatSeconds(i.From) }},
		{"to_s", func(i *Interval) string { return formatSeconds(i.To) }},
		{"stage", func(i *Interval) string { return i.Stage }},
	},
	newCounterColumns(),
	[]csvColumn{
		newNumberColumn("errors", func(i *Interval) int64 { return i.countErrors() }),
		{"causes", func(i *Interval) string { return format.Tally(i.Errors) }},
		{"answered_per_s", func(i *Interval) string { return strconv.FormatFloat(i.PerSecond(i.Answered), 'f', 1, 64) }},
	},
	newCountAndPercentileColumns("", func(i *Interval) *Latency { return &i.Latency }),
	newCountAndPercentileColumns("connect_", func(i *Interval) *Latency { return &i.Connect }),
	newUsageColumns("generator_", func(i *Interval) *Usage { return &i.Generator }),
	newUsageColumns("server_", func(i *Interval) *Usage { return i.Server }),
)

func newCounterColumns() (columns []csvColumn) {
	for _, c := range Counters {
		if c.interval != nil {
			columns = append(columns, newNumberColumn(c.Name, func(i *Interval) int64 { n, _ := c.Of(i); return n }))
		}
	}
	return columns
}

// CSV writes the intervals of a run as a table (RFC 4180), with a header and one row per interval. Times are measured
// from the run's start. A CSV is not safe for concurrent use.
type CSV struct {
	table *csv.Writer
	err   error
}

func NewCSV(w io.Writer) *CSV {
	c := &CSV{table: csv.NewWriter(w)}
	c.table.UseCRLF = true
	c.writeRow(func(column csvColumn) string { return column.name })
	return c
}

func (c *CSV) writeRow(cellText func(csvColumn) string) {
	row := make([]string, len(csvColumns))
	for i, column := range csvColumns {
		row[i] = cellText(column)
	}
	c.err = cmp.Or(c.err, c.table.Write(row))
}

// Observe writes a row if the event contains an interval. Use Observe as Config.Observe. If a write fails, Flush
// returns the error.
func (c *CSV) Observe(e Event) {
	if e.Interval != nil {
		c.writeRow(func(column csvColumn) string { return column.of(e.Interval) })
	}
}

// Flush writes buffered data. It returns the first error of any write.
func (c *CSV) Flush() error {
	c.table.Flush()
	return cmp.Or(c.err, c.table.Error())
}

func (s *Stream) WriteCSV(w io.Writer) error {
	c := NewCSV(w)
	for i := range s.Intervals {
		c.Observe(Event{Interval: &s.Intervals[i]})
	}
	return c.Flush()
}

func newNumberColumn(name string, figure func(*Interval) int64) csvColumn {
	return csvColumn{name, func(i *Interval) string { return strconv.FormatInt(figure(i), 10) }}
}

func newCountAndPercentileColumns(prefix string, latency func(*Interval) *Latency) []csvColumn {
	all := []csvColumn{newNumberColumn(prefix+"count", func(i *Interval) int64 { return latency(i).Count })}
	for _, p := range LatencyPoints {
		all = append(all, csvColumn{prefix + strings.ReplaceAll(p.Name, ".", "") + "_us", func(i *Interval) string {
			if latency(i).Count == 0 {
				return ""
			}
			return strconv.FormatFloat(float64(p.Of(latency(i)))/1e3, 'f', -1, 64)
		}})
	}
	return all
}

func newUsageColumns(prefix string, usage func(*Interval) *Usage) (columns []csvColumn) {
	for _, f := range UsageFigures {
		if f.Column == "" {
			continue
		}
		columns = append(columns, csvColumn{prefix + f.Column, func(i *Interval) string {
			u := usage(i)
			if u == nil || f.Of(u) == 0 && f.Column != "cpu_s" {
				return "" // unknown
			}
			return strconv.FormatFloat(f.Of(u), 'f', -1, 64)
		}})
	}
	return columns
}

func formatSeconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64)
}

// PerSecond returns n divided by the length of the interval in seconds, or 0 for an interval without length.
func (i *Interval) PerSecond(n int64) float64 {
	if i.To <= i.From {
		return 0
	}
	return float64(n) / (i.To - i.From).Seconds()
}

func (i *Interval) countErrors() int64 { return max(sumCountsByCause(i.Errors), i.Failed+i.Lost) }
