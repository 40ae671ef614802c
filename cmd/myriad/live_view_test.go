package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/load"
)

// terminal understands what the view writes, and nothing else: it fails the test
// on any other control.
type terminal struct {
	t      *testing.T
	rows   []string
	row    int // where the cursor is; it is at the beginning of its row or its end
	start  bool
	hidden bool
	writes int
}

func (w *terminal) Write(p []byte) (int, error) {
	w.writes++
	for text := string(p); text != ""; {
		rest, control := "", ""
		if i := strings.IndexAny(text, "\x1b\r\n"); i >= 0 {
			text, rest = text[:i], text[i:]
		}
		w.print(text)
		if rest == "" {
			break
		}
		control, text = w.cut(rest)
		w.control(control)
	}
	if w.hidden {
		w.t.Errorf("the cursor is hidden after %q", p)
	}
	return len(p), nil
}

// cut takes a control off.
func (w *terminal) cut(text string) (control, rest string) {
	if text[0] != '\x1b' {
		return text[:1], text[1:]
	}
	i := strings.IndexAny(text, "AJKhlm")
	if i < 0 {
		w.t.Fatalf("unknown control in %q", text)
	}
	return text[:i+1], text[i+1:]
}

func (w *terminal) print(text string) {
	for len(w.rows) <= w.row {
		w.rows = append(w.rows, "")
	}
	if text == "" {
		return
	}
	if w.start {
		old := []rune(w.rows[w.row])
		w.rows[w.row] = text + string(old[min(len(old), len([]rune(text))):])
	} else {
		w.rows[w.row] += text
	}
	w.start = false
}

func (w *terminal) control(c string) {
	switch {
	case strings.HasSuffix(c, "m"): // a colour
	case c == "\r":
		w.start = true
	case c == "\n":
		w.row, w.start = w.row+1, true
	case c == hideCursor || c == showCursor:
		w.hidden = c == hideCursor
	case c == eraseBelow:
		if w.row == 0 {
			w.t.Error("the screen was erased from its first row on: tmux keeps that in its history")
		}
		w.rows = w.rows[:min(w.row, len(w.rows))]
	case c == eraseLine:
		w.print("")
		w.rows[w.row] = ""
	case c == up:
		if w.row--; w.row < 0 {
			w.t.Fatal("the cursor went above the first row")
		}
	default:
		w.t.Fatalf("unknown control %q", c)
	}
}

// text is what stands on the terminal.
func (w *terminal) text() string { return strings.TrimRight(strings.Join(w.rows, "\n"), " \n") }

// viewOn is a view on a terminal on which something stands already. Its clock
// stands still until it is set.
func viewOn(t *testing.T, on screen) (*liveView, *terminal, *time.Time) {
	t.Helper()
	w := &terminal{t: t, rows: []string{"before"}, row: 1, start: true}
	clock := time.Unix(1e9, 0)
	return &liveView{out: w, screen: func() screen { return on }, now: func() time.Time { return clock }}, w, &clock
}

var wide = screen{width: 80, height: 24}

// TestViewInPlace has what is drawn replaced each time, and taken away in the end.
func TestViewInPlace(t *testing.T) {
	for _, on := range []screen{wide, {width: 80, height: 24, colour: true}, {width: 40, height: 8}, {width: 30, height: 24}, {width: 80, height: 24, dumb: true}} {
		v, w, clock := viewOn(t, on)
		v.observe(load.Event{Phase: load.Began})
		v.observe(load.Event{Phase: load.Progress, Snapshot: load.Snapshot{Open: 7_000}})
		for n := range int64(5) {
			*clock = clock.Add(time.Second)
			v.observe(load.Event{Phase: load.Progress, Snapshot: load.Snapshot{Open: 7_000 + n, Sent: 1, Answered: n}})
			rows := strings.Split(w.text(), "\n")
			if rows[0] != "before" || strings.Count(w.text(), "7,00") != 1 || len(rows) > on.height {
				t.Fatalf("%+v, after %d intervals:\n%s", on, n+1, w.text())
			}
		}
		v.observe(load.Event{Phase: load.Done})
		v.close()
		if w.text() != "before" || w.row != 1 {
			t.Errorf("%+v: at the end, with the cursor in row %d:\n%s", on, w.row, w.text())
		}
	}
}

// TestViewIsCut has no room for all lines: then the last ones are missing.
func TestViewIsCut(t *testing.T) {
	v, w, _ := viewOn(t, screen{width: 100, height: 10})
	v.state = *openLoop()
	v.draw()
	if rows := strings.Split(w.text(), "\n"); len(rows) != 1+9 || !strings.HasPrefix(rows[1], "myriad load") {
		t.Errorf("%d rows on a screen of 10, with one for the cursor:\n%s", len(rows)-1, w.text())
	}
}

