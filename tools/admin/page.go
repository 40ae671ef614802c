package admin

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/doctor"
	"github.com/myriad-go/myriad/tools/metrics"
	"github.com/myriad-go/myriad/web"
)

const pageUpdateInterval = 2 * time.Second

// refreshIfDueAndBuildPage takes a sample if one is due, and returns the current page. It also records that the page
// was requested; see watchedTimeout.
func (l *pageState) refreshIfDueAndBuildPage(now time.Time) *page.Page {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastRequest = now
	l.refreshIfDueLocked(now)
	stats, p := l.snapshots[len(l.snapshots)-1].stats, l.latestPointWithMeanRates()
	made := &page.Page{
		Title: "Myriad", Figures: listMainFigures(stats, p), Facts: l.listSecondaryFiguresAndFacts(stats, p), Live: &page.Live{URL: "live", Every: pageUpdateInterval},
	}
	made.Lead, made.Tone = serverStatusSentence(stats)
	if l.hasControl {
		made.Sections = append(made.Sections, buildControlSection(stats, l.canUpgrade))
	}
	made.Sections = append(made.Sections,
		l.buildHistoryCharts(now), l.buildTopTalkerSection(), l.buildMachineLimitSection(), l.buildFigureTablesSection(stats, p), l.buildLinkSection())
	return made
}

func serverStatusSentence(s tcp.Stats) (string, page.Tone) {
	switch {
	case s.Model == "" && !s.Draining:
		return "The server has not started.", page.Warn
	case s.Draining:
		return fmt.Sprintf("The server is draining or has ended: it accepts no connections, and %s are open.", format.Count(s.Open)), page.Warn
	case s.AcceptingPaused:
		return fmt.Sprintf("Accepting is paused by an operator. %s connections are open.", format.Count(s.Open)), page.Warn
	case s.Overload.IsActive():
		return fmt.Sprintf("The server is overloaded: %s. %s connections are open.", s.Overload, format.Count(s.Open)), page.Warn
	}
	return fmt.Sprintf("The server serves %s connections.", format.Count(s.Open)), page.Good
}

// minConnsForMemory is the minimum number of connections for which the page shows the memory per connection.
const minConnsForMemory = 100

// formatMeanBytesUnlessFew formats totalBytes/conns, or returns a dash for fewer than minConnsForMemory connections.
func formatMeanBytesUnlessFew(totalBytes, conns float64) string {
	if conns < minConnsForMemory {
		return "–"
	}
	return dashIfEmpty(format.Bytes(max(totalBytes, 0) / conns))
}

// formatMemoryGrowthPerConn formats the memory growth since the first sample, divided by the growth of the number of
// open connections. If this number has grown by less than minConnsForMemory, it returns a dash.
func (l *pageState) formatMemoryGrowthPerConn(p historyPoint) string {
	return formatMeanBytesUnlessFew(p.anonymous-l.firstWithMemory.anonymous, p.open-l.firstWithMemory.open)
}

func listMainFigures(s tcp.Stats, p historyPoint) [][2]string {
	all := [][2]string{{"Connections", format.Count(s.Open) + " of " + format.Count(s.MaxConns)}}
	if s.Messages > 0 {
		all = append(all, [2]string{"Messages", formatNumberOrDash(p.messages) + " a second"})
	} else {
		all = append(all, [2]string{"Receives", formatNumberOrDash(p.reads) + " a second"})
	}
	return append(all, [2]string{"Handler time, p99", formatSecondsOrDash(p.handler)})
}

