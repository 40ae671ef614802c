package loop

import (
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file finds connections that are due. A sweep visits all slots, some chunks at a time. If a driver has asked for
// it or a connection is expiring, which means that it has a timer, a deadline or an expiry time, a sweep takes 400 ms.
// Otherwise it takes as long as the time limits permit. If expiring connections are the only reason for fast sweeps,
// chunks without such connections are visited less often. Without time limits and expiring connections, there are no
// sweeps.

type expirySweeper struct {
	loop             *Loop
	period           time.Duration   // duration of a sweep that the time limits permit; 0 without time limits
	fastSweepReasons int             // number of reasons for fast sweeps; each expiring connection is one
	expiringConns    int             // number of expiring connections
	expiring         []uint16        // by chunk, the number of expiring connections
	sweptAt          []time.Duration // by chunk
	nextAt           time.Duration   // when the next slice is due
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
		if s.nextChunk >= len(s.loop.conns.chunks) {
			s.nextChunk = 0
		}
		if s.markChunkSweptIfDue(now) {
			actions += s.loop.sweepChunk(uint32(s.nextChunk), now)
		}
		s.nextChunk++
	}
	if s.chunksLeft > 0 {
		s.nextAt = now // continues in the next turn, or when the driver has caught up
	}
}

// Limits of a sweep. After maxSweepActions timeouts, a sweep pauses for at most maxSweepPause loop iterations.
const (
	maxSweepActions = 512
	maxSweepPause   = 16
)

// adjustExpiringCount adds delta to the total number of expiring connections, and to the number of expiring connections
// in the chunk that contains slot.
func (s *expirySweeper) adjustExpiringCount(slot uint32, delta int) {
	s.growToChunkCount(int(slot/chunkSize) + 1)
	s.expiring[slot/chunkSize] += uint16(delta)
	s.expiringConns += delta
	s.loop.AdjustFastSweepReasons(delta)
}

func (s *expirySweeper) growToChunkCount(chunks int) {
	for len(s.expiring) < chunks {
		s.expiring, s.sweptAt = append(s.expiring, 0), append(s.sweptAt, 0)
	}
}

// markChunkSweptIfDue reports whether the next chunk of connections must be swept now. If so, it records now as the
// time of the chunk's last sweep.
func (s *expirySweeper) markChunkSweptIfDue(now time.Duration) bool {
	s.growToChunkCount(s.nextChunk + 1)
	last := &s.sweptAt[s.nextChunk]
	if s.fastSweepReasons > 0 && s.fastSweepReasons == s.expiringConns && s.expiring[s.nextChunk] == 0 &&
		(s.period == 0 || now-*last < s.period-engine.FastSweepPeriod) {
		return false
	}
	*last = now
	return true
}

func (l *Loop) sweepChunk(chunk uint32, now time.Duration) (actions int) {
	from := chunk * chunkSize
	l.conns.forEachConnInUse(from, from+chunkSize, func(c *engine.Conn) {
		if c.DriverFlags()&(Connecting|DialTimedOut) == Connecting {
			if due, ok := c.NextTimerDeadlineOrExpiry(); ok && now >= due {
				actions++
				l.shutdownTimedOutDial(c)
			}
		} else if c.DriverFlags()&Busy == 0 {
			if c.CheckTimeouts(now) {
				actions++
				l.driver.PerformActions(c)
			} else {
				l.timers.addTimerIfSoon(c)
			}
		}
		if c.FD() >= 0 {
			l.driver.CancelReceiveIfSilent(c)
		}
	})
	return actions
}
