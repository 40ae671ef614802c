package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// byLine serves lines with a function, which has the number of the connection's line.
func byLine(answer func(c net.Conn, line string, number int) error) func(net.Conn) {
	return func(c net.Conn) {
		lines := bufio.NewReader(c)
		for n := 0; ; n++ {
			line, err := lines.ReadString('\n')
			if err != nil || answer(c, line, n) != nil {
				return
			}
		}
	}
}

func say(c net.Conn, line string) error {
	_, err := c.Write([]byte(line))
	return err
}

// chosen picks the first connections that ask, so many.
func chosen(most int64) func() bool {
	var n atomic.Int64
	return func() bool { return n.Add(1) <= most }
}

// story is what a run of held connections told.
type story struct {
	events    []Event
	intervals Interval // added up
}

func (s *story) observe(e Event) {
	s.events = append(s.events, e)
	if e.Interval != nil {
		merge(&s.intervals, e.Interval, true)
	}
}

// phases are the events in order, but for Progress.
func (s *story) phases() (list []Phase) {
	for _, e := range s.events {
		if e.Phase != Progress {
			list = append(list, e.Phase)
		}
	}
	return list
}

// of finds the events of a phase.
func (s *story) of(p Phase) (list []Event) {
	for _, e := range s.events {
		if e.Phase == p {
			list = append(list, e)
		}
	}
	return list
}

// held runs a load that holds connections.
func heldRun(t *testing.T, cfg Config) (*Result, *story) {
	t.Helper()
	var s story
	cfg.Hold, cfg.Observe = true, s.observe
	cfg.Duration = max(cfg.Duration, 20*time.Millisecond)
	return check(t, cfg), &s
}