func (l *pageState) listSecondaryFiguresAndFacts(s tcp.Stats, p historyPoint) [][2]string {
	each := l.formatMemoryGrowthPerConn(p)
	if p.open-l.firstWithMemory.open < minConnsForMemory {
		each += fmt.Sprintf(" (from %s connections on)", format.Rounded(l.firstWithMemory.open+minConnsForMemory))
	}
	facts := [][2]string{
		{"Accepted", formatNumberOrDash(p.accepted) + " a second"},
		{"Received, sent a second", dashIfEmpty(format.Bytes(p.bytesIn)) + ", " + dashIfEmpty(format.Bytes(p.bytesOut))},
		{"Loop lag, p99", formatSecondsOrDash(p.lag)},
		{"CPU", formatCPUShareOrDash(p.cpu)},
		{"Utilisation of the loops", dashIfEmpty(format.Percent(p.busy))},
		{"Memory per connection", each},
		{"I/O model", dashIfEmpty(s.Model)},
	}
	if at := l.listenAddr(); at != nil {
		facts = append(facts, [2]string{"Listens on", at.String()})
	}
	process := fmt.Sprintf("%d, %s", os.Getpid(), runtime.Version())
	if s.Processes > 0 {
		process = fmt.Sprintf("%d worker processes of %d, %s", s.Processes, os.Getpid(), runtime.Version())
	}
	return append(facts, [2]string{"Process", process}, [2]string{"Watched since", l.start.Format("2006-01-02 15:04:05 MST")})
}

func (l *pageState) buildFigureTablesSection(s tcp.Stats, p historyPoint) page.Section {
	tables := []*page.Table{l.buildListenerTable(), l.buildHandlerPlacementTable(), buildLatencyTable(p), l.buildMemoryTable(s, p), l.buildMetricsTable()}
	var parts []page.Part
	for _, t := range tables {
		if t != nil {
			parts = append(parts, page.Part{Table: t})
		}
	}
	return page.Section{
		ID: "figures", Title: "All figures",
		Lead: fmt.Sprintf("Rates are of the time between the last two looks, a second or two, here and at the top. Memory per connection is by how much anonymous memory has grown since "+
			"this page's server began to look, for each connection more than there were then; it is shown from %d on.", minConnsForMemory),
		Parts: parts,
	}
}

// buildListenerTable returns a table of the server's listeners, or nil if none are known.
func (l *pageState) buildListenerTable() *page.Table {
	s, ok := l.source.(interface{ ListenerStats() []tcp.ListenerStats })
	if !ok {
		return nil
	}
	all := s.ListenerStats()
	if len(all) == 0 {
		return nil
	}
	t := &page.Table{Caption: "Listeners"}
	t.AddRow("Name", "Address", "Open", "Accepted", "Refused by its MaxConns")
	for _, one := range all {
		t.AddRow(one.Name, one.Addr.String(), format.Count(one.Open), format.Count(one.Accepted), format.Count(one.Refused))
		if one.Refused > 0 {
			t.SetLastRowTone(4, page.Warn)
		}
	}
	return t
}

// buildHandlerPlacementTable returns a table that shows where HTTP handlers run, or nil without HTTP routes.
func (l *pageState) buildHandlerPlacementTable() *page.Table {
	s, ok := l.source.(*tcp.Server)
	if !ok {
		return nil
	}
	handlers := []tcp.Handler{s.Handler}
	for _, l := range s.Listeners {
		handlers = append(handlers, l.Handler)
	}
	t := &page.Table{Caption: "HTTP handlers"}
	t.AddRow("Pattern", "Runs on", "Moved to workers", "Last reason")
	for _, h := range handlers {
		if h, ok := h.(*web.HTTP); ok {
			for _, r := range h.Routes() {
				place := "workers"
				if r.OnLoop {
					place = "event loops"
				}
				t.AddRow(cmp.Or(r.Pattern, "all requests"), place, format.Count(r.MovedToWorkers), dashIfEmpty(r.Reason))
			}
		}
	}
	if len(t.Lines) == 1 {
		return nil
	}
	return t
}

type fixedSource tcp.Stats

func (f *fixedSource) Stats() tcp.Stats { return tcp.Stats(*f) }

type metricValue struct {
	name, help string
	value      float64
	isCounter  bool
}

