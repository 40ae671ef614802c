package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

// TestVerification verifies every connection twice, on any number of loops, at the end of a ramp. The server answers
// only when the maximum of lines in flight has arrived: the limit is reached and never exceeded.
func TestVerification(t *testing.T) {
	t.Parallel()
	const n, most = 200, 8
	testkit.AcquireDescriptorsOrSkip(t, 2*n+50)
	for _, loops := range []int{1, 3} {
		var mu sync.Mutex
		var waiting []func()
		said, peak := map[string]bool{}, 0
		s := startTestServer(t, serveLines(func(c net.Conn, line string, _, _ int) error {
			mu.Lock()
			defer mu.Unlock()
			said[line] = true
			waiting = append(waiting, func() { _ = writeText(c, line) })
			if peak = max(peak, len(waiting)); len(waiting) == most {
				for _, answer := range waiting {
					answer()
				}
				waiting = nil
			}
			return nil
		}))
		ramp := Ramp{From: 10, To: n, Over: 100 * time.Millisecond}
		cfg := Config{Target: s.addr(), Ramp: ramp, Loops: loops, Hold: true, Check: most, Duration: 20 * time.Millisecond}
		r, told := runUntil(t, cfg, nil)
		if err := r.Err(); err != nil || len(r.Verifications) != 2 || len(said) != 2*n || peak != most || r.ConnectTime < 80*time.Millisecond {
			t.Fatalf("%v, %d verifications, %d different lines, at most %d in flight, connected in %v; want none, 2, %d, %d and 100ms",
				err, len(r.Verifications), len(said), peak, r.ConnectTime, 2*n, most)
		}
		for i, c := range r.Verifications {
			time, latency := c.Time, c.Latency
			c.Time, c.Latency = 0, Latency{}
			if want := (Verification{Number: i + 1, InFlight: most, Open: n, Asked: n, Checked: n}); c != want {
				t.Errorf("verification %d: got %+v, want %+v", i+1, c, want)
			}
			if latency.Count != n || latency.Max <= 0 || latency.Max > time+time/50 {
				t.Errorf("verification %d: latency %+v, in %v", i+1, latency, time)
			}
		}
		if i := told.intervals; i.Sent != 2*n || i.Answered != 2*n || i.BytesReceived != i.BytesSent || i.Latency.Count != 2*n {
			t.Errorf("the intervals have %+v; want %d lines sent and back", i, 2*n)
		}
		want := fmt.Sprint([]Phase{Began, Connected, Checking, Checked, Measuring, Measured, Checking, Checked, Done})
		if got := fmt.Sprint(told.phasesWithoutProgress()); got != want {
			t.Errorf("events %s, want %s", got, want)
		}
	}
}

// TestVerificationFaults uses servers that do not return every line.
func TestVerificationFaults(t *testing.T) {
	const n = 40
	cfg := func(most int) Config {
		return Config{Connections: n, Loops: 2, Hold: true, Check: most, Duration: 20 * time.Millisecond, Drain: 100 * time.Millisecond}
	}
	// bad answers the first lines of some connections with something else, and others as it should.
	bad := func(most int, answer func(line string) (string, error)) func(*testing.T) string {
		return serverStarter(serveLines(func(c net.Conn, line string, n, k int) (err error) {
			if n < most && k == 0 {
				line, err = answer(line)
			}
			return errors.Join(err, writeText(c, line))
		}))
	}
	replace := func(old, new string) func(string) (string, error) {
		return func(line string) (string, error) { return strings.Replace(line, old, new, 1), nil }
	}
	always := func(line string) func(string) (string, error) {
		return func(string) (string, error) { return line, nil }
	}
	first := func(want Verification) func(*testing.T, *Result, *eventLog) {
		return func(t *testing.T, r *Result, told *eventLog) {
			got := r.Verifications[0]
			got.Time, got.Latency = 0, Latency{}
			want := want // of this model
			want.Number, want.InFlight, want.Open = 1, got.InFlight, n
			if got != want || int64(r.nonTimeFiguresByName()["check_wrong"]) != r.Mismatched {
				t.Errorf("got %+v, and %d mismatched; want %+v", got, r.Mismatched, want)
			}
		}
	}
	loadCases{
		"wrong":     {bad(3, replace("check", "chequ")), cfg(10), "check_unanswered==0", "check_wrong==3", `byte 3: got "qu`, first(Verification{Asked: n, Checked: n - 3, Wrong: 3})},
		"another's": {bad(n, always("check 1 0.1.0 0123456789abcdef\n")), cfg(1), "check_unanswered==0", "", "wrong answers on 40 of 40", first(Verification{Asked: n, Wrong: n})},
		"swallowed": {bad(4, always("")), cfg(10), "check_asked>=76", "", "without an answer: 4", first(Verification{Asked: n, Checked: n - 4, Unanswered: 4})},
		"all swallowed": {bad(n, always("")), cfg(10), "check_asked>=20", "check_unanswered==20", "without an answer: 20",
			first(Verification{Asked: 10, Unanswered: 10})},
		"closed": {bad(5, func(string) (string, error) { return "", errors.New("no more") }), cfg(10), "check_unanswered==0", "", "connections lost: 5 ×",
			first(Verification{Asked: n, Checked: n - 5, Lost: 5})},
		"too long": {bad(2, always(strings.Repeat("x", MaxLine))), cfg(10), "check_unanswered==0", "", "2 × line longer than 4096 bytes",
			first(Verification{Asked: n, Checked: n - 2, Lost: 2})},
	}.run(t)
}