// TestVerification checks every connection twice, on any number of loops.
func TestVerification(t *testing.T) {
	t.Parallel()
	for _, loops := range []int{1, 3} {
		t.Run(fmt.Sprint(loops), func(t *testing.T) {
			t.Parallel()
			eachModel(t, func(t *testing.T, model string) {
				const n = 200
				var mu sync.Mutex
				said := map[string]bool{}
				s := serve(t, byLine(func(c net.Conn, line string, _ int) error {
					mu.Lock()
					said[line] = true
					mu.Unlock()
					return say(c, line)
				}))
				r, told := heldRun(t, Config{Target: s.addr(), Connections: n, Model: model, Loops: loops, Check: 7})
				if err := r.Err(); err != nil || len(r.Verifications) != 2 || len(said) != 2*n {
					t.Fatalf("%v, %d verifications, %d different lines; want none, 2 and %d", err, len(r.Verifications), len(said), 2*n)
				}
				for i, c := range r.Verifications {
					time, latency := c.Time, c.Latency
					c.Time, c.Latency = 0, Latency{}
					if want := (Verification{Number: i + 1, InFlight: 7, Open: n, Asked: n, Checked: n}); c != want {
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
				if got := fmt.Sprint(told.phases()); got != want {
					t.Errorf("events %s, want %s", got, want)
				}
				if b := r.Bytes; b.Sent == 0 || b.Sent != b.Answered || b.Received != b.Sent || b.InFlight != 0 {
					t.Errorf("bytes %+v", b)
				}
			})
		})
	}
}

// TestVerificationInFlight has a server answer only when as many lines have come as may
// be in flight: the bound is reached, and never passed.
func TestVerificationInFlight(t *testing.T) {
	t.Parallel()
	const n, most = 60, 20
	for _, loops := range []int{1, 4} {
		eachModel(t, func(t *testing.T, model string) {
			var mu sync.Mutex
			var waiting []func()
			peak := 0
			s := serve(t, byLine(func(c net.Conn, line string, _ int) error {
				mu.Lock()
				defer mu.Unlock()
				waiting = append(waiting, func() { _ = say(c, line) })
				peak = max(peak, len(waiting))
				if len(waiting) == most {
					for _, answer := range waiting {
						answer()
					}
					waiting = nil
				}
				return nil
			}))
			r, _ := heldRun(t, Config{Target: s.addr(), Connections: n, Model: model, Loops: loops, Check: most})
			if err := r.Err(); err != nil || peak != most {
				t.Errorf("%d loops: %v, at most %d lines in flight; want none and %d", loops, err, peak, most)
			}
		})
	}
}

// TestVerificationFaults has servers that do not give every line back.
func TestVerificationFaults(t *testing.T) {
	t.Parallel()
	const n = 40
	for name, test := range map[string]struct {
		answer func(line string, bad bool) (string, error)
		bad    int64
		check  int
		want   Verification
		says   string
	}{
		"wrong": {func(line string, bad bool) (string, error) {
			if bad {
				line = strings.Replace(line, "check", "chequ", 1)
			}
			return line, nil
		}, 3, 10, Verification{Asked: n, Checked: n - 3, Wrong: 3}, `byte 3: got "qu`},
		"another's": {func(string, bool) (string, error) { return "check 1 0.1.0 0123456789abcdef\n", nil }, 0, 1, Verification{Asked: n, Wrong: n}, "wrong answers on 40 of 40"},
		"swallowed": {func(line string, bad bool) (string, error) {
			if bad {
				line = ""
			}
			return line, nil
		}, 4, 10, Verification{Asked: n, Checked: n - 4, Unanswered: 4}, "without an answer: 4"},
		"all swallowed": {func(string, bool) (string, error) { return "", nil }, 0, 10, Verification{Asked: 10, Unanswered: 10}, "without an answer: 20"},
		"closed": {func(line string, bad bool) (string, error) {
			if bad {
				return "", errors.New("no more")
			}
			return line, nil
		}, 5, 10, Verification{Asked: n, Checked: n - 5, Lost: 5}, "connections lost: 5 ×"},
		"too long": {func(line string, bad bool) (string, error) {
			if bad {
				line = strings.Repeat("x", MaxLine)
			}
			return line, nil
		}, 2, 10, Verification{Asked: n, Checked: n - 2, Lost: 2}, "2 × a line of more than 4096 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachModel(t, func(t *testing.T, model string) {
				for times := range slower(t) {
					bad := chosen(test.bad)
					s := serve(t, byLine(func(c net.Conn, line string, _ int) error {
						answer, err := test.answer(line, bad())
						if err != nil {
							return err
						}
						return say(c, answer)
					}))
					r, told := heldRun(t, Config{Target: s.addr(), Connections: n, Model: model, Loops: 2, Check: test.check, Drain: times * 150 * time.Millisecond})
					got, want := r.Verifications[0], test.want
					got.Time, got.Latency = 0, Latency{}
					want.Number, want.InFlight, want.Open = 1, test.check, n
					if got.Asked < want.Asked || got.Unanswered > want.Unanswered {
						continue // given up, and not for the server's fault
					}
					if err := r.Err(); got != want || err == nil || !strings.Contains(err.Error(), test.says) {
						t.Errorf("got %+v, %v, want %+v and an error with %q", got, err, want, test.says)
					}
					if wrong := int64(r.numbers()["check_wrong"]); wrong != r.Mismatched || told.intervals.errors() == 0 {
						t.Errorf("%d wrong, %d mismatched, %d errors in intervals", wrong, r.Mismatched, told.intervals.errors())
					}
					if b := r.Bytes; b.Sent != b.Answered+b.InFlight+b.CutOff {
						t.Errorf("bytes %+v", b)
					}
					break
				}
			})
		})
	}
}

// TestVerificationInterrupted ends soon, although nothing is answered.
func TestVerificationInterrupted(t *testing.T) {
	t.Parallel()
	eachModel(t, func(t *testing.T, model string) {
		s := serve(t, silent)
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		r, err := Run(ctx, Config{
			Target: s.addr(), Connections: 20, Model: model, Hold: true, Check: 5, Drain: time.Hour, ProgressEvery: 10 * time.Millisecond,
			Observe: func(e Event) {
				if e.Snapshot.Sent == 5 {
					cancel(why)
				}
			},
		})
		if !errors.Is(err, why) || len(r.Verifications) != 1 || r.Verifications[0].Unanswered != 5 || r.Err() == nil {
			t.Errorf("%v, %+v, %v", err, r.Verifications, r.Err())
		}
	})
}

