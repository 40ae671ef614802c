package main

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/tools/internal/sample"
	"github.com/myriad-go/myriad/tools/load"
)

// fakeTerminal interprets the control sequences of the view and fails the test on any other.
type fakeTerminal struct {
	t           *testing.T
	rows        []string
	row, column int
	hidden      bool
	writes      int
}

var terminalToken = regexp.MustCompile(`\x1b[^A-Za-z]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+`)

func (w *fakeTerminal) Write(p []byte) (int, error) {
	w.writes++
	for _, token := range terminalToken.FindAllString(string(p), -1) {
		w.apply(token)
	}
	if w.hidden {
		w.t.Errorf("the cursor is hidden after %q", p)
	}
	return len(p), nil
}

func (w *fakeTerminal) apply(token string) {
	for len(w.rows) <= w.row {
		w.rows = append(w.rows, "")
	}
	switch token {
	case "\r":
		w.column = 0
	case "\n":
		w.row, w.column = w.row+1, 0
	case hideCursor, showCursor:
		w.hidden = token == hideCursor
	case "\x1b[31m", "\x1b[0m": // a colour
	case eraseLine:
		w.rows[w.row] = ""
	case eraseBelow:
		if w.row == 0 {
			w.t.Error("the screen was erased from its first row on: tmux keeps that in its history")
		}
		w.rows = w.rows[:w.row]
	case cursorUp:
		if w.row--; w.row < 0 {
			w.t.Fatal("the cursor went above the first row")
		}
	default:
		if token[0] == '\x1b' {
			w.t.Fatalf("unknown control %q", token)
		}
		old, text := []rune(w.rows[w.row]), []rune(token)
		end := w.column + len(text)
		w.rows[w.row] = string(old[:w.column]) + token + string(old[min(end, len(old)):])
		w.column = end
	}
}

func (w *fakeTerminal) text() string { return strings.TrimRight(strings.Join(w.rows, "\n"), " \n") }

// newTestView returns a view on a terminal that already has text. Its clock is set by the test.
func newTestView(t *testing.T, on screen) (*terminalView, *fakeTerminal, *time.Time) {
	t.Helper()
	w, clock := &fakeTerminal{t: t, rows: []string{"before"}, row: 1}, time.Unix(1e9, 0)
	return &terminalView{
		out: w, screenSize: func() screen { return on }, now: func() time.Time { return clock },
		cpuStallTime: func() time.Duration { return 0 },
	}, w, &clock
}

var wide = screen{width: 80, height: 24}

// TestViewInPlace has what is drawn replaced each time, and taken away in the end.
func TestViewInPlace(t *testing.T) {
	for _, on := range []screen{wide, {width: 80, height: 24, colour: true}, {width: 40, height: 8}, {width: 30, height: 24}} {
		v, w, clock := newTestView(t, on)
		v.updateAndThrottleRedraw(load.Event{Phase: load.Began})
		v.updateAndThrottleRedraw(load.Event{Phase: load.Progress, Snapshot: load.Snapshot{Open: 7_000}})
		for n := range int64(5) {
			*clock = clock.Add(time.Second)
			v.updateAndThrottleRedraw(load.Event{Phase: load.Progress, Snapshot: load.Snapshot{Open: 7_000 + n, Sent: 1, Answered: n}})
			rows := strings.Split(w.text(), "\n")
			if rows[0] != "before" || strings.Count(w.text(), "7,00") != 1 || len(rows) > on.height {
				t.Fatalf("%+v, after %d intervals:\n%s", on, n+1, w.text())
			}
		}
		v.updateAndThrottleRedraw(load.Event{Phase: load.Done})
		v.eraseDrawnLines()
		if w.text() != "before" || w.row != 1 {
			t.Errorf("%+v: at the end, with the cursor in row %d:\n%s", on, w.row, w.text())
		}
	}
}

