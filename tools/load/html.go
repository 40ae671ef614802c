package load

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/internal/page"
)

const (
	maxChartPoints = 400
	maxErrorRows   = 40
	// reachedRateShare is the share of planned messages that must be answered to reach the planned rate.
	reachedRateShare = 0.99
)

// WriteHTML writes the run as one self-contained page. The page begins with the verdict and has a row for each
// expectation. An incomplete run meets no expectation. Curves have at most 400 points; if there are more intervals,
// neighboring intervals are joined.
func (s *Stream) WriteHTML(w io.Writer, expected ...Expectation) error {
	p := &page.Page{Title: "Load of " + s.targetNamesOrUnknown(), Figures: s.headlineFigures(), Facts: s.factRows()}
	remarks := s.assessRunRemarks(expected)
	p.Tone, p.Lead = remarks[0].Tone, remarks[0].Text
	var parts []page.Part
	if len(remarks) > 1 {
		parts = append(parts, page.Part{Remarks: remarks[1:]})
	}
	if len(expected) > 0 {
		parts = append(parts, page.Part{Table: s.expectationTable(expected)})
	}
	for _, section := range []page.Section{
		{ID: "verdict", Title: "Verdict", Parts: parts},
		{ID: "time", Title: "Over time", Parts: s.timelineCharts()},
		{ID: "latency", Title: "Latency", Parts: s.latencyChartAndTable()},
		{ID: "errors", Title: "Errors", Parts: s.errorCauseParts()},
	} {
		if len(section.Parts) > 0 {
			p.Sections = append(p.Sections, section)
		}
	}
	return p.WriteHTML(w)
}

func (s *Stream) targetNamesOrUnknown() string {
	switch {
	case s.Result != nil:
		return s.Result.Target
	case s.Plan != nil && len(s.Plan.Targets) > 0:
		return strings.Join(s.Plan.Targets, ", ")
	}
	return "unknown target"
}

func (s *Stream) modeName() string {
	return cmp.Or(cmp.Or(s.Result, new(Result)).Mode, cmp.Or(s.Plan, new(Plan)).Mode)
}

func (s *Stream) factRows() [][2]string {
	p, r := cmp.Or(s.Plan, new(Plan)), cmp.Or(s.Result, new(Result))
	plan := ""
	if rate := cmp.Or(p.Rate, r.Schedule); rate != nil {
		plan = rate.String() + ", "
	}
	if n := cmp.Or(p.Messages, r.Messages); n > 0 {
		plan += format.Count(n) + " messages on each connection"
	} else if d := cmp.Or(p.Duration, r.Window); d > 0 {
		plan += "for " + format.RoundToThreeDigits(d).String()
	}
	flight, size, generator, began, reconnected := "", "", cmp.Or(p.Model, r.Model), "", ""
	if n := cmp.Or(p.Pipeline, r.Pipeline); n > 0 && s.modeName() != modeNameHold {
		flight = "at most " + format.Count(n) + " a connection"
	}
	if r.MessageSize > 0 {
		size = format.Plural(r.MessageSize, "byte", "bytes")
	}
	if p.Loops > 0 {
		generator += ", " + format.Plural(p.Loops, "loop", "loops")
	}
	if start := cmp.Or(p.Start, r.Start); !start.IsZero() {
		began = start.Format("2006-01-02 15:04:05 MST")
	}
	if r.Reconnected > 0 {
		reconnected = format.Plural(r.Reconnected, "time", "times")
	}
	n := cmp.Or(p.Connections, r.Connections)
	all := [][2]string{
		{"Mode", s.modeName()}, {"Plan", plan},
		{"Connections", format.Plural(n, "connection", "connections") + " from " + format.Plural(max(p.Sources, 1), "address", "addresses")},
		{"Reconnected", reconnected},
		{"In flight", flight}, {"Message", size}, {"Encrypted", r.TLS}, {"Generator", generator}, {"Machine", p.Host}, {"Began", began},
		{"Seed", strconv.FormatUint(cmp.Or(p.Seed, r.Seed), 10)},
	}
	return slices.DeleteFunc(all, func(fact [2]string) bool { return fact[1] == "" })
}