func nonHistogramMetricValues(s tcp.Stats) (all []metricValue) {
	r := prometheus.NewRegistry()
	r.MustRegister(metrics.NewServerCollector((*fixedSource)(&s), nil))
	families, _ := r.Gather() // cannot fail: a registry with one collector is consistent
	for _, f := range families {
		for _, m := range f.Metric {
			if m.Histogram != nil {
				continue
			}
			name := strings.TrimPrefix(f.GetName(), "myriad_")
			for _, label := range m.Label {
				name += ": " + label.GetValue()
			}
			all = append(all, metricValue{name, f.GetHelp(), m.GetCounter().GetValue() + m.GetGauge().GetValue(), m.Counter != nil})
		}
	}
	return all
}

var errorCounterPrefixes = []string{"accept_errors", "connections_refused", "handler_panics", "messages_dropped", "worker_restarts"}

func (l *pageState) buildMetricsTable() *page.Table {
	t := &page.Table{Caption: "Counters"}
	t.AddRow("Name, as in /metrics", "Now", "A second", "What it is")
	first, last := &l.snapshots[0], &l.snapshots[len(l.snapshots)-1]
	before := make(map[string]float64)
	for _, f := range nonHistogramMetricValues(first.stats) {
		before[f.name] = f.value
	}
	for _, f := range nonHistogramMetricValues(last.stats) {
		write, grown := format.Rounded, "–"
		switch {
		case strings.Contains(f.name, "bytes"):
			write = format.Bytes
		case strings.Contains(f.name, "seconds"):
			write = format.Seconds
		case f.value == math.Trunc(f.value):
			write = func(v float64) string { return format.Count(int64(v)) }
		}
		if f.isCounter {
			grown = formatNumberOrDash(max(f.value-before[f.name], 0) / last.at.Sub(first.at).Seconds())
		}
		t.AddRow(f.name, write(f.value), grown, f.help)
		if f.value > 0 && slices.ContainsFunc(errorCounterPrefixes, func(name string) bool { return strings.HasPrefix(f.name, name) }) {
			t.SetLastRowTone(1, page.Warn)
		}
	}
	return t
}

func buildLatencyTable(p historyPoint) *page.Table {
	t := &page.Table{Caption: "Times, as the bounds of buckets that double"}
	t.AddRow("What", "p50", "p99", "What it is")
	t.AddRow("handler", formatSecondsOrDash(p.handler50), formatSecondsOrDash(p.handler), "how long its calls take")
	t.AddRow("lag", formatSecondsOrDash(p.lag50), formatSecondsOrDash(p.lag), "how long turns of event loops take")
	return t
}

func (l *pageState) buildMemoryTable(s tcp.Stats, p historyPoint) *page.Table {
	t := &page.Table{Caption: "Memory"}
	t.AddRow("What", "Bytes", "Per connection", "What it is")
	line := func(name string, bytes float64, each, what string) {
		t.AddRow(name, dashIfEmpty(format.Bytes(bytes)), each, what)
	}
	whose := "of this process"
	if s.Processes > 0 {
		whose = "of the supervisor and its workers"
	}
	line("anonymous", p.anonymous, l.formatMemoryGrowthPerConn(p), "memory "+whose+" that no file holds")
	line("RSS", p.rss, "–", "all memory "+whose)
	line("heap", p.heap, "–", "Go's, of this process alone, with what is not collected yet")
	line("buffers", p.buffers, formatMeanBytesUnlessFew(p.buffers, p.open), "of connections, see Limits.MaxBuffered")
	return t
}

type chartCurve struct {
	name string
	of   func(*historyPoint) float64
}

