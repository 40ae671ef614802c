package load

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:embed report.html
var reportHTML string

var reportPage = template.Must(template.New("report").Parse(reportHTML))

// mainCards is how many figures are large.
const mainCards = 3

// mostCauses bounds the rows of the table of errors.
const mostCauses = 40

// reportData is what the template shows.
type reportData struct {
	Title, Target string
	Facts         [][2]string // name and text
	Verdict       []verdict
	Expected      []checkedRow
	Cards         []card // the figures that matter most
	MoreCards     []card
	Figures       []figure
	Shaded        bool
	Latencies     []latencyRow
	Errors        []errorRow
	MoreErrors    int
	Bytes         [][2]string
	BytesNote     string
	Mismatch      string
	Points        *hoverPoints
}

// card is a big figure.
type card struct{ Name, Value, Unit, Note, Class string }

// latencyRow is a row of the table of latencies.
type latencyRow struct {
	Name  string
	Count string
	Times []string
}

// errorRow is a cause, how often it was and when.
type errorRow struct{ Cause, Count, First, Last, Worst string }

// hoverPoints are the values that the page shows under the pointer.
type hoverPoints struct {
	Left, Right int          // the room beside the plot, in pixels
	At          []float64    // the places, 0 to 1
	Time        []string     // what they are called
	Text        [][][]string // of each timed figure and key
}

// WriteHTML writes the run as one self-contained page: it asks for nothing from
// anywhere, and what the stream has of text is escaped. Charts have at most 400
// points a curve; where there are more intervals, neighbours are joined. The page
// has a row for each expectation, as Check says it, and names those first that
// are not met; a run that was cut off meets none.
func (s *Stream) WriteHTML(w io.Writer, expected ...Expectation) error {
	t, checked := newTimeline(s), s.checkAll(expected)
	p := reportData{
		Target: "unknown target", Facts: s.facts(), Verdict: s.verdicts(checked), Expected: checked,
		Figures: t.figures(s.openLoop()), Shaded: len(t.shade) > 0, Latencies: s.latencyRows(),
	}
	p.Points = t.points(p.Figures)
	all := s.cards()
	p.Cards, p.MoreCards = all[:min(mainCards, len(all))], all[min(mainCards, len(all)):]
	switch {
	case s.Result != nil:
		p.Target = s.Result.Target
	case s.Plan != nil && len(s.Plan.Targets) > 0:
		p.Target = strings.Join(s.Plan.Targets, ", ")
	}
	p.Title = "Load of " + p.Target
	if f := s.distribution(); len(f.Keys) > 0 {
		p.Figures = append(p.Figures, f)
	}
	p.Errors = s.errorRows()
	if len(p.Errors) > mostCauses {
		p.MoreErrors = len(p.Errors) - mostCauses
		p.Errors = p.Errors[:mostCauses]
	}
	if r := s.Result; r != nil {
		p.Bytes, p.BytesNote = r.byteRows()
		if r.FirstMismatch != nil {
			p.Mismatch = r.FirstMismatch.String()
		}
	}
	return reportPage.Execute(w, p)
}

// mode is what sent messages, "" where that isn't known.
func (s *Stream) mode() string {
	if s.Result != nil {
		return s.Result.Mode
	}
	if s.Plan != nil {
		return s.Plan.Mode
	}
	return ""
}

func (s *Stream) openLoop() bool {
	return s.mode() == "open loop" || s.Result != nil && s.Result.Corrected
}

// facts say what was run, and where.
func (s *Stream) facts() [][2]string {
	var all [][2]string
	add := func(name, text string) {
		if text != "" {
			all = append(all, [2]string{name, text})
		}
	}
	p, r := cmp.Or(s.Plan, new(Plan)), cmp.Or(s.Result, new(Result))
	add("Mode", s.mode())
	add("Plan", planText(cmp.Or(p.Rate, r.Schedule), p, r))
	if n := cmp.Or(p.Connections, r.Connections); n > 0 {
		text := group(int64(n))
		if p.Sources > 1 {
			text += " from " + group(int64(p.Sources)) + " addresses"
		}
		add("Connections", text)
	}
	if n := cmp.Or(p.Pipeline, r.Pipeline); n > 0 && s.mode() != "hold" {
		add("In flight", "at most "+group(int64(n))+" a connection")
	}
	if r.MessageSize > 0 {
		add("Message", group(int64(r.MessageSize))+" bytes")
	}
	add("Encrypted", r.TLS)
	if model := cmp.Or(p.Model, r.Model); model != "" {
		loops := ""
		if p.Loops > 0 {
			loops = ", " + plural(p.Loops, "loop")
		}
		add("Generator", model+loops)
	}
	add("Machine", p.Host)
	if !p.Start.IsZero() {
		add("Began", p.Start.Format("2006-01-02 15:04:05 MST"))
	}
	add("Seed", strconv.FormatUint(cmp.Or(p.Seed, r.Seed), 10))
	return all
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return group(int64(n)) + " " + what + "s"
}

