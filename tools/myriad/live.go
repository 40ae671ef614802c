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
	minRedrawInterval  = 100 * time.Millisecond
	sparklineIntervals = 240
	// maxErrorCauses limits the number of error causes that are counted separately.
	maxErrorCauses = 64
	// starvedWarningShare is the share of time waiting for a processor above which the view shows a warning.
	starvedWarningShare = 0.2
	labelWidth          = 11
)

// terminalView shows the progress of a load run on a terminal. eraseDrawnLines must be called before other output. Only
// the goroutine that runs the load may use a terminalView.
type terminalView struct {
	out        io.Writer
	screenSize func() screen // returns the current size of the terminal
	now        func() time.Time
	// cpuStallTime returns the total time in which some program on the machine has waited for a processor.
	cpuStallTime func() time.Duration

	plan          load.Plan
	snapshot      load.Snapshot
	lastInterval  load.Interval // latest interval
	stage         string
	stageStart    time.Time
	errors        map[string]int64
	rateHistory   []float64     // rates of the intervals
	p99History    []float64     // 99th percentiles of the intervals, in seconds
	lastStallTime time.Duration // cpuStallTime at the end of the last interval
	stallShare    float64       // share of the last interval in which programs waited

	start, lastDraw time.Time
	drawnWidths     []int // widths of the lines on the terminal
}

type screen struct {
	width, height int
	colour        bool
}

func newTerminalView(terminal *os.File) *terminalView {
	return &terminalView{out: terminal, now: time.Now, screenSize: func() screen {
		width, height, err := term.GetSize(int(terminal.Fd()))
		if err != nil || width <= 0 || height <= 0 {
			width, height = 80, 24
		}
		return screen{width, height, os.Getenv("NO_COLOR") == ""}
	}, cpuStallTime: func() time.Duration {
		taken, _ := sample.TakeSample(sample.MachineCPU)
		return taken.Machine.Stalled
	}}
}

// updateAndThrottleRedraw updates the view with the event e. It redraws the view at most once per minRedrawInterval. At
// the end of the run, it erases the view.
func (v *terminalView) updateAndThrottleRedraw(e load.Event) {
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
		v.enterStageIfChanged("window", now)
	}
	if e.Interval != nil {
		v.addIntervalToHistory(*e.Interval, now)
	}
	switch {
	case e.Phase == load.Done:
		v.eraseDrawnLines()
	case now.Sub(v.lastDraw) >= minRedrawInterval:
		v.lastDraw = now
		v.redrawLines()
	}
}

func (v *terminalView) enterStageIfChanged(stage string, now time.Time) {
	if stage != v.stage {
		v.stage, v.stageStart = stage, now
	}
}

func (v *terminalView) addIntervalToHistory(i load.Interval, now time.Time) {
	v.lastInterval = i
	v.enterStageIfChanged(i.Stage, now)
	load.AddCauses(v.errors, i.Errors, maxErrorCauses)
	waited := v.cpuStallTime()
	v.stallShare, v.lastStallTime = v.lastInterval.PerSecond(int64(waited-v.lastStallTime))/1e9, waited
	count := i.Answered
	if v.plan.NoReply {
		count = i.Sent
	}
	v.rateHistory = appendDroppingOldest(v.rateHistory, v.lastInterval.PerSecond(count))
	v.p99History = appendDroppingOldest(v.p99History, i.Latency.P99.Seconds())
}

func appendDroppingOldest(history []float64, v float64) []float64 {
	if len(history) == sparklineIntervals {
		history = slices.Delete(history, 0, 1)
	}
	return append(history, v)
}

type terminalLine struct {
	label, text string
	isFault     bool // shown in red
}

