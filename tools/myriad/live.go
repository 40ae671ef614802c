package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/tools/internal/sample"
	"github.com/myriad-go/myriad/tools/load"
)

const (
	// minRedrawInterval is the least time between two drawings.
	minRedrawInterval = 100 * time.Millisecond
	// sparklineIntervals is how many intervals a sparkline has.
	sparklineIntervals = 240
	// maxErrorCauses bounds the causes of errors that are counted apart; others count as
	// "other".
	maxErrorCauses = 64
	// starvedWarningShare is the share of time in which programs waited for a processor from which on
	// the view warns, as the result does.
	starvedWarningShare = 0.2
	labelWidth          = 11
)

// liveView shows on a terminal how a run of the load generator goes. It is drawn in
// place, over what it drew before, and takes itself away at the end. Nothing else should
// write to the terminal between two events. The cursor is hidden only while a drawing is
// written, which is one write.
//
// It belongs to the goroutine that calls observe; close may be called when that is over.
type liveView struct {
	out        io.Writer
	screenSize func() screen // what there is to draw on now
	now        func() time.Time
	// cpuStallTime is for how long so far some program of the machine has waited for a processor.
	cpuStallTime func() time.Duration

	plan          load.Plan
	snapshot      load.Snapshot
	lastInterval  load.Interval // the latest
	stage         string
	stageStart    time.Time // when the stage began
	errors        map[string]int64
	rateHistory   []float64     // of the intervals
	p99History    []float64     // of the intervals, in seconds
	lastStallTime time.Duration // what stalled said at the end of the last interval
	stallShare    float64       // the share of the last interval that it was

	start, lastDraw time.Time
	drawnWidths     []int // the widths of the lines that stand on the terminal
}

// screen is what there is to draw on.
type screen struct {
	width, height int
	colour        bool
}

// newLiveView makes a view on a terminal.
func newLiveView(f *os.File) *liveView {
	return &liveView{out: f, now: time.Now, screenSize: func() screen {
		width, height, err := term.GetSize(int(f.Fd()))
		if err != nil || width <= 0 || height <= 0 {
			width, height = 80, 24
		}
		return screen{width, height, os.Getenv("NO_COLOR") == ""}
	}, cpuStallTime: func() time.Duration {
		taken, _ := sample.Take(sample.MachineCPU)
		return taken.Machine.Stalled
	}}
}

// handleEvent is for load.Config.Observe.
func (v *liveView) handleEvent(e load.Event) {
	now := v.now()
	if e.Phase == load.Began || v.start.IsZero() {
		v.start, v.stageStart, v.stage = now, now, "connect"
		v.errors, v.rateHistory, v.p99History, v.lastStallTime = make(map[string]int64), nil, nil, v.cpuStallTime()
	}
	v.snapshot = e.Snapshot
	if e.Plan != nil {
		v.plan = *e.Plan
	}
	if e.Phase == load.Measuring {
		v.setStage("window", now)
	}
	if e.Interval != nil {
		v.addInterval(*e.Interval, now)
	}
	switch {
	case e.Phase == load.Done:
		v.erase()
	case now.Sub(v.lastDraw) >= minRedrawInterval:
		v.lastDraw = now
		v.redraw()
	}
}

func (v *liveView) setStage(stage string, now time.Time) {
	if stage != v.stage {
		v.stage, v.stageStart = stage, now
	}
}

func (v *liveView) addInterval(i load.Interval, now time.Time) {
	v.lastInterval = i
	v.setStage(i.Stage, now)
	load.AddCauses(v.errors, i.Errors, maxErrorCauses)
	waited := v.cpuStallTime()
	v.stallShare, v.lastStallTime = v.lastInterval.PerSecond(int64(waited-v.lastStallTime))/1e9, waited
	count := i.Answered
	if v.plan.NoReply {
		count = i.Sent
	}
	v.rateHistory = appendToHistory(v.rateHistory, v.lastInterval.PerSecond(count))
	v.p99History = appendToHistory(v.p99History, i.Latency.P99.Seconds())
}

