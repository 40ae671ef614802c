package main

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/myriad-go/myriad/load"
)

const (
	labelWidth = 11
	valueWidth = 13 // of the figure before a sparkline
	barWidth   = 50 // the most
)

// render is the state as lines, the most important first. Lines may be wider than
// the screen where a single figure is; liveLine.fit cuts them.
func render(s *liveState, on screen) []liveLine {
	lines := []liveLine{renderTitle(s, on.width), renderStage(s, on.width), renderConnections(s, on.width)}
	lines = append(lines, renderTraffic(s, on.width)...)
	if l := renderErrors(s, on.width); l != nil {
		lines = append(lines, l)
	}
	lines = append(lines, renderProcesses(s, on.width)...)
	if warning := s.warning(); warning != "" {
		lines = append(lines, liveWrap("warning", warning, on.width)...)
	}
	if h := renderPercentiles(s.last.Latency, on.width); len(lines)+len(h) < on.height {
		lines = append(lines, h...)
	}
	return lines
}

// liveRow is a line with a label, and as many of its items as fit; the first is there in
// any case.
func liveRow(label string, width int, items ...styled) liveLine {
	l := liveLine{{dim, fmt.Sprintf("%-*s", labelWidth, label)}}
	used := labelWidth
	for i, item := range items {
		text := item.text
		if i > 0 {
			text = "  " + text
		}
		if n := utf8.RuneCountInString(strings.TrimRight(text, " ")); i > 0 && used+n > width {
			break
		}
		used += utf8.RuneCountInString(text)
		l = append(l, styled{item.style, text})
	}
	return l
}

func renderTitle(s *liveState, width int) liveLine {
	command := "load"
	if s.plan.Mode == "hold" {
		command = "hold"
	}
	title := "myriad " + command
	if len(s.plan.Targets) > 0 {
		title += " " + s.plan.Targets[0]
	}
	if more := len(s.plan.Targets) - 1; more > 0 {
		title += fmt.Sprintf(" and %d more", more)
	}
	var about []string
	if s.plan.Mode != "" && s.plan.Mode != "hold" {
		about = append(about, s.plan.Mode)
	}
	if s.plan.Model != "" {
		model := s.plan.Model
		if s.plan.Loops > 1 {
			model += fmt.Sprintf(" × %d", s.plan.Loops)
		}
		about = append(about, model)
	}
	l := liveLine{{bold, title}}
	right := strings.Join(append(about, liveSpan(s.elapsed)), ", ")
	if gap := width - utf8.RuneCountInString(title) - utf8.RuneCountInString(right); gap >= 2 {
		l = append(l, styled{dim, strings.Repeat(" ", gap) + right})
	}
	return l
}

func renderStage(s *liveState, width int) liveLine {
	share, text := s.progress()
	stage := s.stage
	if stage == "" {
		stage = "run"
	}
	room := min(barWidth, width-labelWidth-utf8.RuneCountInString(text)-2)
	if share < 0 || room < 5 {
		return liveRow(stage, width, styled{"", text})
	}
	full, rest := liveBar(share, room)
	l := liveRow(stage, width, styled{green, full})
	return append(l, styled{dim, rest}, styled{"", "  " + text})
}

func renderConnections(s *liveState, width int) liveLine {
	open := liveCount(s.snapshot.Open)
	if s.plan.Connections > 0 {
		open += " of " + liveCount(int64(s.plan.Connections))
	}
	items := []styled{{"", open}}
	var none []styled
	// The snapshot knows of failures before an interval does.
	for _, f := range []struct {
		n    int64
		what string
	}{{max(s.failed, s.snapshot.Failed), "failed"}, {s.lost, "lost"}} {
		if f.n > 0 {
			items = append(items, styled{red, liveCount(f.n) + " " + f.what})
		} else {
			none = append(none, styled{"", "0 " + f.what})
		}
	}
	if s.last.Opened > 0 {
		items = append(items, styled{"", "+" + aSecond(s.perSecond(s.last.Opened))})
	}
	items = append(items, none...)
	if s.stage == "connect" && s.last.Connect.Count > 0 {
		items = append(items, styled{"", "p50 " + liveTime(s.last.Connect.P50)}, styled{"", "p99 " + liveTime(s.last.Connect.P99)})
	}
	return liveRow("open", width, items...)
}

