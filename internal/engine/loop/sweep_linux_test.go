package loop

import (
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

func (d *taker) Sweep(*engine.Conn) {}

// Where all connections are due for a heartbeat, a turn sends to one chunk of them; while the
// driver has events left, the next chunk waits for it, but for no more than sweepPause turns.
func TestSweepPauses(t *testing.T) {
	l, d, _ := fan(16 * chunkSize) // two chunks in a slice
	l.host.Heartbeat = engine.Heartbeat{Every: time.Second, MaxMissed: 2, Send: func(c *engine.Conn) { _, _ = c.Write([]byte("ping\n")) }}
	l.sweep.period = engine.FastSweepPeriod
	now := l.host.Clock() + time.Minute
	l.host.SetClock(now)
	turn := func(behind bool) (sent int) {
		d.turn, l.behind = 0, behind
		l.sweep.run(now)
		return d.turn
	}
	if n := turn(true); n != chunkSize {
		t.Fatalf("the first turn has sent to %d connections; want the %d of a chunk", n, chunkSize)
	}
	for i := 1; i < sweepPause; i++ {
		if n := turn(true); n != 0 {
			t.Fatalf("turn %d has sent to %d connections while the driver had events left; want none before turn %d", i, n, sweepPause)
		}
	}
	if n := turn(true); n != chunkSize {
		t.Errorf("after %d turns with events left %d connections were sent to; want %d", sweepPause, n, chunkSize)
	}
	now += engine.MinSliceInterval
	if a, b := turn(false), turn(false); a != chunkSize || b != chunkSize {
		t.Errorf("two turns without events left have sent to %d and %d connections; want %d each", a, b, chunkSize)
	}
}