// TestHeartbeats answers them at once, in the middle of verifications and in pieces.
func TestHeartbeats(t *testing.T) {
	t.Parallel()
	const n = 30
	eachModel(t, func(t *testing.T, model string) {
		var answers, strays atomic.Int64
		s := serve(t, byLine(func(c net.Conn, line string, _ int) error {
			switch {
			case line == "pong\n":
				answers.Add(1)
				return nil
			case !strings.HasPrefix(line, "check "):
				strays.Add(1)
				return nil
			}
			for _, piece := range []string{"pi", "ng\nping\npi", "ng\n" + line[:5], line[5:]} {
				if err := say(c, piece); err != nil {
					return err
				}
			}
			return nil
		}))
		beats, told := heldRun(t, Config{Target: s.addr(), Connections: n, Model: model, Loops: 2, Check: 4, Heartbeat: "ping\n", HeartbeatAnswer: "pong\n"})
		if err := beats.Err(); err != nil || beats.Heartbeats != 6*n || told.intervals.Heartbeats != 6*n || strays.Load() > 0 {
			t.Errorf("%v, %d heartbeats, %d in the intervals, %d strays; want none, %d, as many, none", err, beats.Heartbeats, told.intervals.Heartbeats, strays.Load(), 6*n)
		}
		if got := answers.Load(); got < 3*n { // those of the last lines may be reset before they are read
			t.Errorf("%d heartbeats were answered, want %d at least", got, 3*n)
		}
	})
}

// TestBroadcast has it come once to each, in pieces, or twice, or not at all, or changed.
func TestBroadcast(t *testing.T) {
	t.Parallel()
	const n = 20
	for name, test := range map[string]struct {
		first        string // what one of the connections gets
		heard, again int64
		stray        int64
		says, cause  string
	}{
		"once":    {"hear ye\n", n, 0, 0, "", ""},
		"twice":   {"hear ye\nhear ye\n", n, 1, 0, "came again 1 times", "the broadcast again"},
		"missing": {"", n - 1, 0, 0, "1 of 20 connections have not got it", ""},
		"changed": {"hear me\n", n - 1, 0, 1, "1 of 20 connections have not got it", "not expected"},
		"more":    {"hear ye\nand me\n", n, 0, 1, `1 lines that nobody expected; first: "and me\n"`, "not expected"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachModel(t, func(t *testing.T, model string) {
				var r *Result
				var told *story
				for times := range slower(t) {
					one := chosen(1)
					s := serve(t, func(c net.Conn) {
						line := "hear ye\n"
						if one() {
							line = test.first
						}
						_ = say(c, line[:len(line)/2])
						_ = say(c, line[len(line)/2:])
						silent(c)
					})
					r, told = heldRun(t, Config{Target: s.addr(), Connections: n, Model: model, Loops: 2, Broadcast: "hear ye\n", Duration: times * 100 * time.Millisecond})
					if b := r.Broadcast; b.Heard >= test.heard && b.Again >= test.again && r.Unexpected >= test.stray {
						break
					}
				}
				b, heard := *r.Broadcast, told.of(Heard)
				if b.Open != n || b.Heard != test.heard || b.Again != test.again || r.Unexpected != test.stray || b.After.Count != b.Heard || b.After.Max > b.Time+b.Time/50+time.Millisecond {
					t.Errorf("%+v, %d other lines; want %d heard, %d again, %d others", b, r.Unexpected, test.heard, test.again, test.stray)
				}
				if err := r.Err(); (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
					t.Errorf("got %v, want an error with %q", err, test.says)
				}
				if len(heard) != int(test.heard/n) || len(heard) == 1 && heard[0].Broadcast.Heard != n {
					t.Errorf("told %d times that all have heard it", len(heard))
				}
				if got := told.intervals; got.Heard != test.heard || got.Unexpected != test.stray+test.again || test.cause != "" && got.Errors["line: "+test.cause] != 1 {
					t.Errorf("intervals have %d heard, %d other lines and %v", got.Heard, got.Unexpected, got.Errors)
				}
			})
		})
	}
}