func (s *Stream) headlineFigures() [][2]string {
	r := s.Result
	if r == nil {
		return [][2]string{{"Open", format.Count(s.Last.Open)}, {"Answered", format.Count(s.Last.Answered)}, {"Failed", format.Count(s.Last.Failed)}}
	}
	var all [][2]string
	if r.Window > 0 && r.Mode != modeNameHold {
		all = append(all, [2]string{"Rate, " + r.answeredOrSentVerb(), format.Rounded(r.Rate()) + "/s"})
	}
	if r.Latency.Count > 0 {
		all = append(all, [2]string{"p99", format.Seconds(r.Latency.P99.Seconds())})
	}
	return append(all, [2]string{"Errors", format.Count(r.countAllFailures())}, [2]string{"Connections", format.Count(r.Connected)})
}

// assessRunRemarks returns one or more remarks about the run, the most severe first. If all expectations are met, a
// remark about this comes before all others.
func (s *Stream) assessRunRemarks(expected []Expectation) []page.Remark {
	var missed []string
	for _, e := range expected {
		if got, ok := e.Check(s.Result); !ok {
			missed = append(missed, e.String()+": "+got)
		}
	}
	var bad, warn []page.Remark
	fault := func(text string) { bad = append(bad, page.Remark{Tone: page.Bad, Text: text}) }
	r := s.Result
	if r == nil {
		fault("The run was cut off after " + format.RoundToThreeDigits(s.Span()).String() + ". There is no result; the figures are those of the stream up to there.")
	}
	if r != nil && r.Interrupted && r.Mode != modeNameHold {
		warn = append(warn, page.Remark{Tone: page.Warn, Text: "The run was interrupted after " + format.RoundToThreeDigits(r.Took).String() + ": the figures cover the time until then."})
	}
	if len(missed) > 0 {
		fault(fmt.Sprintf("%d of %d expectations were not met. %s.", len(missed), len(expected), strings.Join(missed, "; ")))
	}
	if r == nil {
		return bad
	}
	if err := r.Err(); err != nil {
		fault("The run has faults: " + strings.TrimPrefix(err.Error(), "load: ") + ".")
	}
	for _, l := range r.Limits {
		warn = append(warn, page.Remark{Tone: page.Warn, Text: "The generator reached a limit, " + l.Wall + ": " + l.Evidence + ". Remedy: " + l.Advice + "."})
	}
	if text, missed := r.describeMissedRate(); missed {
		warn = append(warn, page.Remark{Tone: page.Warn, Text: text})
	}
	if n := sumCountsByCause(r.ConnectErrors); n > 0 && r.Connected > 0 {
		warn = append(warn, page.Remark{Tone: page.Warn, Text: format.Count(n) + " attempts to connect failed: " + format.Tally(r.ConnectErrors) + "."})
	}
	all := append(bad, warn...)
	switch {
	case len(expected) > 0 && len(missed) == 0:
		for i := range all {
			all[i].Tone = page.Warn
		}
		met := "All " + format.Count(len(expected)) + " expectations met."
		if len(expected) == 1 {
			met = "The expectation is met."
		}
		return append([]page.Remark{{Tone: page.Good, Text: met}}, all...)
	case len(all) > 0:
		return all
	}
	text := "A clean run: every answer arrived and was correct."
	if r.Answered == 0 {
		text = "Nothing failed."
	}
	if r.hasMeaningfulCPUUsage() {
		text += " The generator used " + format.Percent(r.GeneratorCPUUtilization()) + " of its CPUs and reached no known limit."
	}
	return []page.Remark{{Tone: page.Good, Text: text}}
}

// describeMissedRate reports whether an open loop missed its planned rate, and by how much. The rate is missed if the
// answered messages are less than the share reachedRateShare of the planned messages. If no answers are expected, the
// sent messages are compared instead.
func (r *Result) describeMissedRate() (text string, missed bool) {
	if r.Intended == 0 || r.Window <= 0 || float64(r.answeredOrSentMessages()) >= reachedRateShare*float64(r.Intended) {
		return "", false
	}
	text = fmt.Sprintf("Fewer messages were %s than intended: %s/s of %s/s.", r.answeredOrSentVerb(), format.Rounded(r.Rate()), format.Rounded(float64(r.Intended)/r.Window.Seconds()))
	if r.Unsent > 0 {
		text += " " + format.Count(r.Unsent) + " planned messages were never sent."
	}
	return text, true
}