// TestVerificationInterrupted checks that an interrupted verification ends soon even without answers.
func TestVerificationInterrupted(t *testing.T) {
	t.Parallel()
	cfg := Config{Target: startTestServer(t, discardInput).addr(), Connections: 20, Hold: true, Check: 5, Drain: time.Hour}
	r, _ := runUntil(t, cfg, func(_ *eventLog, e Event) bool { return e.Snapshot.Sent == 5 })
	if len(r.Verifications) != 1 || r.Verifications[0].Unanswered != 5 || r.Err() == nil {
		t.Errorf("%+v, %v", r.Verifications, r.Err())
	}
}

// TestHeartbeats checks that heartbeats are answered immediately, during verifications and in pieces.
func TestHeartbeats(t *testing.T) {
	t.Parallel()
	const n = 30
	var answers, strays atomic.Int64
	s := startTestServer(t, serveLines(func(c net.Conn, line string, _, _ int) error {
		switch {
		case line == "pong\n":
			answers.Add(1)
			return nil
		case !strings.HasPrefix(line, "check "):
			strays.Add(1)
			return nil
		}
		for _, piece := range []string{"pi", "ng\nping\npi", "ng\n" + line[:5], line[5:]} {
			if err := writeText(c, piece); err != nil {
				return err
			}
		}
		return nil
	}))
	r := runToEnd(t, Config{Target: s.addr(), Connections: n, Loops: 2, Hold: true, Check: 4,
		Heartbeat: "ping\n", HeartbeatAnswer: "pong\n", Duration: 20 * time.Millisecond})
	if err := r.Err(); err != nil || r.Heartbeats != 6*n || strays.Load() > 0 {
		t.Errorf("%v, %d heartbeats, %d strays; want none, %d, none", err, r.Heartbeats, strays.Load(), 6*n)
	}
	if got := answers.Load(); got < 3*n { // those of the last lines may be reset before they are read
		t.Errorf("%d heartbeats were answered, want %d at least", got, 3*n)
	}
}

// TestBroadcast sends the broadcast once to each connection, in pieces, twice, not at all, or
// changed. WebSockets are verified as well, and their pings answered.
func TestBroadcast(t *testing.T) {
	const n = 20
	cases := loadCases{}
	for name, test := range map[string]struct {
		first string // what the first connection gets
		heard int64
		want  string // at the least, and at the most
		says  string
		cause string
	}{
		"once":    {"hear ye\n", n, "heard_again==0 unexpected==0", "", ""},
		"twice":   {"hear ye\nhear ye\n", n, "heard_again==1 unexpected==0", "received 1 duplicate", "repeated broadcast"},
		"missing": {"", n - 1, "heard_again==0 unexpected==0", "1 of 20 connections did not receive it", ""},
		"changed": {"hear me\n", n - 1, "heard_again==0 unexpected==1", "1 of 20 connections did not receive it", "not expected"},
		"more":    {"hear ye\nand me\n", n, "heard_again==0 unexpected==1", `1 unexpected lines; first: "and me\n"`, "not expected"},
	} {
		server := serverStarter(func(c net.Conn, n int) {
			line := "hear ye\n"
			if n == 0 {
				line = test.first
			}
			_ = writeText(c, line[:len(line)/2])
			_ = writeText(c, line[len(line)/2:])
			discardInput(c, n)
		})
		cfg := Config{Connections: n, Loops: 2, Hold: true, Broadcast: "hear ye\n", Duration: 100 * time.Millisecond}
		enough := fmt.Sprintf("heard>=%d ", test.heard) + strings.ReplaceAll(test.want, "==", ">=")
		want := fmt.Sprintf("heard==%d ", test.heard) + test.want
		cases[name] = loadCase{server, cfg, enough, want, test.says, func(t *testing.T, r *Result, told *eventLog) {
			b, heard := r.Broadcast, told.eventsOf(Heard)
			if b.Open != n || b.After.Count != b.Heard || b.After.Max > b.Time+b.Time/50+time.Millisecond || told.intervals.Heard != b.Heard {
				t.Errorf("%+v, %d in the intervals", b, told.intervals.Heard)
			}
			if len(heard) != int(test.heard/n) || len(heard) == 1 && heard[0].Broadcast.Heard != n {
				t.Errorf("told %d times that all have heard it", len(heard))
			}
			if got := told.intervals.Errors; test.cause != "" && got["line: "+test.cause] != 1 {
				t.Errorf("intervals have %v", got)
			}
		}}
	}
	webSockets := webSocketServerStarter(func(ctx context.Context, c *websocket.Conn) error {
		return c.Write(ctx, websocket.MessageText, []byte("hear ye"))
	})
	cfg := Config{Connections: 50, Loops: 2, WebSocket: &WebSocket{}, Hold: true, Check: 7, Broadcast: "hear ye\n", Duration: 100 * time.Millisecond}
	// A ping after the last message may be too late.
	cases["WebSockets"] = loadCase{webSockets, cfg, "heard==50 heartbeats>=50", "checked==100 heard_again==0 heartbeats<=100", "", nil}
	cases.run(t)
}