// appendToHistory appends a value and forgets what is older than sparklineIntervals.
func appendToHistory(history []float64, v float64) []float64 {
	if len(history) == sparklineIntervals {
		history = slices.Delete(history, 0, 1)
	}
	return append(history, v)
}

// liveLine is a line of the view. A fault is red.
type liveLine struct {
	label, text string
	isFault     bool
}

// formatLines are what there is to see, the most important first, on a screen of that width.
func (v *liveView) formatLines(width int) (all []liveLine) {
	i := &v.lastInterval
	add := func(label, format string, args ...any) {
		all = append(all, liveLine{label: label, text: fmt.Sprintf(format, args...)})
	}
	command, target := "load", ""
	if v.plan.Mode == "hold" {
		command = "hold"
	}
	if len(v.plan.Targets) > 0 {
		target = v.plan.Targets[0]
	}
	add("myriad "+command, "%s  %s  %s  %s", target, v.plan.Mode, v.plan.Model, format.Elapsed(v.now().Sub(v.start)))
	add(v.stage, "%s", v.formatStageProgress(width))
	add("open", "%s of %s, %s/s, %s failed, %s lost", format.Count(v.snapshot.Open), format.Count(v.plan.Connections),
		format.Whole(v.lastInterval.PerSecond(i.Opened)), format.Count(v.snapshot.Failed), format.Count(i.Lost))
	if len(v.rateHistory) > 0 && (v.snapshot.Sent > 0 || i.Intended > 0) {
		label := "answered"
		if v.plan.NoReply {
			label = "sent"
		}
		add(label, "%-12s %s", format.Whole(v.rateHistory[len(v.rateHistory)-1])+"/s", sparkline(v.rateHistory, width-labelWidth-13))
	}
	if i.Intended > 0 || i.Waiting > 0 {
		add("planned", "%s/s, %s waiting, %s in flight", format.Whole(v.lastInterval.PerSecond(i.Intended)), format.Count(i.Waiting), format.Count(i.InFlight))
	}
	if i.BytesSent+i.BytesReceived > 0 {
		add("bytes", "in %s/s, out %s/s", format.Bytes(v.lastInterval.PerSecond(i.BytesReceived)), format.Bytes(v.lastInterval.PerSecond(i.BytesSent)))
	}
	if l := i.Latency; l.Count > 0 {
		add("latency", "p50 %s, p90 %s, p99 %s, p99.9 %s, max %s", format.Latency(l.P50), format.Latency(l.P90), format.Latency(l.P99), format.Latency(l.P999), format.Latency(l.Max))
		add("p99", "%-12s %s", format.Latency(l.P99), sparkline(v.p99History, width-labelWidth-13))
	}
	faults := len(all)
	if len(v.errors) > 0 {
		add("errors", "%s", format.Tally(v.errors))
	}
	if v.stallShare > starvedWarningShare {
		add("warning", "programs waited for a processor for %s of the time: run it on a quiet machine", format.Percent(v.stallShare))
	}
	if i.Waiting > i.Intended && i.Intended > 0 {
		add("warning", "what is planned is not sent: more than an interval's messages wait for the server")
	}
	for i := range all[faults:] {
		all[faults+i].isFault = true
	}
	add("generator", "%s", v.formatUsage(&i.Generator, v.plan.Generator))
	if i.Server != nil {
		add("server", "%s", v.formatUsage(i.Server, v.plan.Server))
	}
	return all
}

// formatStageProgress is how far the stage is, as a bar where that is known.
func (v *liveView) formatStageProgress(width int) string {
	in := v.now().Sub(v.stageStart)
	share, text := -1.0, format.Elapsed(in)
	switch d, n := v.plan.Duration, v.plan.Messages*max(int64(v.plan.Connections)-v.snapshot.Failed, 1); {
	case v.stage == "connect" && v.plan.Connections > 0:
		share = float64(v.snapshot.Open+v.snapshot.Failed) / float64(v.plan.Connections)
	case v.stage == "window" && n > 0:
		share, text = float64(v.snapshot.Answered)/float64(n), format.Count(v.snapshot.Answered)+" of "+format.Count(n)+" messages"
	case v.stage == "window" && d > 0 && d < 24*time.Hour:
		share, text = in.Seconds()/d.Seconds(), format.Elapsed(min(in, d))+" of "+format.Elapsed(d)
	}
	barWidth := min(50, width-labelWidth-utf8.RuneCountInString(text)-2)
	if share < 0 || barWidth < 5 {
		return text
	}
	full := int(min(share, 1) * float64(barWidth))
	return strings.Repeat("█", full) + strings.Repeat("░", barWidth-full) + "  " + text
}