func (s *Stream) expectationTable(expected []Expectation) *page.Table {
	t := &page.Table{}
	t.AddRow("Expected", "Measured", "")
	for _, e := range expected {
		got, ok := e.Check(s.Result)
		tone, verdict := page.Good, "met"
		if !ok {
			tone, verdict = page.Bad, "not met"
		}
		t.AddRow(e.String(), got, verdict)
		t.SetLastRowTone(2, tone)
	}
	return t
}

func (s *Stream) timelineCharts() (parts []page.Part) {
	intervals := joinIntervalsIntoTimeParts(s.Intervals, maxChartPoints)
	at := make([]float64, len(intervals))
	for n, i := range intervals {
		at[n] = (i.From + i.To).Seconds() / 2
	}
	note := s.describeMeasuredWindowIfAny()
	if len(intervals) < len(s.Intervals) {
		note = strings.TrimSpace(note + " Each point combines several intervals; percentiles are the worst of them.")
	}
	type curve struct {
		name string
		of   func(*Interval) float64
	}
	chart := func(id, title string, y page.Axis, curves ...curve) {
		c := &page.Chart{ID: id, Title: title, Note: note, X: page.Axis{Label: "time", Unit: page.Clock}, Y: y}
		for _, curve := range curves {
			values := make([]float64, len(intervals))
			some := false
			for n := range intervals {
				values[n] = curve.of(&intervals[n])
				some = some || values[n] > 0
			}
			if some {
				c.Series = append(c.Series, page.Series{Name: curve.name, X: at, Y: values, Points: len(at) < 3})
			}
		}
		if len(c.Series) > 0 {
			parts = append(parts, page.Part{Chart: c})
		}
	}
	chart("rate", "Messages a second", page.Axis{Label: "1/s"},
		curve{"intended", counterRateGetter("intended")}, curve{"sent", counterRateGetter("sent")}, curve{"answered", counterRateGetter("answered")})
	var percentiles []curve
	for _, point := range []string{"max", "p99.9", "p99", "p90", "p50"} {
		percentiles = append(percentiles, curve{point, func(i *Interval) float64 {
			if i.Latency.Count == 0 {
				return math.NaN()
			}
			return max(findLatencyPoint(point).Of(&i.Latency), 1).Seconds()
		}})
	}
	chart("percentiles", "Latency", page.Axis{Label: s.describeLatencyOrigin(), Log: true, Unit: page.Seconds}, percentiles...)
	chart("faults", "Errors a second", page.Axis{Label: "1/s"},
		curve{"other", func(i *Interval) float64 { return i.PerSecond(i.countErrors() - i.Failed - i.Lost) }},
		curve{"lost connections", counterRateGetter("lost")}, curve{"failed to connect", counterRateGetter("failed")})
	chart("flight", "Messages under way", page.Axis{}, curve{"in flight", counterGetter("in_flight")}, curve{"not sent yet", counterGetter("waiting")})
	chart("connections", "Connections", page.Axis{}, curve{"open", counterGetter("open")})
	chart("connects", "Connects a second", page.Axis{Label: "1/s"},
		curve{"closed", counterRateGetter("closed")}, curve{"reconnected", counterRateGetter("reconnected")}, curve{"established", counterRateGetter("opened")})
	cpu := func(i *Interval, u *Usage) float64 { return i.PerSecond(int64(u.CPU())) / 1e9 }
	memory := func(_ *Interval, u *Usage) float64 { return float64(u.RSS) }
	chart("cpu", "CPU", page.Axis{Label: "of one CPU", Unit: page.Share}, curve{"server", serverUsageGetter(cpu)}, curve{"generator", generatorUsageGetter(cpu)})
	chart("memory", "Memory", page.Axis{Label: "RSS", Unit: page.Bytes}, curve{"server", serverUsageGetter(memory)}, curve{"generator", generatorUsageGetter(memory)})
	return parts
}