// planText says when messages were to be sent, and for how long.
func planText(rate *Rate, p *Plan, r *Result) string {
	var parts []string
	if rate != nil && rate.PerSecond > 0 {
		text := perSecondText(rate.PerSecond)
		if rate.To > 0 {
			text += " to " + perSecondText(rate.To)
		}
		text += " messages a second"
		if rate.Each {
			text += " on each connection"
		}
		if rate.Poisson {
			text += ", at random times (Poisson)"
		}
		if rate.Swing > 0 {
			text += fmt.Sprintf(", ±%s %% each %v", shortFloat(100*rate.Swing), rate.Period)
		}
		parts = append(parts, text)
	}
	if n := cmp.Or(p.Messages, r.Messages); n > 0 {
		parts = append(parts, group(n)+" messages on each connection")
	}
	if d := cmp.Or(p.Duration, r.Window); d > 0 {
		parts = append(parts, "for "+roundTime(d))
	}
	return strings.Join(parts, ", ")
}

// cards are the big figures, those that matter most first.
func (s *Stream) cards() []card {
	r := s.Result
	if r == nil {
		return []card{
			{Name: "Open", Value: group(s.Last.Open), Note: "when the stream ended"},
			{Name: "Answered", Value: group(s.Last.Answered), Note: "of " + group(s.Last.Sent) + " sent"},
			{Name: "Failed", Value: group(s.Last.Failed), Note: "attempts to connect"},
		}
	}
	var all []card
	if r.Window > 0 && r.Mode != "hold" {
		rate := card{Name: "Rate", Value: perSecondText(r.Rate()), Unit: "/s", Note: r.ratedHow() + ", over " + roundTime(r.Window)}
		if r.Intended > 0 {
			rate.Note = r.ratedHow() + ", of " + perSecondText(float64(r.Intended)/r.Window.Seconds()) + "/s intended"
		}
		all = append(all, rate)
	}
	failed := card{Name: "Errors", Value: group(r.errors()), Note: r.errorNote()}
	if r.errors() > 0 {
		failed.Class = "bad"
	}
	var others []card
	if l := r.Latency; l.Count > 0 {
		for _, c := range []struct {
			name string
			d    time.Duration
			note string
		}{{"p99", l.P99, "1 in 100 took longer"}, {"p50", l.P50, "half of the answers"}, {"p99.9", l.P999, "1 in 1,000 took longer"}, {"max", l.Max, "the slowest answer"}} {
			value, unit, _ := strings.Cut(spaced(c.d), "\u00a0")
			others = append(others, card{Name: c.name, Value: value, Unit: unit, Note: c.note})
		}
		all, others = append(all, others[0]), others[1:]
	}
	connections := card{Name: "Connections", Value: group(int64(r.Connected)), Note: "of " + group(int64(r.Connections))}
	if r.ConnectTime > 0 {
		connections.Note += ", in " + roundTime(r.ConnectTime)
	}
	return append(append(all, failed, connections), others...)
}

// errorNote says what the errors were.
func (r *Result) errorNote() string {
	var parts []string
	for _, e := range []struct {
		n    int64
		what string
	}{
		{sumCauses(r.ConnectErrors), "failed"}, {sumCauses(r.Lost), "lost"}, {r.Mismatched, "wrong"},
		{r.Unanswered, "unanswered"}, {r.Unsent, "unsent"},
	} {
		if e.n > 0 {
			parts = append(parts, group(e.n)+" "+e.what)
		}
	}
	if len(parts) == 0 {
		return "nothing failed"
	}
	return strings.Join(parts, ", ")
}

