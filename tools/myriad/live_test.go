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

// newTestView returns a view, what it has written, and its clock, which the test sets.
func newTestView(on screen) (*terminalView, *strings.Builder, *time.Time) {
	w, clock := new(strings.Builder), time.Unix(1e9, 0)
	return &terminalView{
		out: w, screenSize: func() screen { return on }, now: func() time.Time { return clock },
		cpuStallTime: func() time.Duration { return 0 },
	}, w, &clock
}

var control = regexp.MustCompile(`\x1b[^A-Za-z]*[A-Za-z]|\r`)

var wide = screen{width: 80, height: 24}

// TestViewInPlace has what is drawn replaced each time, and taken away in the end. The cursor goes up by as many rows
// as were written, each row is erased alone, and what is below only after the last: of a whole screen that is erased,
// tmux keeps a copy.
func TestViewInPlace(t *testing.T) {
	for _, on := range []screen{wide, {width: 80, height: 24, colour: true}, {width: 40, height: 8}, {width: 30, height: 24}} {
		v, w, clock := newTestView(on)
		drawn := 0
		for _, phase := range []load.Phase{load.Began, load.Progress, load.Progress, load.Done} {
			w.Reset()
			*clock = clock.Add(time.Second)
			v.updateAndThrottleRedraw(load.Event{Phase: phase, Snapshot: load.Snapshot{Sent: 1}, Interval: &load.Interval{}})
			text := w.String()
			up, lines := strings.Count(text, cursorUp), strings.Count(text, "\n")
			hidden := strings.Count(text, hideCursor) - strings.Count(text, showCursor)
			if up != drawn || strings.Count(text, eraseLine) != up+lines || hidden != 0 {
				t.Errorf("%+v, %s: with %d rows on the screen, it writes %q", on, phase, drawn, text)
			}
			early := lines > 0 && strings.Index(text, eraseBelow) < strings.LastIndex(text, "\n")
			if (lines > 0) != (phase != load.Done) || lines > on.height-1 || early {
				t.Errorf("%+v, %s: it writes %d rows: %q", on, phase, lines, text)
			}
			drawn = lines
		}
	}
}

// newViewWithInterval shows an open loop against a server of this machine, and returns the last that it draws.
func newViewWithInterval(on screen) (rows []string) {
	v, w, clock := newTestView(on)
	v.updateAndThrottleRedraw(load.Event{Phase: load.Began, Plan: &load.Plan{
		Targets: []string{"10.0.0.7:9000"}, Mode: "open loop", Model: "epoll", Connections: 1000, Duration: time.Minute,
	}})
	v.updateAndThrottleRedraw(load.Event{Phase: load.Measuring})
	*clock = clock.Add(30 * time.Second)
	v.cpuStallTime = func() time.Duration { return 300 * time.Millisecond }
	w.Reset()
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
	return strings.Split(strings.TrimSuffix(control.ReplaceAllString(w.String(), ""), "\n"), "\n")
}

func TestView(t *testing.T) {
	text := strings.ReplaceAll(strings.Join(newViewWithInterval(wide), "\n"), "\u00a0", " ")
	for _, want := range []string{
		"myriad load", "10.0.0.7:9000", "open loop", "epoll", "30s of 1m00s", "998 of 1,000", "2 failed, 3 lost", "4,000/s",
		"5,000/s, 6,000 waiting, 17 in flight", "in 512 KiB/s, out 1 MiB/s", "p50 1.00 ms, p90 2.00 ms, p99 5.00 ms", "█",
		"programs waited for a processor for 30 % of the time", "3 × lost: reset?[2J", "50 % of a CPU, 20 MiB",
		"100 % of a CPU, 1,005 descriptors", "sending is behind schedule",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the view has no %q:\n%s", want, text)
		}
	}
}

// TestViewFits never writes a line that is wider than the screen, nor more of them. When the terminal is made
// narrower, which breaks the lines, they are erased with all their rows, once.
func TestViewFits(t *testing.T) {
	for width := range 100 {
		rows := newViewWithInterval(screen{width: width, height: 10})
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
	v, w, clock := newTestView(wide)
	v.updateAndThrottleRedraw(load.Event{Phase: load.Began})
	w.Reset()
	for n := range 1000 {
		*clock = clock.Add(time.Millisecond)
		v.updateAndThrottleRedraw(load.Event{Phase: load.Progress, Interval: &load.Interval{Errors: map[string]int64{strconv.Itoa(n): 1}}})
	}
	if len(v.rateHistory) != sparklineIntervals || len(v.errors) != maxErrorCauses+1 || v.errors["other"] != 1000-maxErrorCauses {
		t.Errorf("%d intervals, %d causes, %d other", len(v.rateHistory), len(v.errors), v.errors["other"])
	}
	if n := strings.Count(w.String(), hideCursor); n != 10 {
		t.Errorf("drawn %d times in a second; want 10", n)
	}
}