// newViewWithInterval shows an open loop against a server of this machine.
func newViewWithInterval(t *testing.T, on screen) (*terminalView, *fakeTerminal) {
	v, w, clock := newTestView(t, on)
	v.updateAndThrottleRedraw(load.Event{Phase: load.Began, Plan: &load.Plan{
		Targets: []string{"10.0.0.7:9000"}, Mode: "open loop", Model: "epoll", Connections: 1000, Duration: time.Minute,
	}})
	v.updateAndThrottleRedraw(load.Event{Phase: load.Measuring})
	*clock = clock.Add(30 * time.Second)
	v.cpuStallTime = func() time.Duration { return 300 * time.Millisecond }
	v.updateAndThrottleRedraw(load.Event{Phase: load.Progress, Snapshot: load.Snapshot{Open: 998, Failed: 2, Sent: 5000, Answered: 4000}, Interval: &load.Interval{
		From: 29 * time.Second, To: 30 * time.Second, Stage: "window", Open: 998, Lost: 3, InFlight: 17, Waiting: 6000,
		Counts: load.Counts{Intended: 5000, Sent: 4800, Answered: 4000, BytesSent: 1 << 20, BytesReceived: 1 << 19},
		Latency: load.Latency{
			Count: 4000, P50: time.Millisecond, P90: 2 * time.Millisecond, P99: 5 * time.Millisecond, P999: 7 * time.Millisecond, Max: time.Second,
		},
		Errors:    map[string]int64{"lost: reset\x1b[2J": 3},
		Generator: load.Usage{Process: sample.Process{User: time.Second / 2, RSS: 20 << 20}},
		Server:    &load.Usage{Process: sample.Process{System: time.Second, Descriptors: 1005}},
	}})
	return v, w
}

func TestView(t *testing.T) {
	_, w := newViewWithInterval(t, wide)
	for _, want := range []string{
		"myriad load", "10.0.0.7:9000", "open loop", "epoll", "30s of 1m00s", "998 of 1,000", "2 failed, 3 lost", "4,000/s",
		"5,000/s, 6,000 waiting, 17 in flight", "in 512 KiB/s, out 1 MiB/s", "p50 1.00 ms, p90 2.00 ms, p99 5.00 ms", "█",
		"programs waited for a processor for 30 % of the time", "3 × lost: reset?[2J", "50 % of a CPU, 20 MiB",
		"100 % of a CPU, 1,005 descriptors", "sending is behind schedule",
	} {
		if !strings.Contains(strings.ReplaceAll(w.text(), "\u00a0", " "), want) {
			t.Errorf("the view has no %q:\n%s", want, w.text())
		}
	}
}

// TestViewFits never writes a line that is wider than the screen, nor more of them. When the terminal is made
// narrower, which breaks the lines, they are erased with all their rows, once.
func TestViewFits(t *testing.T) {
	for width := range 100 {
		_, w := newViewWithInterval(t, screen{width: width, height: 10})
		rows := strings.Split(w.text(), "\n")[1:]
		for _, row := range rows {
			if n := len([]rune(row)); n > width {
				t.Errorf("%d columns on a screen of %d: %q", n, width, row)
			}
		}
		if len(rows) > 9 {
			t.Errorf("%d rows on a screen of 10, with one for the cursor", len(rows))
		}
	}
	v := &terminalView{drawnWidths: []int{80, 40, 41, 0}}
	for _, want := range []int{10, 0} {
		if got := strings.Count(v.takeEraseSequence(screen{width: 20, height: 24}), cursorUp); got != want {
			t.Errorf("lines of 80, 40, 41 and 0 columns on 20: %d rows are erased, want %d", got, want)
		}
	}
}

// TestViewIsBounded remembers only so many intervals and causes, and is drawn ten times a second.
func TestViewIsBounded(t *testing.T) {
	v, w, clock := newTestView(t, wide)
	v.updateAndThrottleRedraw(load.Event{Phase: load.Began})
	w.writes = 0
	for n := range 1000 {
		*clock = clock.Add(time.Millisecond)
		v.updateAndThrottleRedraw(load.Event{Phase: load.Progress, Interval: &load.Interval{Errors: map[string]int64{strconv.Itoa(n): 1}}})
	}
	if len(v.rateHistory) != sparklineIntervals || len(v.errors) != maxErrorCauses+1 || v.errors["other"] != 1000-maxErrorCauses {
		t.Errorf("%d intervals, %d causes, %d other", len(v.rateHistory), len(v.errors), v.errors["other"])
	}
	if w.writes != 10 {
		t.Errorf("drawn %d times in a second; want 10", w.writes)
	}
}
