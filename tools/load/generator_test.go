package load

import (
	"math"
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
	tr := testkit.Must(newGenerator(&cfg, 1))(t)
	return tr
}

// echoOutput returns a connection's output to it as input.
func echoOutput(c *engine.Conn) {
	out := append([]byte(nil), c.Output()...)
	c.OnSent(len(out))
	c.OnRead(out)
}
