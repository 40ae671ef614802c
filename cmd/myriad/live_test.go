package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/myriad-go/myriad/load"
)

const sec = time.Second

// openLoop is a run in the middle of its window, under a generator that has no CPU
// left.
func openLoop() *liveState {
	s := &liveState{}
	s.add(load.Event{Phase: load.Began, Plan: &load.Plan{Generator: &load.Usage{Resident: 1}, Server: &load.Usage{Resident: 1},
		Targets: []string{"127.0.0.1:9000", "127.0.0.1:9001"}, Mode: "open loop", Connections: 10_000, Model: "uring", Loops: 1, Duration: 30 * sec,
	}}, 0)
	s.add(load.Event{Phase: load.Measuring, Snapshot: load.Snapshot{Open: 10_000, Failed: 3}}, 5*sec)
	for n := range 12 {
		at := time.Duration(6+n) * sec
		i := load.Interval{
			From: at - sec, To: at, Stage: "window", Open: 9_999, Intended: 50_000, Sent: 49_000, Answered: int64(40_000 + 1_000*n),
			BytesSent: 3 << 20, BytesReceived: 5 << 19, Flying: 812, Waiting: 1_234, Errors: map[string]int64{"connection reset by peer": 1},
			Latency: load.Latency{Count: 1, Min: 40 * time.Microsecond, P50: 120 * time.Microsecond, P75: 180 * time.Microsecond, P90: 250 * time.Microsecond,
				P95: 400 * time.Microsecond, P99: time.Duration(n+1) * 100 * time.Microsecond, P999: 4100 * time.Microsecond, P9999: 9 * time.Millisecond, Max: 12 * time.Millisecond},
			Generator: load.Usage{CPU: 980 * time.Millisecond, Resident: 120 << 20, Descriptors: 10_012},
			Server:    &load.Usage{CPU: 1500 * time.Millisecond, Resident: 300 << 20, Descriptors: 10_009},
		}
		if n == 0 {
			i.Failed, i.Lost, i.Errors["connection refused"] = 3, 1, 3
			i.Errors["b"], i.Errors["c"] = 2, 1
		}
		s.add(load.Event{Phase: load.Progress, Snapshot: load.Snapshot{Open: 9_999, Failed: 3, Sent: 1, Answered: 1}, Interval: &i}, at)
	}
	return s
}

// connecting is a closed loop that has not begun its traffic.
func connecting() *liveState {
	s := &liveState{}
	s.add(load.Event{Phase: load.Began, Plan: &load.Plan{Generator: &load.Usage{Resident: 1}, Server: &load.Usage{Resident: 1},
		Targets: []string{"[::1]:9000"}, Mode: "closed loop", Connections: 1000, Model: "epoll", Loops: 4, Duration: 30 * sec,
	}}, 0)
	i := load.Interval{To: sec, Stage: "connect", Open: 250, Opened: 250, Connect: load.Latency{Count: 250, P50: sec / 1000, P99: sec / 100}}
	s.add(load.Event{Phase: load.Progress, Snapshot: load.Snapshot{Open: 250}, Interval: &i}, sec)
	return s
}

// holding holds a million connections without an end.
func holding() *liveState {
	s := &liveState{}
	s.add(load.Event{Phase: load.Began, Plan: &load.Plan{Generator: &load.Usage{Resident: 1}, Server: &load.Usage{Resident: 1}, Targets: []string{"unix:/run/s"}, Mode: "hold", Connections: 1_000_000, Loops: 1, Duration: 30 * endless}}, 0)
	for _, at := range []time.Duration{60 * sec, 3725 * sec} {
		i := load.Interval{From: at - sec, To: at, Stage: "hold", Open: 1_000_000, Server: &load.Usage{Resident: 3 << 30}, Generator: load.Usage{Resident: 1 << 29}}
		s.add(load.Event{Phase: load.Progress, Snapshot: load.Snapshot{Open: 1_000_000}, Interval: &i}, at)
	}
	return s
}