// TestHeldRamp has the hold begin when all are there.
func TestHeldRamp(t *testing.T) {
	t.Parallel()
	s := serve(t, echo)
	ramp := Ramp{From: 1, To: 11, Over: 200 * time.Millisecond}
	r, told := heldRun(t, Config{Target: s.addr(), Ramp: ramp, Check: 2})
	if err := r.Err(); err != nil || r.Connected != 11 || len(r.Verifications) != 2 || told.of(Connected)[0].Snapshot.Open != 11 || r.ConnectTime < 150*time.Millisecond {
		t.Errorf("%v, %d connected in %v, %+v", err, r.Connected, r.ConnectTime, r.Verifications)
	}
}

// TestHeldMemory has nothing kept for a connection that is only held, whatever it has
// heard, and nothing made for a line.
func TestHeldMemory(t *testing.T) {
	tr := testTraffic(t, Config{Connections: 1000, Size: 64, Hold: true, Check: 10, Heartbeat: "ping\n", HeartbeatAnswer: "pong\n", Broadcast: "all\n"})
	a, b := openConn(tr), openConn(tr)
	same := func(when string) {
		if a.Value() != b.Value() || len(tr.shards[0].asked) != 0 || len(tr.table.conns) != 0 {
			t.Errorf("%s: values %p and %p, %d asked, %d links; want one value for both, and none", when, a.Value(), b.Value(), len(tr.shards[0].asked), len(tr.table.conns))
		}
	}
	same("opened")
	a.Arrived([]byte("all\n"))
	if a.Value() == b.Value() {
		t.Error("a broadcast leaves no trace")
	}
	b.Arrived([]byte("all\n"))
	same("told")
	v := &verification{number: 1, end: tr.lineEnd, most: 10}
	line, ping := make([]byte, 0, verifyLine), []byte("ping\n")
	if n := testing.AllocsPerRun(100, func() {
		for _, c := range []*engine.Conn{a, b} {
			if wait := tr.reserve(tr.shards[0], v, c.Ref()); wait != 0 {
				t.Fatalf("no room in flight: %v", wait)
			}
			tr.Nudged(c)
			line = append(line[:0], c.Output()...)
			c.Sent(len(line))
			c.Arrived(line)
			c.Arrived(ping)
			c.Sent(c.Pending())
		}
	}); n > 0 {
		t.Errorf("%v allocations for two lines of a verification and two heartbeats, want none", n)
	}
	same("checked")
}

// heldResult is what a run of held connections can come to.
func heldResult() *Result {
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

// TestHeldText says all of it.
func TestHeldText(t *testing.T) {
	var out bytes.Buffer
	if err := heldResult().WriteText(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"10 of 10 connections answered in 1s, 10/s, at most 4 in flight\n", "5 of 10 connections answered in 1s, 5/s, at most 4 in flight; 2 wrong; 1 lost; 2 unanswered\n",
		"heartbeats", "30", "received on 8 of 10 connections, within 1s of each other", "3 times more", `1 lines; first: "x\n"`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &out)
		}
	}
}

// TestHeldExpectations has a name for each figure.
func TestHeldExpectations(t *testing.T) {
	for _, text := range []string{
		"checked==15", "check_asked==20", "check_wrong==2", "check_lost==1", "check_unanswered==2", "check_rate==5", "check.p99==7ms",
		"heartbeats==30", "unexpected==1", "heard==8", "heard_again==3", "heard_missing==2", "broadcast.p99==1s", "errors==10",
	} {
		e, err := ParseExpectation(text)
		if err != nil {
			t.Error(err)
		} else if got, ok := e.Check(heldResult()); !ok {
			t.Errorf("%s: got %s", text, got)
		}
		if _, ok := e.Check(&Result{}); ok && (strings.Contains(text, "heard") || strings.Contains(text, "rate") || strings.Contains(text, ".")) {
			t.Errorf("%s is met by a run without it", text)
		}
	}
}
