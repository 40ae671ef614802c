package main

import (
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/myriad-go/myriad/internal/sample"
	"github.com/myriad-go/myriad/load"
)

// liveEvery is the least time between two drawings: ten a second.
const liveEvery = 100 * time.Millisecond

// The smallest screen that the view is drawn on; on a smaller one it is a line.
const (
	liveMinWidth  = 40
	liveMinHeight = 8
)

// liveView shows on a terminal how a run of the load generator goes. It is drawn in
// place, over what it drew before, and takes itself away at the end, so that what
// is above it stays in the terminal's memory and what is written next stands where
// it was. Nothing else should write to the terminal between two events.
//
// The cursor is hidden only while a drawing is written, which is one write: so it is
// there whatever ends the process.
//
// It belongs to the goroutine that calls observe; close may be called when that is
// over.
type liveView struct {
	out    io.Writer
	screen func() screen // what there is to draw on now
	now    func() time.Time
	// stalled is for how long programs of the machine have waited for a
	// processor; nil or an error where that isn't known.
	stalled func() (time.Duration, error)

	state liveState
	began time.Time
	drawn time.Time // when it was last drawn
	shown []int     // the widths of the lines that stand on the terminal
	line  int       // the width of the single line that does

	stalledThen time.Duration // at the end of the last interval
}

// screen is what there is to draw on.
type screen struct {
	width, height int
	colour        bool
	dumb          bool // it doesn't know how to move the cursor
}

// newLiveView draws on a terminal.
func newLiveView(f *os.File) *liveView {
	// Without a name it isn't known to move the cursor; so it is on Windows.
	kind := os.Getenv("TERM")
	dumb := kind == "" || kind == "dumb"
	colour := os.Getenv("NO_COLOR") == "" // no-color.org: any text means none
	size := func() screen {
		width, height, err := term.GetSize(int(f.Fd()))
		if err != nil || width <= 0 || height <= 0 {
			width, height = 80, 24
		}
		return screen{width: width, height: height, colour: colour, dumb: dumb}
	}
	return &liveView{out: f, screen: size, now: time.Now, stalled: readStalled}
}

// readStalled is for how long programs of the machine have waited for a processor.
func readStalled() (time.Duration, error) {
	taken, err := sample.Take(sample.MachineCPU)
	return taken.Machine.Stalled, err
}

// observe is for load.Config.Observe.
func (v *liveView) observe(e load.Event) {
	now := v.now()
	if v.began.IsZero() || e.Phase == load.Began {
		v.began, v.drawn, v.state = now, time.Time{}, liveState{}
	}
	v.state.add(e, now.Sub(v.began))
	if e.Phase == load.Began || e.Phase == load.Progress {
		v.feelPressure()
	}
	switch {
	case e.Phase == load.Done:
		v.close()
	case now.Sub(v.drawn) >= liveEvery:
		v.drawn = now
		v.draw()
	}
}

// feelPressure looks what the machine's programs have waited since the last time.
func (v *liveView) feelPressure() {
	if v.stalled == nil {
		return
	}
	stalled, err := v.stalled()
	if err != nil {
		return
	}
	v.state.pressure = v.state.perSecond(int64(stalled-v.stalledThen)) / float64(time.Second)
	v.stalledThen = stalled
}

// close takes what was drawn away. It may be called more than once.
func (v *liveView) close() {
	if text := v.erase(); text != "" {
		_, _ = io.WriteString(v.out, text) // nobody is left to tell
	}
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

// draw puts the state in place of what is there.
func (v *liveView) draw() {
	on := v.screen()
	if on.dumb || on.width < liveMinWidth || on.height < liveMinHeight {
		v.drawLine(on)
		return
	}
	text := ""
	if v.line > 0 {
		text = v.erase()
	}
	lines := render(&v.state, on)
	lines = lines[:min(len(lines), on.height-1)] // the cursor has one, too
	var b strings.Builder
	b.WriteString(hideCursor + text + "\r" + strings.Repeat(up, v.rows(on.width)))
	v.shown = v.shown[:0]
	for _, l := range lines {
		b.WriteString(eraseLine + l.fit(on.width, on.colour) + "\n")
		v.shown = append(v.shown, l.width(on.width))
	}
	b.WriteString(eraseBelow + showCursor)
	_, _ = io.WriteString(v.out, b.String()) // nobody is left to tell
}

// drawLine puts a line there.
func (v *liveView) drawLine(on screen) {
	old := v.erase()
	text := liveLine{{"", v.state.oneLine()}}.fit(max(on.width-1, 0), false)
	v.line = utf8.RuneCountInString(text)
	_, _ = io.WriteString(v.out, old+text) // nobody is left to tell
}

// erase is what takes away what stands there.
func (v *liveView) erase() string {
	text := ""
	if v.line > 0 {
		text = "\r" + strings.Repeat(" ", v.line) + "\r"
	}
	if rows := v.rows(v.screen().width); rows > 0 {
		text += "\r" + strings.Repeat(up+eraseLine, rows)
	}
	v.line, v.shown = 0, v.shown[:0]
	return text
}

// rows is how many the lines take that stand there. Those that a narrower terminal
// has broken take more than one.
func (v *liveView) rows(width int) int {
	rows := 0
	for _, w := range v.shown {
		rows += max(1, (w+width-1)/max(width, 1))
	}
	return rows
}
