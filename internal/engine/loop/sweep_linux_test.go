package loop

import (
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

func (d *acceptAllDriver) CancelReceiveIfSilent(*engine.Conn) {}

// If all connections are due for a heartbeat, a turn sends to one chunk of them. While the driver has events
// left, the next chunk waits for at most maxSweepPause turns.
func TestSweepPausesWhileEventsLeft(t *testing.T) {
	l, d, _ := newLoopWithConns(16 * chunkSize) // two chunks in a slice
	l.host.Heartbeat = engine.Heartbeat{Every: time.Second, MaxMissed: 2, Send: func(c *engine.Conn) { _, _ = c.Write([]byte("ping\n")) }}
	l.sweeper.period = engine.FastSweepPeriod
	now := l.host.Clock() + time.Minute
	l.host.SetClock(now)
	turn := func(behind bool) (sent int) {
		d.turnSends, l.eventsLeft = 0, behind
		l.sweeper.runIfDue(now)
		return d.turnSends
	}
	if n := turn(true); n != chunkSize {
		t.Fatalf("the first turn sent to %d connections, want the %d of a chunk", n, chunkSize)
	}
	for i := 1; i < maxSweepPause; i++ {
		if n := turn(true); n != 0 {
			t.Fatalf("turn %d sent to %d connections while events were left, want none before turn %d", i, n, maxSweepPause)
		}
	}
	if n := turn(true); n != chunkSize {
		t.Errorf("after %d turns with events left, %d connections were sent to, want %d", maxSweepPause, n, chunkSize)
	}
	now += engine.MinSliceInterval
	if a, b := turn(false), turn(false); a != chunkSize || b != chunkSize {
		t.Errorf("two turns without events left sent to %d and %d connections, want %d each", a, b, chunkSize)
	}
}