func (s *Stream) describeMeasuredWindowIfAny() string {
	is := func(i Interval) bool { return i.Stage == "window" }
	first := slices.IndexFunc(s.Intervals, is)
	if first < 0 {
		return ""
	}
	from, to := s.Intervals[first].From, time.Duration(0)
	for _, i := range s.Intervals {
		if is(i) {
			to = i.To
		}
	}
	return fmt.Sprintf("The measured window is from %s to %s.", format.Clock(from.Seconds()), format.Clock(to.Seconds()))
}

func counterGetter(name string) func(*Interval) float64 {
	at := slices.IndexFunc(Counters, func(c Counter) bool { return c.Name == name })
	return func(i *Interval) float64 { n, _ := Counters[at].Of(i); return float64(n) }
}

func counterRateGetter(name string) func(*Interval) float64 {
	count := counterGetter(name)
	return func(i *Interval) float64 { return i.PerSecond(int64(count(i))) }
}

func generatorUsageGetter(figure func(*Interval, *Usage) float64) func(*Interval) float64 {
	return func(i *Interval) float64 { return figure(i, &i.Generator) }
}

func serverUsageGetter(figure func(*Interval, *Usage) float64) func(*Interval) float64 {
	return func(i *Interval) float64 {
		if i.Server == nil {
			return math.NaN()
		}
		return figure(i, i.Server)
	}
}

func (s *Stream) describeLatencyOrigin() string {
	if s.Result != nil && s.Result.Corrected || s.modeName() == "open loop" {
		return "since the intended time"
	}
	return "since the message was sent"
}

func (s *Stream) latencyChartAndTable() []page.Part {
	if s.Result == nil {
		return nil
	}
	t := &page.Table{Figures: true}
	head := []string{"", "count"}
	for _, p := range LatencyPoints {
		head = append(head, p.Name)
	}
	t.AddRow(head...)
	c := &page.Chart{ID: "distribution", Title: "Percentiles", X: page.Axis{Label: "percentile", Log: true, Unit: page.Percentile}, Y: page.Axis{Log: true, Unit: page.Seconds}}
	r := s.Result
	for _, d := range []struct {
		name  string
		of    *Latency
		curve bool
	}{
		{"latency " + s.describeLatencyOrigin(), &r.Latency, true},
		{"service time, since the message was sent", r.Service, true},
		{"sent late by the generator", r.Late, true},
		{"connect", &r.Connect, false}, {"first byte, since connecting", &r.FirstByte, false},
	} {
		if d.of == nil || d.of.Count == 0 {
			continue
		}
		line := []string{d.name, format.Count(d.of.Count)}
		for _, p := range LatencyPoints {
			line = append(line, format.Seconds(p.Of(d.of).Seconds()))
		}
		t.AddRow(line...)
		if d.curve {
			curve := d.of.PercentileCurve()
			curve.Name, curve.Dashed = d.name, d.of != &r.Latency
			c.Series = append(c.Series, curve)
		}
	}
	var parts []page.Part
	if len(c.Series) > 0 {
		parts = append(parts, page.Part{Chart: c})
	}
	if len(t.Lines) > 1 {
		parts = append(parts, page.Part{Table: t})
	}
	return parts
}

func (s *Stream) errorCauseParts() []page.Part {
	all := make(map[string]int64)
	for n := range s.Intervals {
		AddCauses(all, s.Intervals[n].Errors, math.MaxInt)
	}
	if r := s.Result; len(all) == 0 && r != nil {
		AddCauses(all, r.ConnectErrors, math.MaxInt)
		for cause, n := range r.Lost {
			all[cause+" (of an established connection)"] = n
		}
	}
	if len(all) == 0 {
		return nil
	}
	t := &page.Table{Figures: true}
	t.AddRow("Cause", "count")
	causes := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(cmp.Compare(all[b], all[a]), cmp.Compare(a, b))
	})
	for _, cause := range causes[:min(len(causes), maxErrorRows)] {
		t.AddRow(cause, format.Count(all[cause]))
	}
	parts := []page.Part{{Table: t}}
	if more := len(causes) - maxErrorRows; more > 0 {
		parts = append(parts, page.Part{Text: "And " + format.Plural(more, "more cause", "more causes") + "."})
	}
	if s.Result != nil && s.Result.FirstMismatch != nil {
		parts = append(parts, page.Part{Text: "The first wrong answer: " + s.Result.FirstMismatch.String()})
	}
	return parts
}