// renderTraffic is empty until there is some.
func renderTraffic(s *liveState, width int) []liveLine {
	i := s.last
	if s.snapshot.Sent == 0 && i.Sent == 0 && i.Intended == 0 && i.BytesReceived == 0 {
		return nil
	}
	var lines []liveLine
	room := width - labelWidth - valueWidth
	spark := func(label, value string, values []float64) {
		lines = append(lines, liveLine{{dim, fmt.Sprintf("%-*s", labelWidth, label)}, {bold, fmt.Sprintf("%-*s", valueWidth, value)}, {cyan, sparkline(values, room)}})
	}
	switch {
	case s.unanswered():
		spark("sent", aSecond(s.perSecond(i.Sent)), s.rates)
	case s.plan.Mode != "hold":
		spark("answered", aSecond(s.perSecond(i.Answered)), s.rates)
	}
	if i.Intended > 0 || i.Waiting > 0 {
		lines = append(lines, liveRow("planned", width, styled{"", aSecond(s.perSecond(i.Intended))}, styled{"", liveCount(i.Waiting) + " waiting"}, styled{"", liveCount(i.Flying) + " in flight"}))
	}
	if i.BytesSent+i.BytesReceived > 0 {
		lines = append(lines, liveRow("bytes", width,
			styled{"", "in " + liveBytes(s.perSecond(i.BytesReceived)) + "/s"}, styled{"", "out " + liveBytes(s.perSecond(i.BytesSent)) + "/s"}))
	}
	if l := i.Latency; l.Count > 0 {
		lines = append(lines, renderLatency(l, width))
		spark("p99", liveTime(l.P99), s.p99s)
	}
	return lines
}

// aSecond writes a rate.
func aSecond(v float64) string { return liveCount(int64(math.Round(v))) + "/s" }

// renderLatency leaves percentiles out where they don't fit, but not the greatest.
func renderLatency(l load.Latency, width int) liveLine {
	all := []styled{
		{"", "p50 " + liveTime(l.P50)}, {"", "p90 " + liveTime(l.P90)}, {"", "p99 " + liveTime(l.P99)},
		{"", "p99.9 " + liveTime(l.P999)}, {"", "max " + liveTime(l.Max)},
	}
	for i := range all {
		all[i].text = fmt.Sprintf("%-10s", all[i].text)
	}
	all[3].text = fmt.Sprintf("%-12s", all[3].text)
	switch {
	case width < 50:
		all = []styled{all[0], all[4]} // the next line has the 99th
	case width < labelWidth+60:
		all = []styled{all[0], all[2], all[4]}
	}
	return liveRow("latency", width, all...)
}

func renderErrors(s *liveState, width int) liveLine {
	names, more := s.topErrors(3)
	if len(names) == 0 {
		return nil
	}
	var items []styled
	for _, name := range names {
		items = append(items, styled{red, liveCount(s.errors[name]) + " " + name})
	}
	if more > 0 {
		items = append(items, styled{"", fmt.Sprintf("and %d more", more)})
	}
	return liveRow("errors", width, items...)
}

// renderProcesses is empty where nothing is known of them.
func renderProcesses(s *liveState, width int) []liveLine {
	var lines []liveLine
	own := s.last.Generator
	if own.CPU > 0 || own.Resident > 0 {
		share := fmt.Sprintf("%.0f%% of %d CPU", 100*s.share(), s.generatorCPUs())
		lines = append(lines, liveRow("generator", width, append([]styled{{"", fmt.Sprintf("%-13s", share)}}, memoryOf(own, s.plan.Generator, s.last.Open)...)...))
	}
	if server := s.last.Server; server != nil {
		share := fmt.Sprintf("%.0f%% of a CPU", 100*s.cpus(*server))
		lines = append(lines, liveRow("server", width, append([]styled{{"", fmt.Sprintf("%-13s", share)}}, memoryOf(*server, s.plan.Server, s.last.Open)...)...))
	}
	return lines
}