// formatLinesByImportance returns the lines of the view, the most important lines first.
func (v *terminalView) formatLinesByImportance(width int) (all []terminalLine) {
	i := &v.lastInterval
	add := func(label, format string, args ...any) {
		all = append(all, terminalLine{label: label, text: fmt.Sprintf(format, args...)})
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
		add(label, "%-12s %s", format.Whole(v.rateHistory[len(v.rateHistory)-1])+"/s", sparklineOfLatest(v.rateHistory, width-labelWidth-13))
	}
	if i.Intended > 0 || i.Waiting > 0 {
		add("planned", "%s/s, %s waiting, %s in flight", format.Whole(v.lastInterval.PerSecond(i.Intended)), format.Count(i.Waiting), format.Count(i.InFlight))
	}
	if i.BytesSent+i.BytesReceived > 0 {
		add("bytes", "in %s/s, out %s/s", format.Bytes(v.lastInterval.PerSecond(i.BytesReceived)), format.Bytes(v.lastInterval.PerSecond(i.BytesSent)))
	}
	if l := i.Latency; l.Count > 0 {
		add("latency", "p50 %s, p90 %s, p99 %s, p99.9 %s, max %s", format.Latency(l.P50), format.Latency(l.P90), format.Latency(l.P99), format.Latency(l.P999), format.Latency(l.Max))
		add("p99", "%-12s %s", format.Latency(l.P99), sparklineOfLatest(v.p99History, width-labelWidth-13))
	}
	faults := len(all)
	if len(v.errors) > 0 {
		add("errors", "%s", format.Tally(v.errors))
	}
	if v.stallShare > starvedWarningShare {
		add("warning", "programs waited for a processor for %s of the time: run it on a quiet machine", format.Percent(v.stallShare))
	}
	if i.Waiting > i.Intended && i.Intended > 0 {
		add("warning", "sending is behind schedule: more than one interval's messages wait for the server")
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

func (v *terminalView) formatStageProgress(width int) string {
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

func (v *terminalView) formatUsage(usage, usageBeforeLoad *load.Usage) string {
	text := format.Percent(v.lastInterval.PerSecond(int64(usage.CPU()))/1e9) + " of a CPU"
	if usage.RSS > 0 {
		text += ", " + format.Bytes(float64(usage.RSS))
	}
	if each := usage.MemoryGrowthPerConn(usageBeforeLoad, v.lastInterval.Open); each > 0 {
		text += ", " + format.Bytes(float64(each)) + " a connection"
	}
	if usage.Descriptors > 0 {
		text += ", " + format.Count(usage.Descriptors) + " descriptors"
	}
	return text
}

// sparklineOfLatest draws the most recent values as a row of bars, one per column.
func sparklineOfLatest(values []float64, width int) string {
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

// Terminal control sequences. None erases the whole screen, because tmux would copy the screen to its scrollback.
const (
	hideCursor = "\x1b[?25l"
	showCursor = "\x1b[?25h"
	cursorUp   = "\x1b[A"
	eraseLine  = "\x1b[2K"
	eraseBelow = "\x1b[J"
)

func (v *terminalView) redrawLines() {
	size := v.screenSize()
	lines := v.formatLinesByImportance(size.width)
	var b strings.Builder
	b.WriteString(hideCursor + v.takeEraseSequence(size) + "\r")
	for _, l := range lines[:min(len(lines), max(size.height-1, 0))] { // one row is for the cursor
		text, width := l.renderForScreen(size)
		b.WriteString(eraseLine + text + "\n")
		v.drawnWidths = append(v.drawnWidths, width)
	}
	v.write(b.String() + eraseBelow + showCursor)
}

func (v *terminalView) write(text string) { _, _ = io.WriteString(v.out, text) } // there is nobody to report to

// renderForScreen returns the line as terminal output. It cuts the line to the width of the screen. width is the number
// of columns that the line takes.
func (l terminalLine) renderForScreen(on screen) (text string, width int) {
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

func (v *terminalView) takeEraseSequence(on screen) (text string) {
	for _, w := range v.drawnWidths {
		text += strings.Repeat(cursorUp+eraseLine, max(1, (w+on.width-1)/max(on.width, 1)))
	}
	v.drawnWidths = nil
	return text
}

func (v *terminalView) eraseDrawnLines() {
	if text := v.takeEraseSequence(v.screenSize()); text != "" {
		v.write("\r" + text)
	}
}
