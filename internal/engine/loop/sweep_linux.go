package loop

import (
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is how a loop finds the connections whose time has come: it looks at
// a slice of the slab at a time. Where some connections are about to end, or a
// driver has asked for it, it goes through all of them in 400 ms; otherwise in the
// time that the limits need, and not at all where there are none.

// sweep is how far that has come.
type sweep struct {
	loop   *Loop
	period time.Duration // what the limits need; 0 for nothing
	urgent int           // connections that are about to be expired: sweeps are quick
	at     time.Duration // when the next slice is due
	chunk  int           // the next chunk
	left   int           // chunks of this slice that are left
	paused int           // turns since the last chunk
}

// active reports whether the slab is swept.
func (s *sweep) active() bool { return s.urgent > 0 || s.period > 0 && s.loop.slab.used > 0 }

func (s *sweep) next() (at time.Duration, ok bool) { return s.at, s.active() }

// run looks at the next slice.
func (s *sweep) run(now time.Duration) {
	if !s.active() || now < s.at {
		return
	}
	if s.paused++; s.left > 0 && s.loop.behind && s.paused < sweepPause {
		return
	}
	s.paused = 0
	period := s.period
	if s.urgent > 0 {
		period = engine.FastSweepPeriod
	}
	every, n := engine.SweepSlices(period, len(s.loop.slab.chunks))
	if s.left == 0 {
		s.at, s.left = now+every, n
	}
	for acts := 0; s.left > 0 && acts < sweepActs; s.left-- {
		acts += s.loop.sweepChunk(now)
	}
	if s.left > 0 {
		s.at = now // goes on in the next turn, or when the driver has caught up
	}
}

// Connections that came together may all be due together. After sweepActs for which it had
// something to do, a slice is left for the next turn in which the driver has handled all
// events, or for the sweepPause-th: io_uring's sends hold a buffer each until their
// completions are handled, and heartbeats bring as many answers.
const (
	sweepActs  = 512
	sweepPause = 16
)

// sweepChunk looks at the next chunk, and says for how many connections there was
// something to do.
func (l *Loop) sweepChunk(now time.Duration) (acts int) {
	s := &l.sweep
	from := uint32(s.chunk) * chunkSize
	l.slab.each(from, from+chunkSize, func(c *engine.Conn) {
		if c.DriverFlags()&(Connecting|DialTimedOut) == Connecting {
			if due, ok := c.ExpiresAt(); ok && now >= due {
				acts++
				l.dialLate(c)
			}
		} else if c.DriverFlags()&Busy == 0 && c.CheckTimeouts(now) {
			acts++
			l.driver.Settle(c)
		}
		if c.FD() >= 0 {
			l.driver.Sweep(c)
		}
	})
	if s.chunk++; s.chunk >= len(l.slab.chunks) {
		s.chunk = 0
	}
	return acts
}
