package loop

import (
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is how a loop finds the connections whose time has come: it looks at
// a slice of the slab at a time. Where some connections are about to end, or a
// driver has asked for it, it goes through all of them in 400 ms; otherwise in the
// time that the limits need, and not at all where there are none.

// connSweeper is how far that has come.
type connSweeper struct {
	loop             *Loop
	period           time.Duration // what the limits need; 0 for nothing
	fastSweepReasons int           // connections that are about to be expired: sweeps are quick
	nextAt           time.Duration // when the next slice is due
	nextChunk        int           // the next chunk
	chunksLeft       int           // chunks of this slice that are left
	turnsPaused      int           // turns since the last chunk
}

// isActive reports whether the slab is swept.
func (s *connSweeper) isActive() bool {
	return s.fastSweepReasons > 0 || s.period > 0 && s.loop.conns.used > 0
}

func (s *connSweeper) nextDue() (at time.Duration, ok bool) { return s.nextAt, s.isActive() }

// runIfDue looks at the next slice.
func (s *connSweeper) runIfDue(now time.Duration) {
	if !s.isActive() || now < s.nextAt {
		return
	}
	if s.turnsPaused++; s.chunksLeft > 0 && s.loop.eventsLeft && s.turnsPaused < maxSweepPause {
		return
	}
	s.turnsPaused = 0
	period := s.period
	if s.fastSweepReasons > 0 {
		period = engine.UrgentSweepPeriod
	}
	interval, n := engine.Slice(period, len(s.loop.conns.chunks))
	if s.chunksLeft == 0 {
		s.nextAt, s.chunksLeft = now+interval, n
	}
	for actions := 0; s.chunksLeft > 0 && actions < maxSweepActions; s.chunksLeft-- {
		actions += s.loop.sweepNextChunk(now)
	}
	if s.chunksLeft > 0 {
		s.nextAt = now // goes on in the next turn, or when the driver has caught up
	}
}

// Connections that came together may all be due together. After maxSweepActions for which it had
// something to do, a slice is left for the next turn in which the driver has handled all
// events, or for the maxSweepPause-th: io_uring's sends hold a buffer each until their
// completions are handled, and heartbeats bring as many answers.
const (
	maxSweepActions = 512
	maxSweepPause   = 16
)

// sweepNextChunk looks at the next chunk, and says for how many connections there was
// something to do.
func (l *Loop) sweepNextChunk(now time.Duration) (actions int) {
	s := &l.sweeper
	from := uint32(s.nextChunk) * chunkSize
	l.conns.forEach(from, from+chunkSize, func(c *engine.Conn) {
		if c.Armed()&(Connecting|DialTimedOut) == Connecting {
			if due, ok := c.Due(); ok && now >= due {
				actions++
				l.timeOutDial(c)
			}
		} else if c.Armed()&Busy == 0 && c.Expire(now) {
			actions++
			l.driver.PerformActions(c)
		}
		if c.FD() >= 0 {
			l.driver.SweepConn(c)
		}
	})
	if s.nextChunk++; s.nextChunk >= len(l.conns.chunks) {
		s.nextChunk = 0
	}
	return actions
}