// TestHeldMemory checks that a held connection needs no memory after the broadcast, and that lines are not allocated.
func TestHeldMemory(t *testing.T) {
	tr := newTestGenerator(t, Config{Connections: 1000, Size: 64, Hold: true, Check: 10, Heartbeat: "ping\n", HeartbeatAnswer: "pong\n", Broadcast: "all\n"})
	a, b := newOpenConn(tr), newOpenConn(tr)
	same := func(when string) {
		if a.Value() != b.Value() || len(tr.shards[0].pendingLines) != 0 || len(tr.table.conns) != 0 {
			t.Errorf("%s: values %p and %p, %d asked, %d links; want one value for both, and none", when, a.Value(), b.Value(), len(tr.shards[0].pendingLines), len(tr.table.conns))
		}
	}
	same("opened")
	a.OnRead([]byte("all\n"))
	if a.Value() == b.Value() {
		t.Error("a broadcast leaves no trace")
	}
	b.OnRead([]byte("all\n"))
	same("told")
	v := &lineVerification{number: 1, lineEnd: tr.lineEnd, limit: 10}
	line, ping := make([]byte, 0, maxVerifyLine), []byte("ping\n")
	if n := testing.AllocsPerRun(100, func() {
		for _, c := range []*engine.Conn{a, b} {
			if wait := tr.tryReserveVerificationLine(tr.shards[0], v, c.Ref()); wait != 0 {
				t.Fatalf("no room in flight: %v", wait)
			}
			tr.Nudged(c)
			line = append(line[:0], c.Output()...)
			c.OnSent(len(line))
			c.OnRead(line)
			c.OnRead(ping)
			c.OnSent(c.UnsentAndDroppedBytes())
		}
	}); n > 0 {
		t.Errorf("%v allocations for two lines of a verification and two heartbeats, want none", n)
	}
	same("checked")
}

func newHeldResult() *Result {
	return &Result{
		Mode: "hold", Target: "127.0.0.1:9000", Connections: 10, Connected: 10, Window: time.Second,
		Verifications: []Verification{
			{Number: 1, InFlight: 4, Open: 10, Asked: 10, Checked: 10, Time: time.Second, Latency: Latency{Count: 10, P99: 5 * time.Millisecond}},
			{Number: 2, InFlight: 4, Open: 10, Asked: 10, Checked: 5, Wrong: 2, Lost: 1, Unanswered: 2, Time: time.Second, Latency: Latency{Count: 5, P99: 7 * time.Millisecond}},
		},
		Counts: Counts{Heartbeats: 30, Unexpected: 1}, FirstUnexpected: `"x\n"`, Unanswered: 2, Mismatched: 2,
		Broadcast: &Broadcast{Open: 10, Heard: 8, Again: 3, Time: time.Second, After: Latency{Count: 8, P99: time.Second}},
	}
}

// TestHeldFigures checks that expectations have a name for each figure.
func TestHeldFigures(t *testing.T) {
	if list := unmetExpectations(t, newHeldResult(), "checked==15 check_asked==20 check_wrong==2 check_lost==1 check_unanswered==2 check_rate==5 check.p99==7ms "+
		"heartbeats==30 unexpected==1 heard==8 heard_again==3 heard_missing==2 broadcast.p99==1s errors==10"); len(list) > 0 {
		t.Errorf("%q", list)
	}
	if list := unmetExpectations(t, &Result{}, "check_rate<9 check.p99<9s heard<9 heard_again<9 heard_missing<9 broadcast.p99<9s"); len(list) != 6 {
		t.Errorf("of a run without them only %q are not met", list)
	}
}
