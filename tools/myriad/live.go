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
	// liveEvery is the least time between two drawings.
	liveEvery = 100 * time.Millisecond
	// liveHistory is how many intervals a sparkline has.
	liveHistory = 240
	// liveCauses bounds the causes of errors that are counted apart; others count as
	// "other".
	liveCauses = 64
	// liveStarved is the share of time in which programs waited for a processor from which on
	// the view warns, as the result does.
	liveStarved = 0.2
	labelWidth  = 11
)

// liveView shows on a terminal how a run of the load generator goes. It is drawn in
// place, over what it drew before, and takes itself away at the end. Nothing else should
// write to the terminal between two events. The cursor is hidden only while a drawing is
// written, which is one write.
//
// It belongs to the goroutine that calls observe; close may be called when that is over.
type liveView struct {
	out    io.Writer
	screen func() screen // what there is to draw on now
	now    func() time.Time
	// stalled is for how long so far some program of the machine has waited for a processor.
	stalled func() time.Duration

	plan     load.Plan
	snapshot load.Snapshot
	last     load.Interval // the latest
	stage    string
	since    time.Time // when the stage began
	errors   map[string]int64
	rates    []float64     // of the intervals
	p99s     []float64     // of the intervals, in seconds
	waited   time.Duration // what stalled said at the end of the last interval
	starved  float64       // the share of the last interval that it was

	began, drawn time.Time
	shown        []int // the widths of the lines that stand on the terminal
}

// screen is what there is to draw on.
type screen struct {
	width, height int
	colour        bool
}

// newLiveView makes a view on a terminal.
func newLiveView(f *os.File) *liveView {
	return &liveView{out: f, now: time.Now, screen: func() screen {
		width, height, err := term.GetSize(int(f.Fd()))
		if err != nil || width <= 0 || height <= 0 {
			width, height = 80, 24
		}
		return screen{width, height, os.Getenv("NO_COLOR") == ""}
	}, stalled: func() time.Duration {
		taken, _ := sample.Take(sample.MachineCPU)
		return taken.Machine.Stalled
	}}
}

// observe is for load.Config.Observe.
func (v *liveView) observe(e load.Event) {
	now := v.now()
	if e.Phase == load.Began || v.began.IsZero() {
		v.began, v.since, v.stage = now, now, "connect"
		v.errors, v.rates, v.p99s, v.waited = make(map[string]int64), nil, nil, v.stalled()
	}
	v.snapshot = e.Snapshot
	if e.Plan != nil {
		v.plan = *e.Plan
	}
	if e.Phase == load.Measuring {
		v.enter("window", now)
	}
	if e.Interval != nil {
		v.add(*e.Interval, now)
	}
	switch {
	case e.Phase == load.Done:
		v.close()
	case now.Sub(v.drawn) >= liveEvery:
		v.drawn = now
		v.draw()
	}
}

func (v *liveView) enter(stage string, now time.Time) {
	if stage != v.stage {
		v.stage, v.since = stage, now
	}
}

func (v *liveView) add(i load.Interval, now time.Time) {
	v.last = i
	v.enter(i.Stage, now)
	load.AddCauses(v.errors, i.Errors, liveCauses)
	waited := v.stalled()
	v.starved, v.waited = v.last.PerSecond(int64(waited-v.waited))/1e9, waited
	count := i.Answered
	if v.plan.NoReply {
		count = i.Sent
	}
	v.rates = remember(v.rates, v.last.PerSecond(count))
	v.p99s = remember(v.p99s, i.Latency.P99.Seconds())
}

// remember appends a value and forgets what is older than liveHistory.
func remember(list []float64, v float64) []float64 {
	if len(list) == liveHistory {
		list = slices.Delete(list, 0, 1)
	}
	return append(list, v)
}

// liveLine is a line of the view. A fault is red.
type liveLine struct {
	label, text string
	fault       bool
}

