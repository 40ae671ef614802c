package goroutine

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// A process that was stopped extends its peers' limits by that time once: of those that were silent before,
// and of those that continue before the sweeper notices. A loop does the same, in virtual time.
func TestStoppedProcessExtendsLimits(t *testing.T) {
	const idle, before, stop = 10 * time.Second, 3 * time.Second, 16 * time.Second
	for _, model := range []string{"goroutine", "loop"} {
		t.Run(model, func(t *testing.T) {
			since := time.Hour
			var ck pausableClock
			var counters engine.Counters
			h := newHandler()
			host := engine.Runtime{Buffers: &engine.SharedBuffers{}, Counters: &counters}
			host.Configure(&engine.Config{
				Handler: h, Log: slog.New(slog.DiscardHandler),
				Limits: engine.Limits{MaxMessage: 1 << 10, MaxUnsent: 1 << 10, IdleTimeout: idle},
			}, nil)
			host.Now = func() time.Duration { return since }
			if model == "goroutine" {
				host.ClockSlack = clockGrain
				host.Now = func() time.Duration { return ck.readAt(since) }
			}
			host.SetClock(since)
			var silent, talking engine.Conn
			both := []*engine.Conn{&silent, &talking}
			for i, c := range both {
				c.Bind(&host, uint32(i), 0)
				c.SetListener(-1)
				c.OnOpen(netip.AddrPort{}, false)
				c.OnRead([]byte("hello"))
			}

			closed := map[*engine.Conn]time.Duration{}
			// turn lets the sweeper sleep, or the loop wait, and records which connections close after it.
			turn := func(d time.Duration, between func()) {
				asleep := since
				ck.advanceAndSetLimit(since)
				since += d
				if model == "loop" {
					host.SetClock(since)
					if late := since - asleep - engine.MinSliceInterval; late >= engine.MinSliceInterval {
						for _, c := range both {
							c.ExtendTimeLimitsAfterSuspend(late)
						}
					}
				}
				between()
				ck.advanceAndSetLimit(since)
				host.SetClock(host.Now())
				for _, c := range both {
					if c.CheckTimeouts(host.Now()) && closed[c] == 0 {
						if c.CloseIfTimedOutAfterEmptyRead(); c.IsClosing() {
							closed[c] = since
						}
					}
				}
			}
			nothing := func() {}
			for range before / engine.MinSliceInterval {
				turn(engine.MinSliceInterval, nothing)
			}
			turn(stop, func() {
				host.SetClock(host.Now())
				talking.OnRead([]byte("still here"))
			})
			woken := since
			for range 4 * idle / engine.MinSliceInterval {
				turn(engine.MinSliceInterval, nothing)
			}
			for _, c := range []struct {
				name string
				*engine.Conn
				after time.Duration
			}{{"the silent one", &silent, idle - before}, {"the one that has gone on", &talking, idle}} {
				maxAfter := c.after + 3*engine.MinSliceInterval
				if model == "goroutine" && c.Conn == &talking { // heard before the sweeper has woken
					maxAfter += stoppedThreshold
				}
				if after := closed[c.Conn] - woken; after < c.after-2*engine.MinSliceInterval || after > maxAfter {
					t.Errorf("%s is closed %v after the stop, want about %v", c.name, after, c.after)
				}
			}
		})
	}
}