func (s *Stream) latencyRows() []latencyRow {
	if s.Result == nil {
		return nil
	}
	name := "Latency"
	if s.Result.Corrected {
		name = "Latency, since the message was to be sent"
	}
	var rows []latencyRow
	for _, d := range []struct {
		name string
		l    *Latency
	}{
		{name, &s.Result.Latency}, {"Latency, since the message was sent", s.Result.Service},
		{"Sent late by the generator", s.Result.Late}, {"Connect", &s.Result.Connect}, {"First byte, since connecting", &s.Result.FirstByte},
	} {
		if d.l == nil || d.l.Count == 0 {
			continue
		}
		row := latencyRow{Name: d.name, Count: group(d.l.Count)}
		for _, v := range []time.Duration{d.l.Min, d.l.Mean, d.l.P50, d.l.P90, d.l.P99, d.l.P999, d.l.P9999, d.l.Max} {
			row.Times = append(row.Times, spaced(v))
		}
		rows = append(rows, row)
	}
	return rows
}

// errorRows are the causes of errors, the most frequent first, with the time of
// the intervals that have them; the result's own where no interval has any.
func (s *Stream) errorRows() []errorRow {
	type seen struct{ count, worst, first, last, at int64 }
	all := make(map[string]*seen)
	for n, i := range s.Intervals {
		for cause, count := range i.Errors {
			e := all[cause]
			if e == nil {
				e = &seen{first: int64(n)}
				all[cause] = e
			}
			e.count += count
			e.last = int64(n)
			if count > e.worst {
				e.worst, e.at = count, int64(n)
			}
		}
	}
	timed := len(all) > 0
	if r := s.Result; !timed && r != nil {
		for cause, n := range r.ConnectErrors {
			all[cause] = &seen{count: n}
		}
		for cause, n := range r.Lost {
			all[cause+" (of an established connection)"] = &seen{count: n}
		}
	}
	var rows []errorRow
	for _, cause := range slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(cmp.Compare(all[b].count, all[a].count), cmp.Compare(a, b))
	}) {
		e := all[cause]
		row := errorRow{cause, group(e.count), "-", "-", "-"}
		if timed {
			row.First = roundTime(s.Intervals[e.first].From)
			row.Last = roundTime(s.Intervals[e.last].To)
			row.Worst = group(e.worst) + " from " + roundTime(s.Intervals[e.at].From) + " to " + roundTime(s.Intervals[e.at].To)
		}
		rows = append(rows, row)
	}
	return rows
}

// byteRows are the account of bytes, and whether it adds up; none for no bytes.
func (r *Result) byteRows() (rows [][2]string, note string) {
	b := r.Bytes
	if b == (Bytes{}) {
		return nil, ""
	}
	if r.Mute {
		return [][2]string{{"Sent: handed to connections", group(b.Sent)}, {"Received", group(b.Received)}}, "No answers were awaited."
	}
	for _, row := range []struct {
		name string
		n    int64
	}{
		{"Sent: handed to connections", b.Sent}, {"… of messages that were answered", b.Answered},
		{"… of messages that weren't when the run ended", b.InFlight}, {"… on connections that had ended before", b.CutOff},
		{"Received", b.Received},
	} {
		rows = append(rows, [2]string{row.name, group(row.n)})
	}
	if sum := b.Answered + b.InFlight + b.CutOff; sum != b.Sent {
		return rows, "The account doesn't add up: the three parts are " + group(sum) + " bytes, " + group(b.Sent-sum) + " are missing."
	}
	return rows, "The account adds up: what was sent is the sum of the three parts."
}

// points are what the page shows under the pointer, of the timed figures.
func (t *timeline) points(figures []figure) *hoverPoints {
	if len(t.intervals) == 0 {
		return nil
	}
	span := float64(max(t.intervals[len(t.intervals)-1].To, time.Millisecond))
	p := &hoverPoints{Left: chartLeft, Right: chartRight}
	for n, i := range t.intervals {
		p.At = append(p.At, t.places[n]/span)
		p.Time = append(p.Time, roundTime(i.From)+" – "+roundTime(i.To)+", "+i.Stage)
	}
	for _, f := range figures {
		var keys [][]string
		for _, k := range f.Keys {
			texts := make([]string, len(k.values))
			for i, v := range k.values {
				if texts[i] = "–"; v == v {
					texts[i] = k.text(v)
				}
			}
			keys = append(keys, texts)
		}
		p.Text = append(p.Text, keys)
	}
	return p
}