// flooding has no intervals, as of a generator that tells snapshots only.
func flooding() *liveState {
	s := &liveState{}
	s.add(load.Event{Phase: load.Began, Plan: &load.Plan{Generator: &load.Usage{Resident: 1}, Server: &load.Usage{Resident: 1}, Mode: "flood", NoReply: true}}, 0)
	s.add(load.Event{Phase: load.Measuring, Snapshot: load.Snapshot{Open: 2}}, sec)
	for n := range 3 {
		s.add(load.Event{Phase: load.Progress, Snapshot: load.Snapshot{Open: 2, Sent: int64(n * n * 1000)}}, time.Duration(n+2)*sec)
	}
	return s
}

// drawnText is what is drawn, without colours.
func drawnText(s *liveState, width, height int) string {
	var b strings.Builder
	for _, l := range render(s, screen{width: width, height: height}) {
		b.WriteString(strings.TrimRight(l.fit(width, false), " ") + "\n")
	}
	return b.String()
}

// TestRender compares what is drawn with what it has to be.
func TestRender(t *testing.T) {
	for name, c := range map[string]struct {
		state         *liveState
		width, height int
		want          string
	}{
		"an open loop": {openLoop(), 100, 40, `
myriad load 127.0.0.1:9000 and 1 more                                          open loop, uring, 17s
window     ████████████████████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░  12s of 30s
open       9,999 of 10,000  3 failed  1 lost
answered   51,000/s     ▆▇▇▇▇▇▇▇████
planned    50,000/s  1,234 waiting  812 in flight
bytes      in 2.50 MiB/s  out 3.00 MiB/s
latency    p50 120µs   p90 250µs   p99 1.20ms  p99.9 4.10ms  max 12.0ms
p99        1.20ms       ▂▂▃▃▄▅▅▆▆▇▇█
errors     12 connection reset by peer  3 connection refused  2 b  and 1 more
generator  98% of 1 CPU   120 MiB   12.3 KiB a connection  10,012 descriptors
server     150% of a CPU  300 MiB   30.7 KiB a connection  10,009 descriptors
warning    the generator is the bottleneck, it uses all of its CPU; use more --loops or another
           machine

Latency of the last interval, on a logarithmic scale
      50%  ██████████ 120µs
      75%  █████████████ 180µs
      90%  ████████████████ 250µs
      95%  ████████████████████ 400µs
      99%  ██████████████████████████████ 1.20ms
    99.9%  █████████████████████████████████████████ 4.10ms
   99.99%  ███████████████████████████████████████████████ 9.00ms
     100%  ██████████████████████████████████████████████████ 12.0ms
`},
		"narrow, and no room for the percentiles": {openLoop(), 40, 20, `
myriad load 127.0.0.1:9000 and 1 more
window     ███████░░░░░░░░░░  12s of 30s
open       9,999 of 10,000  3 failed
answered   51,000/s     ▆▇▇▇▇▇▇▇████
planned    50,000/s  1,234 waiting
bytes      in 2.50 MiB/s  out 3.00 MiB/s
latency    p50 120µs   max 12.0ms
p99        1.20ms       ▂▂▃▃▄▅▅▆▆▇▇█
errors     12 connection reset by peer
generator  98% of 1 CPU   120 MiB
server     150% of a CPU  300 MiB
warning    the generator is the
           bottleneck, it uses all of
           its CPU; use more --loops or
           another machine
`},
		"connecting": {connecting(), 80, 24, `
myriad load [::1]:9000                                closed loop, epoll × 4, 1s
connect    █████████████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░  1s
open       250 of 1,000  +250/s  0 failed  0 lost  p50 1.00ms  p99 10.0ms
`},
		"holding": {holding(), 80, 24, `
myriad hold unix:/run/s                                                    1h02m
hold       1h01m
open       1,000,000 of 1,000,000  0 failed  0 lost
generator  0% of 1 CPU    512 MiB   536 B a connection
server     0% of a CPU    3.00 GiB  3.15 KiB a connection
`},
		"a flood without intervals": {flooding(), 60, 24, `
myriad load                                        flood, 4s
window     3s
open       2  0 failed  0 lost
sent       3,000/s      ▁▃█
`},
		"nothing yet": {&liveState{}, 60, 24, `
myriad load                                               0s
run        0s
open       0  0 failed  0 lost
`},
	} {
		if got := drawnText(c.state, c.width, c.height); got != c.want[1:] {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, c.want[1:])
		}
	}
}