// TestViewFromTheFirstRow has nothing above it, and gets shorter.
func TestViewFromTheFirstRow(t *testing.T) {
	v, w, _ := viewOn(t, wide)
	w.rows, w.row = nil, 0
	v.state = *openLoop()
	v.draw()
	v.state = *holding()
	v.draw()
	if rows := strings.Split(w.text(), "\n"); len(rows) != 5 || !strings.HasPrefix(rows[4], "server") {
		t.Errorf("want 5 rows, got:\n%s", w.text())
	}
	v.close()
	if w.text() != "" || w.row != 0 {
		t.Errorf("at the end, with the cursor in row %d:\n%s", w.row, w.text())
	}
}

// TestViewIsNarrowed has the terminal made narrower, which breaks the lines.
func TestViewIsNarrowed(t *testing.T) {
	v, _, _ := viewOn(t, wide)
	v.shown = []int{80, 40, 41, 0}
	for width, want := range map[int]int{80: 4, 40: 6, 20: 10} {
		if got := v.rows(width); got != want {
			t.Errorf("lines of 80, 40, 41 and 0 columns on %d: got %d rows, want %d", width, got, want)
		}
	}
	v.erase()
	if got := v.erase(); got != "" {
		t.Errorf("once more: got %q, want nothing", got)
	}
}

// TestViewBecomesALine has the terminal become too narrow, and wide again.
func TestViewBecomesALine(t *testing.T) {
	v, w, _ := viewOn(t, wide)
	v.state = *holding()
	for _, c := range []struct{ width, rows int }{{80, 1 + 5}, {30, 1 + 1}, {80, 1 + 5}} {
		v.screen = func() screen { return screen{width: c.width, height: 24} }
		for i := range v.shown {
			v.shown[i] = min(v.shown[i], 30) // this terminal doesn't break lines
		}
		v.draw()
		if rows := strings.Split(w.text(), "\n"); len(rows) != c.rows {
			t.Errorf("on %d columns: want %d rows, got:\n%s", c.width, c.rows, w.text())
		}
	}
}

// TestViewIsNotDrawnTooOften has a thousand intervals a second.
func TestViewIsNotDrawnTooOften(t *testing.T) {
	v, w, clock := viewOn(t, wide)
	for range 1000 {
		v.observe(load.Event{Phase: load.Progress, Interval: &load.Interval{}})
		*clock = clock.Add(time.Millisecond)
	}
	if w.writes != 10 {
		t.Errorf("drawn %d times in a second; want 10", w.writes)
	}
	v.observe(load.Event{Phase: load.Done})
	if w.text() != "before" {
		t.Errorf("at the end:\n%s", w.text())
	}
}

// TestViewOfASecondRun begins anew.
func TestViewOfASecondRun(t *testing.T) {
	v, w, clock := viewOn(t, wide)
	for _, mode := range []string{"closed loop", "open loop"} {
		v.observe(load.Event{Phase: load.Began, Plan: &load.Plan{Mode: mode, NoReply: mode == "flood"}})
		if !strings.Contains(w.text(), mode+", 0s") {
			t.Errorf("want a %s at its beginning, got:\n%s", mode, w.text())
		}
		*clock = clock.Add(30 * time.Second)
		v.observe(load.Event{Phase: load.Done})
	}
}

// TestViewOfPressure warns when programs have waited for processors in the last
// interval, whatever there was before.
func TestViewOfPressure(t *testing.T) {
	v, w, clock := viewOn(t, wide)
	stalled, err := time.Hour, error(nil)
	v.stalled = func() (time.Duration, error) { return stalled, err }
	v.observe(load.Event{Phase: load.Began})
	at := time.Duration(0)
	interval := func(more time.Duration) {
		stalled += more
		*clock = clock.Add(2 * time.Second)
		v.observe(load.Event{Phase: load.Progress, Interval: &load.Interval{From: at, To: at + 2*time.Second, Stage: "window"}})
		at += 2 * time.Second
	}
	for _, c := range []struct {
		more  time.Duration
		warns bool
	}{{400 * time.Millisecond, false}, {500 * time.Millisecond, true}, {0, false}} {
		interval(c.more)
		if got := strings.Contains(w.text(), "waited for one 25% of"); got != c.warns {
			t.Errorf("%v of 2s: a warning is %v, want %v:\n%s", c.more, got, c.warns, w.text())
		}
	}
	err = os.ErrNotExist
	interval(time.Hour)
	if strings.Contains(w.text(), "warning") {
		t.Errorf("nothing is known of the pressure, but it warns:\n%s", w.text())
	}
}

// TestNewLiveView looks at the environment; a file that is no terminal has a size
// all the same.
func TestNewLiveView(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, c := range []struct {
		term, noColor string
		dumb, colour  bool
	}{{"xterm", "", false, true}, {"xterm", "1", false, false}, {"dumb", "", true, true}, {"", "", true, true}} {
		t.Setenv("TERM", c.term)
		t.Setenv("NO_COLOR", c.noColor)
		if on := newLiveView(f).screen(); on != (screen{width: 80, height: 24, colour: c.colour, dumb: c.dumb}) {
			t.Errorf("TERM=%q, NO_COLOR=%q: got %+v; want dumb %v, colour %v", c.term, c.noColor, on, c.dumb, c.colour)
		}
	}
}