func (l *pageState) buildHistoryCharts(now time.Time) page.Section {
	points := l.points
	s := page.Section{ID: "charts", Title: "The last 10 minutes", Lead: "One point a second, as long as the server of this page runs."}
	chart := func(id, title, label string, unit page.Unit, curves ...chartCurve) {
		c := &page.Chart{
			ID: id, Title: title,
			X: page.Axis{Label: "time, 0:00 is now", Unit: page.Clock}, Y: page.Axis{Label: label, Unit: unit},
		}
		for _, curve := range curves {
			one := page.Series{Name: curve.name}
			for i := range points {
				one.X = append(one.X, -math.Round(now.Sub(points[i].at).Seconds()))
				one.Y = append(one.Y, curve.of(&points[i]))
			}
			c.Series = append(c.Series, one)
		}
		s.Parts = append(s.Parts, page.Part{Chart: c})
	}
	chart("connections", "Connections", "open", page.Number, chartCurve{"open", func(p *historyPoint) float64 { return p.open }})
	receives := chartCurve{"receives", func(p *historyPoint) float64 { return p.reads }}
	if l.snapshots[len(l.snapshots)-1].stats.Messages > 0 {
		chart("messages", "Messages and receives", "a second", page.Number, chartCurve{"messages", func(p *historyPoint) float64 { return p.messages }}, receives)
	} else {
		chart("messages", "Receives", "a second", page.Number, receives)
	}
	chart("bytes", "Bytes", "a second", page.Bytes,
		chartCurve{"received", func(p *historyPoint) float64 { return p.bytesIn }}, chartCurve{"sent", func(p *historyPoint) float64 { return p.bytesOut }})
	chart("times", "Times, p99", "handler, and loop lag", page.Seconds,
		chartCurve{"handler", func(p *historyPoint) float64 { return p.handler }}, chartCurve{"lag", func(p *historyPoint) float64 { return p.lag }})
	chart("memory", "Memory", "of the processes", page.Bytes,
		chartCurve{"RSS", func(p *historyPoint) float64 { return p.rss }}, chartCurve{"anonymous", func(p *historyPoint) float64 { return p.anonymous }},
		chartCurve{"buffers", func(p *historyPoint) float64 { return p.buffers }})
	chart("processors", "CPU", "% of a CPU, and of the loops' time", page.Share,
		chartCurve{"CPU", func(p *historyPoint) float64 { return p.cpu }}, chartCurve{"loop utilisation", func(p *historyPoint) float64 { return p.busy }})
	return s
}

func (l *pageState) buildMachineLimitSection() page.Section {
	w := &l.walls
	s := page.Section{ID: "walls", Title: "Walls"}
	if w.report == nil {
		s.Lead = fmt.Sprintf("How near the limits of this machine are is not known: %v.", w.err)
		return s
	}
	t := &page.Table{Caption: "Where it would stop"}
	t.AddRow("Wall", "Connections now", "It stops at", "Near", "What it is")
	free := 0
	nearest := slices.Clone(w.report.Walls)
	slices.SortStableFunc(nearest, func(a, b doctor.Wall) int { return cmp.Compare(w.totalConnsAtWall(&a), w.totalConnsAtWall(&b)) })
	for i := range nearest {
		if wall := &nearest[i]; wall.Holds == doctor.Unlimited {
			free++
		} else {
			w.addRowOfWall(t, wall)
		}
	}
	s.Lead = fmt.Sprintf("What package doctor predicts for this server on this machine, at its present number of connections. "+
		"Limits of the server's own, such as Limits.MaxConns, are not among these. %d more walls were looked at that do not stop it.", free)
	if len(t.Lines) > 1 {
		s.Parts = append(s.Parts, page.Part{Table: t})
	}
	if used := buildLimitUsageTable(w.report.Walls); len(used.Lines) > 1 {
		s.Parts = append(s.Parts, page.Part{Table: used})
	}
	return s
}

func (w *machineLimitReport) addRowOfWall(t *page.Table, wall *doctor.Wall) {
	stops, what := w.totalConnsAtWall(wall), wall.What
	if wall.Present != "" {
		what += ": " + wall.Present
	}
	if wall.Soft {
		what = "hurts, does not stop: " + what
	}
	near := math.Inf(1)
	if stops > 0 {
		near = float64(w.open) / float64(stops)
	}
	t.AddRow(wall.Name, format.Count(w.open), format.Count(stops), dashIfEmpty(format.Percent(near)), what)
	t.SetLastRowTone(3, toneOfUtilization(near))
}

