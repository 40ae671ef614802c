package load

import (
	"math"
	"net"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

// TestLinkSize limits the memory of a connState; the time of its message in flight makes it 56 bytes.
func TestLinkSize(t *testing.T) {
	if got := unsafe.Sizeof(connState{}); got > 48 {
		t.Errorf("a link is %d bytes, want at most 48", got)
	}
}

// TestWindow sends answers before, in and after the window, on a connection without an engine.
func TestWindow(t *testing.T) {
	for name, test := range map[string]struct {
		from, until    time.Duration
		sent, answered int64
	}{
		"before": {math.MaxInt64 - 1, math.MaxInt64, 0, 0},
		"in":     {0, math.MaxInt64, 8, 6},
	} {
		tr := newTestGenerator(t, Config{Connections: 1, Pipeline: 2, Size: 64})
		c := newOpenConn(tr)
		tr.setMeasuringWindow(test.from, test.until)
		tr.trafficStarted.Store(true)
		tr.Nudged(c)
		tr.Nudged(c) // starts nothing again
		for range 3 {
			echoOutput(c)
		}
		s := sumShards(tr.shards)
		if [5]int64(s.run[:5]) != [5]int64{8, 6, 8 * 64, 6 * 64, 6 * 64} || s.window[nSent] != test.sent || s.window[nAnswered] != test.answered {
			t.Errorf("%s: got %+v", name, s)
		}
		if got := tr.shards[0].times.window.count(); got != test.answered {
			t.Errorf("%s: %d latencies", name, got)
		}
		tr.endMeasuringWindowAndPlan()
		echoOutput(c)
		if s := sumShards(tr.shards); s.run[nSent] != 8 || s.run[nAnswered] != 8 || s.window[nAnswered] != test.answered || s.messagesInFlight() != 0 {
			t.Errorf("%s, after the end: got %+v", name, s)
		}
	}
}

func newTestGenerator(t testing.TB, cfg Config) *generator {
	return testkit.Must(newGenerator(&cfg, 1))(t)
}

// echoOutput returns a connection's output to it as input.
func echoOutput(c *engine.Conn) {
	out := append([]byte(nil), c.Output()...)
	c.OnSent(len(out))
	c.OnRead(out)
}

// TestStart checks that connections with close numbers start at different messages, and that messages differ.
func TestStart(t *testing.T) {
	text := newRandomLinesBlock(64, 0)
	seen := map[string]int{}
	messages := len(text.bytes) / 64
	for id := range messages {
		at := text.firstOffset(uint32(id))
		m := string(text.contiguousBytesAt(at, 64))
		if other, twice := seen[m]; at%64 != 0 || twice {
			t.Fatalf("connection %d starts at %d with the message of %d", id, at, other)
		}
		seen[m] = id
	}
}

// FuzzCheck divides answers into pieces: the verdict must be that of one piece. change is the index
// of a changed byte, cuts are the sizes of pieces.
func FuzzCheck(f *testing.F) {
	f.Add(uint16(64), uint8(1), uint32(0), uint16(70), []byte{1, 2, 3})
	f.Add(uint16(2), uint8(16), uint32(7), uint16(3), []byte{255, 1, 255})
	f.Add(uint16(5000), uint8(3), uint32(1<<31), uint16(9999), []byte{200})
	f.Add(uint16(300), uint8(200), uint32(11), uint16(50_000), []byte{0, 9})
	f.Fuzz(func(t *testing.T, size uint16, messages uint8, id uint32, change uint16, cuts []byte) {
		if size < 2 || messages == 0 {
			return
		}
		text := newRandomLinesBlock(int(size), 0)
		h := &pregeneratedPayload{block: text}
		fresh := func() *connState { return &connState{number: id, inFlight: uint16(messages)} }
		// check counts answers as the generator does.
		check := func(l *connState, in []byte) (good, answers int) {
			heard := h.checkAnswers(nil, l, in, 0)
			l.inFlight -= uint16(heard.answers)
			l.answered += uint64(heard.answers)
			if (heard.err == nil) != (heard.used == len(in)) {
				t.Fatalf("%d of %d bytes used, %v", heard.used, len(in), heard.err)
			}
			return heard.used, heard.answers
		}
		answer := make([]byte, 0, int(size)*int(messages))
		for at := text.firstOffset(id); len(answer) < cap(answer); at = 0 {
			answer = append(answer, text.contiguousBytesAt(at, cap(answer)-len(answer))...)
		}
		wrong := len(answer)
		if int(change) < len(answer) {
			wrong = int(change)
			answer[wrong] ^= 0x80
		}

		whole := fresh()
		good, answers := check(whole, answer)
		if good != wrong || answers != wrong/int(size) || int(whole.answerPos) != wrong%int(size) {
			t.Fatalf("in one piece: %d good, %d answers, at %d of one; wrong is %d, size %d", good, answers, whole.answerPos, wrong, size)
		}
		pieces := fresh()
		total, sum := 0, 0
		for rest := answer; len(rest) > 0; {
			n := len(rest)
			if len(cuts) > 0 {
				n = min(n, 1+int(cuts[0]))
				cuts = cuts[1:]
			}
			good, answers := check(pieces, rest[:n])
			total, sum = total+good, sum+answers
			if good < n {
				break
			}
			rest = rest[n:]
		}
		if total != good || sum != answers || *pieces != *whole {
			t.Fatalf("in pieces: %d good, %d answers, %+v; in one: %d, %d, %+v", total, sum, *pieces, good, answers, *whole)
		}
	})
}

// A window continues while the rate varies, for at most three times Duration.
func TestSteady(t *testing.T) {
	t.Parallel()
	growing := func(conn net.Conn, _ int) { // at whatever times it is looked
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for n := 16.0; writeText(conn, strings.Repeat("x", int(n))) == nil; n *= 1.5 {
			<-tick.C
		}
	}
	cfg := Config{Target: startTestServer(t, growing).addr(), Connections: 1, Flood: true, Steady: true, Duration: 100 * time.Millisecond}
	r, err := Run(t.Context(), cfg)
	if err != nil || r.Window != 3*cfg.Duration || r.Variation <= SteadyVariation {
		t.Errorf("a rate that grows: %v, a window of %v, varied by %.2f; want %v and more than %v", err, r.Window, r.Variation, 3*cfg.Duration, SteadyVariation)
	}
	cfg.Target, cfg.Duration = startTestServer(t, discardInput).addr(), 300*time.Millisecond
	if r, err = Run(t.Context(), cfg); err != nil || r.Window >= 3*cfg.Duration || r.Variation != 0 {
		t.Errorf("a rate of 0: %v, a window of %v, varied by %.2f; want less than %v and 0", err, r.Window, r.Variation, 3*cfg.Duration)
	}
}

// The variation is that of the last Duration, and unknown with fewer than two parts.
func TestVariation(t *testing.T) {
	p := rateSampler{interval: time.Second}
	at, bytes := time.Duration(0), int64(0)
	add := func(more int64) {
		at, bytes = at+time.Second, bytes+more
		p.addRateIfIntervalPassed(at, bytes)
	}
	add(100)
	p.addRateIfIntervalPassed(at+time.Millisecond, 5000) // within a part
	if v := p.Variation(); v != 0 || p.Steady() {
		t.Errorf("one part varies by %v", v)
	}
	for range steadyParts - 1 {
		add(300)
	}
	if v := p.Variation(); v < 0.22 || v > 0.23 || !p.Steady() { // 63.2 of 280
		t.Errorf("one part of 100 and nine of 300 vary by %v, want 0.226", v)
	}
	add(900)
	if v := p.Variation(); v <= SteadyVariation || p.Steady() {
		t.Errorf("nine parts of 300 and one of 900 vary by %v", v)
	}
	for range steadyParts {
		add(500)
	}
	if v := p.Variation(); v > 1e-9 || !p.Steady() {
		t.Errorf("ten equal parts vary by %v", v)
	}
}