// memoryOf is what a process has, and what it has more for each connection.
func memoryOf(u load.Usage, before *load.Usage, open int64) []styled {
	var items []styled
	if u.Resident > 0 {
		items = append(items, styled{"", fmt.Sprintf("%-8s", liveBytes(float64(u.Resident)))})
		if each := u.PerConnection(before, open); each > 0 {
			items = append(items, styled{"", liveBytes(float64(each)) + " a connection"})
		}
	}
	if u.Descriptors > 0 {
		items = append(items, styled{"", liveCount(int64(u.Descriptors)) + " descriptors"})
	}
	return items
}

// generatorCPUs is how many processors the generator can keep busy.
func (s *liveState) generatorCPUs() int {
	cpus := min(runtime.NumCPU(), runtime.GOMAXPROCS(0))
	if s.plan.Loops > 0 {
		cpus = min(s.plan.Loops, cpus)
	}
	return cpus
}

// share is the share of them that it used in the last interval, as
// Result.CPUShare.
func (s *liveState) share() float64 { return s.cpus(s.last.Generator) / float64(s.generatorCPUs()) }

// liveBusy is the share from which on the generator is called the bottleneck, as
// in Result.GeneratorBound.
const liveBusy = 0.95

// liveStarved is the pressure from which on it makes the figures worth less, as in
// Result.Limits.
const liveStarved = 0.2

// warning says what makes the figures worth less, "" for nothing.
func (s *liveState) warning() string {
	i := s.last
	traffic := i.Stage == "window" || i.Stage == "warm-up"
	switch {
	case traffic && s.plan.Messages == 0 && s.share() >= liveBusy:
		return "the generator is the bottleneck, it uses all of its CPU; use more --loops or another machine"
	case traffic && s.pressure > liveStarved:
		return fmt.Sprintf("the machine is short of processors: programs waited for one %.0f%% of the time; run it on a quiet machine", 100*s.pressure)
	case traffic && i.Waiting > i.Intended && i.Intended > 0:
		return "what is planned is not sent: more than an interval's messages wait for the server"
	}
	return ""
}

// liveWrap is a text in as many lines as it takes.
func liveWrap(label, text string, width int) []liveLine {
	var lines []liveLine
	words := ""
	end := func() {
		lines = append(lines, liveLine{{strong, fmt.Sprintf("%-*s", labelWidth, label) + words}})
		label, words = "", ""
	}
	for word := range strings.FieldsSeq(text) {
		if words != "" && labelWidth+len(words)+1+len(word) > width {
			end()
		}
		if words != "" {
			words += " "
		}
		words += word
	}
	end()
	return lines
}

// renderPercentiles draws the distribution of the last interval: a bar for each
// percentile, each of the same length more for the same factor.
func renderPercentiles(l load.Latency, width int) []liveLine {
	if l.Count == 0 || l.Max <= 0 {
		return nil
	}
	lines := []liveLine{{}, {{dim, "Latency of the last interval, on a logarithmic scale"}}}
	least := max(l.Min, 1)
	for _, p := range []struct {
		name string
		at   time.Duration
	}{{"50%", l.P50}, {"75%", l.P75}, {"90%", l.P90}, {"95%", l.P95}, {"99%", l.P99}, {"99.9%", l.P999}, {"99.99%", l.P9999}, {"100%", l.Max}} {
		share := shareOf(math.Log(float64(max(p.at, least))/float64(least)), math.Log(float64(l.Max)/float64(least)))
		full, _ := liveBar(share, max(min(barWidth, width-labelWidth-10), 1))
		lines = append(lines, liveLine{{dim, fmt.Sprintf("%*s  ", labelWidth-2, p.name)}, {cyan, full}, {"", " " + liveTime(p.at)}})
	}
	return lines
}