// TestRenderColours has the same columns with colours as without.
func TestRenderColours(t *testing.T) {
	for i, l := range render(openLoop(), screen{width: 100, height: 40}) {
		with, without := l.fit(100, true), l.fit(100, false)
		for _, style := range []string{bold, dim, red, green, cyan, strong, "0"} {
			with = strings.ReplaceAll(with, "\x1b["+style+"m", "")
		}
		if with != without {
			t.Errorf("line %d: %q with colours, %q without", i, with, without)
		}
	}
}

// TestNeverTooWide has texts from elsewhere that are long, wide and move the
// cursor.
func TestNeverTooWide(t *testing.T) {
	hostile := openLoop()
	hostile.plan.Targets = []string{"\x1b[2J世界\r\n" + strings.Repeat("x", 200)}
	hostile.errors = map[string]int64{"\x1b]0;t\a\u202e世界\xff\u0301" + strings.Repeat("y", 200): 1 << 62, "\n": 1}
	for _, s := range []*liveState{hostile, openLoop(), connecting(), holding(), flooding(), {}} {
		for width := 1; width < 160; width++ {
			for _, l := range render(s, screen{width: width, height: 50}) {
				drawn := l.fit(width, false)
				n := utf8.RuneCountInString(drawn)
				if n > width || n != l.width(width) {
					t.Fatalf("%d columns on a screen of %d, said to be %d: %q", n, width, l.width(width), drawn)
				}
				if odd := strings.Trim(drawn, blocks); strings.IndexFunc(odd, func(r rune) bool { return cleanRune(r) != r }) >= 0 {
					t.Fatalf("%q has what could move the cursor", drawn)
				}
			}
		}
	}
}

// TestWarningOfUnsent is for a server that doesn't take what is planned.
func TestWarningOfUnsent(t *testing.T) {
	s := openLoop()
	s.last.Generator.CPU = sec / 10
	if w := s.warning(); w != "" {
		t.Errorf("got %q; want none", w)
	}
	s.last.Waiting = s.last.Intended + 1
	if w := s.warning(); !strings.Contains(w, "not sent") {
		t.Errorf("got %q; want a warning of messages that are not sent", w)
	}
	s.last.Stage = "drain"
	if w := s.warning(); w != "" {
		t.Errorf("after the window: got %q; want none", w)
	}
}

// TestProgressOfMessages has a number of messages instead of a time.
func TestProgressOfMessages(t *testing.T) {
	s := &liveState{}
	s.add(load.Event{Phase: load.Began, Plan: &load.Plan{Generator: &load.Usage{Resident: 1}, Server: &load.Usage{Resident: 1}, Messages: 10}}, 0)
	s.add(load.Event{Phase: load.Measuring, Snapshot: load.Snapshot{Open: 100, Answered: 250}}, sec)
	if share, text := s.progress(); share != 0.25 || text != "250 of 1,000 messages" {
		t.Errorf("got %v, %q; want 0.25, 250 of 1,000 messages", share, text)
	}
	// Most have exchanged theirs and are closed.
	s.plan.Connections, s.snapshot.Open, s.snapshot.Answered = 100, 2, 985
	if share, _ := s.progress(); share != 0.985 {
		t.Errorf("with 2 of 100 connections left: got %v, want 0.985", share)
	}
}

// TestLiveStateIsBounded has more intervals and more causes than are remembered.
func TestLiveStateIsBounded(t *testing.T) {
	s := &liveState{}
	for n := range 3 * liveHistory {
		s.add(load.Event{Phase: load.Progress, Interval: &load.Interval{
			From: time.Duration(n) * sec, To: time.Duration(n+1) * sec, Answered: int64(n), Errors: map[string]int64{fmt.Sprint(n): 1},
		}}, sec)
	}
	sum := int64(0)
	for _, n := range s.errors {
		sum += n
	}
	if len(s.rates) != liveHistory || len(s.p99s) != liveHistory || s.rates[liveHistory-1] != 3*liveHistory-1 {
		t.Errorf("%d rates, %d percentiles, the last %v; want %d, the last %d", len(s.rates), len(s.p99s), s.rates[len(s.rates)-1], liveHistory, 3*liveHistory-1)
	}
	if len(s.errors) != liveCauses+1 || sum != 3*liveHistory {
		t.Errorf("%d causes of %d errors; want %d of %d", len(s.errors), sum, liveCauses+1, 3*liveHistory)
	}
}
