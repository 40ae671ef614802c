package loop

import (
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file finds connections that are due. A sweep visits all slots, some chunks at a time. If some connections are
// about to expire or a driver has asked for it, a sweep takes 400 ms; otherwise it takes as long as the time limits
// permit. Without time limits there are no sweeps.

type expirySweeper struct {
	loop             *Loop
	period           time.Duration // the longest that the limits permit; 0 without limits
	fastSweepReasons int           // such as connections that are about to expire
	nextAt           time.Duration // when the next slice is due
	nextChunk        int
	chunksLeft       int // chunks left of this slice
	turnsPaused      int // turns since the last chunk
}

func (s *expirySweeper) isActive() bool {
	return s.fastSweepReasons > 0 || s.period > 0 && s.loop.conns.used > 0
}

func (s *expirySweeper) nextDue() (at time.Duration, ok bool) { return s.nextAt, s.isActive() }

func (s *expirySweeper) runIfDue(now time.Duration) {
	if !s.isActive() || now < s.nextAt {
		return
	}
	if s.turnsPaused++; s.chunksLeft > 0 && s.loop.eventsLeft && s.turnsPaused < maxSweepPause {
		return
	}
	s.turnsPaused = 0
	period := s.period
	if s.fastSweepReasons > 0 {
		period = engine.FastSweepPeriod
	}
	interval, n := engine.SweepSlices(period, len(s.loop.conns.chunks))
	if s.chunksLeft == 0 {
		s.nextAt, s.chunksLeft = now+interval, n
	}
	for actions := 0; s.chunksLeft > 0 && actions < maxSweepActions; s.chunksLeft-- {
		actions += s.loop.sweepNextChunk(now)
	}
	if s.chunksLeft > 0 {
		s.nextAt = now // continues in the next turn, or when the driver has caught up
	}
}

// Connections that were opened together may be due together. After maxSweepActions actions, the rest of a slice waits
// until the driver has handled all events, but at most maxSweepPause turns. With io_uring, each send holds a buffer
// until its completion is handled. Each heartbeat also causes an answer.
const (
	maxSweepActions = 512
	maxSweepPause   = 16
)

// sweepNextChunk visits the connections of the next chunk and returns the number of connections that were due.
func (l *Loop) sweepNextChunk(now time.Duration) (actions int) {
	s := &l.sweeper
	from := uint32(s.nextChunk) * chunkSize
	l.conns.forEachConnInUse(from, from+chunkSize, func(c *engine.Conn) {
		if c.DriverFlags()&(Connecting|DialTimedOut) == Connecting {
			if due, ok := c.NextExpiryTimerOrDeadline(); ok && now >= due {
				actions++
				l.shutdownTimedOutDial(c)
			}
		} else if c.DriverFlags()&Busy == 0 && c.CheckTimeouts(now) {
			actions++
			l.driver.PerformActions(c)
		}
		if c.FD() >= 0 {
			l.driver.CancelReceiveIfSilent(c)
		}
	})
	if s.nextChunk++; s.nextChunk >= len(l.conns.chunks) {
		s.nextChunk = 0
	}
	return actions
}