// lines are what there is to see, the most important first, on a screen of that width.
func (v *liveView) lines(width int) (all []liveLine) {
	i := &v.last
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
	add("myriad "+command, "%s  %s  %s  %s", target, v.plan.Mode, v.plan.Model, format.Elapsed(v.now().Sub(v.began)))
	add(v.stage, "%s", v.progress(width))
	add("open", "%s of %s, %s/s, %s failed, %s lost", format.Count(v.snapshot.Open), format.Count(v.plan.Connections),
		format.Whole(v.last.PerSecond(i.Opened)), format.Count(v.snapshot.Failed), format.Count(i.Lost))
	if len(v.rates) > 0 && (v.snapshot.Sent > 0 || i.Intended > 0) {
		label := "answered"
		if v.plan.NoReply {
			label = "sent"
		}
		add(label, "%-12s %s", format.Whole(v.rates[len(v.rates)-1])+"/s", sparkline(v.rates, width-labelWidth-13))
	}
	if i.Intended > 0 || i.Waiting > 0 {
		add("planned", "%s/s, %s waiting, %s in flight", format.Whole(v.last.PerSecond(i.Intended)), format.Count(i.Waiting), format.Count(i.InFlight))
	}
	if i.BytesSent+i.BytesReceived > 0 {
		add("bytes", "in %s/s, out %s/s", format.Bytes(v.last.PerSecond(i.BytesReceived)), format.Bytes(v.last.PerSecond(i.BytesSent)))
	}
	if l := i.Latency; l.Count > 0 {
		add("latency", "p50 %s, p90 %s, p99 %s, p99.9 %s, max %s", format.Latency(l.P50), format.Latency(l.P90), format.Latency(l.P99), format.Latency(l.P999), format.Latency(l.Max))
		add("p99", "%-12s %s", format.Latency(l.P99), sparkline(v.p99s, width-labelWidth-13))
	}
	faults := len(all)
	if len(v.errors) > 0 {
		add("errors", "%s", format.Tally(v.errors))
	}
	if v.starved > liveStarved {
		add("warning", "programs waited for a processor for %s of the time: run it on a quiet machine", format.Percent(v.starved))
	}
	if i.Waiting > i.Intended && i.Intended > 0 {
		add("warning", "what is planned is not sent: more than an interval's messages wait for the server")
	}
	for i := range all[faults:] {
		all[faults+i].fault = true
	}
	add("generator", "%s", v.usage(&i.Generator, v.plan.Generator))
	if i.Server != nil {
		add("server", "%s", v.usage(i.Server, v.plan.Server))
	}
	return all
}

// progress is how far the stage is, as a bar where that is known.
func (v *liveView) progress(width int) string {
	in := v.now().Sub(v.since)
	share, text := -1.0, format.Elapsed(in)
	switch d, n := v.plan.Duration, v.plan.Messages*max(int64(v.plan.Connections)-v.snapshot.Failed, 1); {
	case v.stage == "connect" && v.plan.Connections > 0:
		share = float64(v.snapshot.Open+v.snapshot.Failed) / float64(v.plan.Connections)
	case v.stage == "window" && n > 0:
		share, text = float64(v.snapshot.Answered)/float64(n), format.Count(v.snapshot.Answered)+" of "+format.Count(n)+" messages"
	case v.stage == "window" && d > 0 && d < 24*time.Hour:
		share, text = in.Seconds()/d.Seconds(), format.Elapsed(min(in, d))+" of "+format.Elapsed(d)
	}
	room := min(50, width-labelWidth-utf8.RuneCountInString(text)-2)
	if share < 0 || room < 5 {
		return text
	}
	full := int(min(share, 1) * float64(room))
	return strings.Repeat("█", full) + strings.Repeat("░", room-full) + "  " + text
}

// usage is what a process uses, and what memory it has more for each connection.
func (v *liveView) usage(u, before *load.Usage) string {
	text := format.Percent(v.last.PerSecond(int64(u.CPU()))/1e9) + " of a CPU"
	if u.RSS > 0 {
		text += ", " + format.Bytes(float64(u.RSS))
	}
	if each := u.PerConnection(before, v.last.Open); each > 0 {
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
	most := slices.Max(append([]float64{0}, values...))
	drawn := make([]rune, len(values))
	for i, v := range values {
		drawn[i] = bars[0]
		if most > 0 {
			drawn[i] = bars[int(v/most*float64(len(bars)-1)+0.5)]
		}
	}
	return string(drawn)
}

// What moves the cursor and erases. The screen is never erased from its first row
// on: tmux would take that for the clearing of the screen, and keep a copy of it
// among the lines that have scrolled away.
const (
	hideCursor = "\x1b[?25l"
	showCursor = "\x1b[?25h"
	up         = "\x1b[A"
	eraseLine  = "\x1b[2K"
	eraseBelow = "\x1b[J"
)

// draw puts the view in place of what is there.
func (v *liveView) draw() {
	on := v.screen()
	lines := v.lines(on.width)
	var b strings.Builder
	b.WriteString(hideCursor + v.erase(on) + "\r")
	for _, l := range lines[:min(len(lines), max(on.height-1, 0))] { // the cursor has a row, too
		text, width := l.fit(on)
		b.WriteString(eraseLine + text + "\n")
		v.shown = append(v.shown, width)
	}
	v.write(b.String() + eraseBelow + showCursor)
}

func (v *liveView) write(text string) { _, _ = io.WriteString(v.out, text) } // nobody is left to tell

// fit is the line in the columns of a screen, and how many it has. What could move the
// cursor, or take two columns, is shown as "?".
func (l liveLine) fit(on screen) (text string, columns int) {
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
	if text = string(runes); l.fault && on.colour {
		text = "\x1b[31m" + text + "\x1b[0m"
	}
	return text, len(runes)
}

// erase is what takes away the lines that stand there, of which those that a narrower
// terminal has broken take more than one row.
func (v *liveView) erase(on screen) (text string) {
	for _, w := range v.shown {
		text += strings.Repeat(up+eraseLine, max(1, (w+on.width-1)/max(on.width, 1)))
	}
	v.shown = nil
	return text
}

// close takes what was drawn away. It may be called more than once.
func (v *liveView) close() {
	if text := v.erase(v.screen()); text != "" {
		v.write("\r" + text)
	}
}