// formatUsage is what a process uses, and what memory it has more for each connection.
func (v *liveView) formatUsage(u, before *load.Usage) string {
	text := format.Percent(v.lastInterval.PerSecond(int64(u.CPU()))/1e9) + " of a CPU"
	if u.RSS > 0 {
		text += ", " + format.Bytes(float64(u.RSS))
	}
	if each := u.PerConnection(before, v.lastInterval.Open); each > 0 {
		text += ", " + format.Bytes(float64(each)) + " a connection"
	}
	if u.Descriptors > 0 {
		text += ", " + format.Count(u.Descriptors) + " descriptors"
	}
	return text
}

// sparkline draws the last of the values, each a column, from 0 to the greatest of them.
func sparkline(values []float64, width int) string {
	values = values[max(len(values)-max(width, 0), 0):]
	bars := []rune("▁▂▃▄▅▆▇█")
	maximum := slices.Max(append([]float64{0}, values...))
	columns := make([]rune, len(values))
	for i, v := range values {
		columns[i] = bars[0]
		if maximum > 0 {
			columns[i] = bars[int(v/maximum*float64(len(bars)-1)+0.5)]
		}
	}
	return string(columns)
}

// What moves the cursor and erases. The screen is never erased from its first row
// on: tmux would take that for the clearing of the screen, and keep a copy of it
// among the lines that have scrolled away.
const (
	hideCursor = "\x1b[?25l"
	showCursor = "\x1b[?25h"
	cursorUp   = "\x1b[A"
	eraseLine  = "\x1b[2K"
	eraseBelow = "\x1b[J"
)

// redraw puts the view in place of what is there.
func (v *liveView) redraw() {
	size := v.screenSize()
	lines := v.formatLines(size.width)
	var b strings.Builder
	b.WriteString(hideCursor + v.eraseSequence(size) + "\r")
	for _, l := range lines[:min(len(lines), max(size.height-1, 0))] { // the cursor has a row, too
		text, width := l.renderTo(size)
		b.WriteString(eraseLine + text + "\n")
		v.drawnWidths = append(v.drawnWidths, width)
	}
	v.write(b.String() + eraseBelow + showCursor)
}

func (v *liveView) write(text string) { _, _ = io.WriteString(v.out, text) } // nobody is left to tell

// renderTo is the line in the columns of a screen, and how many it has. What could move the
// cursor, or take two columns, is shown as "?".
func (l liveLine) renderTo(on screen) (text string, columns int) {
	const wide = 0x2e80 // the first characters of East Asia
	runes := []rune(strings.Map(func(r rune) rune {
		if r == utf8.RuneError || r >= wide || !unicode.IsGraphic(r) {
			return '?'
		}
		return r
	}, fmt.Sprintf("%-*s%s", labelWidth, l.label+" ", l.text)))
	if len(runes) > on.width {
		runes = append(runes[:max(on.width-1, 0)], '…')[:on.width]
	}
	if text = string(runes); l.isFault && on.colour {
		text = "\x1b[31m" + text + "\x1b[0m"
	}
	return text, len(runes)
}

// eraseSequence is what takes away the lines that stand there, of which those that a narrower
// terminal has broken take more than one row.
func (v *liveView) eraseSequence(on screen) (text string) {
	for _, w := range v.drawnWidths {
		text += strings.Repeat(cursorUp+eraseLine, max(1, (w+on.width-1)/max(on.width, 1)))
	}
	v.drawnWidths = nil
	return text
}

// erase takes what was drawn away. It may be called more than once.
func (v *liveView) erase() {
	if text := v.eraseSequence(v.screenSize()); text != "" {
		v.write("\r" + text)
	}
}
