package loop

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// TestTimerWheel sets random timers, also of connections that a worker has and of slots that are used again. Each is
// called once, at most a tick late, and the wheel has at most one entry for each connection. Sweeps add later ones.
func TestTimerWheel(t *testing.T) {
	const conns, longest = 100, 2 * time.Second
	dice := rand.New(rand.NewPCG(1, 2))
	l, _, _ := newLoopWithConns(conns)
	now := l.host.Clock()
	l.host.Now = func() time.Duration { return now }
	due := make(map[*engine.Conn]time.Duration)
	called := 0
	l.host.Timer = func(c *engine.Conn) {
		called++
		if at, ok := due[c]; !ok || now < at || now-at > engine.TimerTick && c.DriverFlags()&CloseOnReturn == 0 {
			t.Errorf("Timer is called at %v, was set for %v (%v)", now, at, ok)
		}
		delete(due, c)
	}
	const wasBusy = CloseOnReturn // marks connections whose timer may be late
	for range 20_000 {
		c := l.conns.conn(uint32(dice.IntN(conns)))
		switch {
		case c.DriverFlags()&Busy != 0:
			actions := l.deferred[c]
			c.SetDriverFlags(c.DriverFlags()&^Busy | wasBusy)
			runDeferredActions(&actions)
			l.discardDeferredActions(c)
			l.UpdateExpiryTracking(c)
		case dice.IntN(8) == 0:
			c.SetDriverFlags(c.DriverFlags() | Busy)
		default:
			d := time.Duration(dice.Int64N(int64(longest)))
			if dice.IntN(4) == 0 {
				d = 0
			}
			c.SetDriverFlags(c.DriverFlags() &^ wasBusy)
			if delete(due, c); d > 0 {
				due[c] = now + d
			}
			c.SetTimer(d)
			l.UpdateExpiryTracking(c)
		}
		next := now + time.Duration(dice.Int64N(int64(2*engine.TimerTick)))
		if at, ok := l.timers.nextDue(); ok {
			next = min(next, max(at, now)) // a loop waits until then at most
		}
		now = next
		l.host.SetClock(now)
		l.timers.runIfDue(now)
		l.sweeper.runIfDue(now)
		entries := 0
		for _, slots := range l.timers.buckets {
			entries += len(slots)
		}
		if entries > conns {
			t.Fatalf("%d entries for %d connections", entries, conns)
		}
	}
	if called < 1000 {
		t.Errorf("Timer was called %d times, want more", called)
	}
}