// buildLimitUsageTable returns a table of the machine's limits that are known, with the share of each limit that is in
// use. The limit with the largest share comes first.
func buildLimitUsageTable(walls []doctor.Wall) *page.Table {
	t := &page.Table{Caption: "What is in use of the limits that can be read"}
	t.AddRow("Wall", "In use", "Limit", "Near", "Of what")
	share := func(w doctor.Wall) float64 { return float64(w.Used) / float64(w.Limit) }
	known := slices.DeleteFunc(slices.Clone(walls), func(w doctor.Wall) bool { return w.Limit <= 0 })
	slices.SortStableFunc(known, func(a, b doctor.Wall) int { return cmp.Compare(share(b), share(a)) })
	for _, w := range known {
		write := format.Count[int64]
		if w.Unit == "bytes" {
			write = func(n int64) string { return format.Bytes(float64(n)) }
		}
		of := w.Unit
		if w.Of != "" {
			of += ", " + w.Of
		}
		t.AddRow(w.Name, write(w.Used), write(w.Limit), format.Percent(share(w)), of)
		t.SetLastRowTone(3, toneOfUtilization(share(w)))
	}
	return t
}

func toneOfUtilization(utilization float64) page.Tone {
	switch {
	case utilization >= 0.95:
		return page.Bad
	case utilization >= 0.8:
		return page.Warn
	}
	return page.Plain
}

func (l *pageState) buildTopTalkerSection() page.Section {
	t := &l.talkers
	s := page.Section{ID: "talkers", Title: "Top talkers"}
	if t.err != nil {
		s.Lead = fmt.Sprintf("Top talkers are not available: %v.", t.err)
		return s
	}
	over := "since they began; the next look tells what is said now"
	if t.elapsed > 0 {
		over = fmt.Sprintf("over the last %v", t.elapsed.Round(100*time.Millisecond))
	}
	s.Lead = fmt.Sprintf("Of %s connections those with most traffic %s. The kernel counts it; it is looked at only while this page is open. "+
		"Behind a proxy the addresses are the proxy's.", format.Count(t.connCount), over)
	table := &page.Table{Caption: "Connections, the loudest first"}
	table.AddRow("Peer", "Received a second", "Sent a second", "Received", "Sent", "Unsent", "Round-trip time", "Last received")
	for i := range t.top {
		one := &t.top[i]
		in, out := "…", "…"
		if t.elapsed > 0 {
			in, out = format.Bytes(one.inRate), format.Bytes(one.outRate)
		}
		bytes := func(n int64) string { return format.Bytes(float64(n)) }
		table.AddRow(one.Remote.String(), in, out, bytes(one.BytesIn), bytes(one.BytesOut), bytes(one.Unsent),
			format.Seconds(one.RTT.Seconds()), format.Seconds(one.SinceInput.Seconds())+" ago")
		if l.hasControl {
			table.Actions = append(table.Actions, closeConnButton(one.Remote))
		}
	}
	if l.hasControl {
		table.Actions = append([]page.Action{{}}, table.Actions...) // no action in the row of headings
	}
	s.Parts = []page.Part{{Table: table}}
	return s
}

func (l *pageState) buildLinkSection() page.Section {
	return page.Section{ID: "more", Title: "More", Parts: []page.Part{{Links: l.links}}}
}

func formatNumberOrDash(v float64) string  { return dashIfEmpty(format.Rounded(v)) }
func formatSecondsOrDash(v float64) string { return dashIfEmpty(format.Seconds(v)) }

func formatCPUShareOrDash(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return format.Percent(v) + " of a CPU"
}

func dashIfEmpty(text string) string {
	if text == "" {
		return "–"
	}
	return text
}
