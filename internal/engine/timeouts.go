package engine

import (
	"math"
	"time"
)

// This file is what the passing of time does to connections. No connection has a
// timer: its owner looks at all of them, a slice at a time, with Expire.

// coarseTime is a point in time, coarse and small: in units of 2^24 ns, about 17 ms.
// It wraps after 834 days; a difference of two is right as long as they are not
// half of that apart.
type coarseTime uint32

func toCoarseTime(d time.Duration) coarseTime { return coarseTime(d >> 24) }

// elapsed is how long ago m was, up to 34 ms less where Host.moment made it, and
// never more: nobody's time is over too early.
func (m coarseTime) elapsed(now time.Duration) time.Duration {
	if ago := int32(toCoarseTime(now) - m); ago > 0 {
		return time.Duration(ago) << 24
	}
	return 0
}

// ExpiresAt is when a connection expires that is closing, whose peer has ended, that greets,
// is being dialled, or has a timer or a deadline; ok is false while it has no such
// bound. Connections that have one are looked at more often than the others.
func (c *Conn) ExpiresAt() (at time.Duration, ok bool) {
	if c.extra == nil {
		return 0, false
	}
	at = c.extra.expiry
	if !c.is(closing) {
		at = earlierTime(earlierTime(at, c.extra.timer), c.extra.deadline)
	}
	return at, at != 0
}

// earlierTime is the earlier of two times, of which 0 is never.
func earlierTime(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// SetTimer has the handler's Timer called after a time; 0 is never. The next call takes
// its place.
func (c *Conn) SetTimer(d time.Duration) {
	if c.is(open) && (d > 0 || c.extra != nil) {
		c.ensureExtra().timer = c.timeAfter(d)
	}
}

// SetDeadline has the connection closed after a time, with ErrDeadline; 0 is never. The
// next call takes its place.
func (c *Conn) SetDeadline(d time.Duration) {
	if c.is(open) && (d > 0 || c.extra != nil) {
		c.ensureExtra().deadline = c.timeAfter(d)
	}
}

func (c *Conn) timeAfter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return c.runtime.Now() + d
}

// SetDialTimeout gives up a connection that is being dialled at a time.
func (c *Conn) SetDialTimeout(deadline time.Duration) { c.ensureExtra().expiry = deadline }

// fireTimerOrDeadline does what the connection's own times ask for, and says whether that was
// something.
func (c *Conn) fireTimerOrDeadline(now time.Duration) bool {
	if c.extra == nil || c.is(closing|handshaking|openPending) {
		return false
	}
	switch x := c.extra; {
	case x.deadline != 0 && now >= x.deadline:
		x.deadline = 0
		c.CloseWith(ErrDeadline)
	case x.timer != 0 && now >= x.timer:
		x.timer = 0
		c.callTimer()
	default:
		return false
	}
	return true
}

// CheckTimeouts does what is due: it gives up a connection whose time has come, or sends
// a heartbeat. It says whether it did anything.
func (c *Conn) CheckTimeouts(now time.Duration) (acted bool) {
	switch {
	case !c.is(open) || c.is(failed) || c.isExporting():
		return false
	case c.isEndOverdue(now):
		c.abortOverdue()
		return true
	case c.fireTimerOrDeadline(now):
		return true
	case c.is(closing | handshaking):
		if c.is(handshaking) {
			c.resumeLayer() // in case its mail found no room
			c.endEvent()
		}
		return true
	}
	why, beat := c.exceededLimit(now)
	switch {
	case beat:
		c.sendHeartbeat()
	case why == nil:
		return false
	case why == ErrWriteTimeout:
		c.abortWith(why)
	case c.is(peerEOF):
		c.CloseWith(why)
	default:
		c.state |= readBeforeClose // it may have said something that nobody has read
	}
	return true
}

// closeForTimeout closes a connection whose time is over. A peer that has left heartbeats
// unanswered is not sent anything any more.
func (c *Conn) closeForTimeout(why error) {
	if why == ErrHeartbeatTimeout || why == ErrWriteTimeout {
		c.abortWith(why)
	} else {
		c.CloseWith(why)
	}
}

// isEndOverdue says whether something has not come to its end in time.
func (c *Conn) isEndOverdue(now time.Duration) bool {
	return c.extra != nil && c.extra.expiry != 0 && now >= c.extra.expiry && (c.is(closing|handshaking) || c.UnsentBytes() > 0)
}

// abortOverdue gives up a connection that has not come to its end in time.
func (c *Conn) abortOverdue() {
	switch {
	case c.is(handshaking) && !c.is(closing):
		c.abortWith(ErrHandshakeTimeout)
	case c.is(handshaking): // it is turned away, and has been told why
		c.state |= failed
	case c.UnsentBytes() > 0:
		c.abortWith(ErrCloseTimeout)
	case c.is(closing):
		c.state |= failed
	}
}

// timeLimit is when a limit of time is over, and the reason to close the connection
// then; without one a heartbeat is due. The zero value is none.
type timeLimit struct {
	at  time.Duration
	why error
}

func newTimeLimit(since, limit time.Duration, why error) timeLimit {
	if limit <= 0 {
		return timeLimit{}
	}
	return timeLimit{since + limit, why}
}

// fillTimeLimits are those that run for an open connection. Where several are over, the
// first counts.
func (c *Conn) fillTimeLimits(now time.Duration, limits *[3]timeLimit) {
	c.updateHeardFromFastPath()
	l, heard := &c.runtime.Limits, now-c.lastHeard.elapsed(now)
	if c.hasOutput() {
		limits[0] = newTimeLimit(c.outputWaitingSince(), l.WriteTimeout, ErrWriteTimeout)
	}
	if c.is(peerEOF) && c.isRetained() {
		limits[1] = newTimeLimit(heard, l.IdleTimeout, ErrIdleTimeout)
	}
	if c.is(peerEOF | inputHeld | openPending | overHighWater | readPaused) {
		return // it is not the peer's turn, or nobody listens
	}
	if every := c.runtime.Heartbeat.Every; !c.is(relayed) {
		limits[1] = newTimeLimit(heard+time.Duration(c.unansweredHeartbeats())*every, every, nil)
		if c.unansweredHeartbeats() >= c.runtime.Heartbeat.MaxMissed {
			limits[1].why = ErrHeartbeatTimeout
		}
	}
	switch {
	case c.state&(dialled|ownHandler) == dialled:
	case c.state&(dialled|neverHeard) == neverHeard:
		limits[2] = newTimeLimit(heard, l.FirstByteTimeout, ErrFirstByteTimeout)
	case c.in != nil || c.partialSince() > 0:
		limits[2] = newTimeLimit(c.messageStartedAt(), l.MessageTimeout, ErrMessageTimeout)
	default:
		limits[2] = newTimeLimit(heard, l.IdleTimeout, ErrIdleTimeout)
	}
}

// exceededLimit is the reason of the limit that is over, nil if none is, and then whether a
// heartbeat is due.
func (c *Conn) exceededLimit(now time.Duration) (why error, heartbeatDue bool) {
	var limits [3]timeLimit
	c.fillTimeLimits(now, &limits)
	for i := range limits {
		l := &limits[i]
		switch {
		case l.at == 0 || now < l.at:
		case l.why != nil:
			return l.why, false
		default:
			heartbeatDue = true
		}
	}
	return nil, heartbeatDue
}

// messageStartedAt is when the message at hand has begun.
func (c *Conn) messageStartedAt() time.Duration {
	if c.in != nil {
		return earlierTime(c.in.waitingSince, c.partialSince())
	}
	return c.partialSince()
}

// ExtendAfterSuspend says that the process has stood still for so long. Then what bounds a
// connection's beginning and end has stood still, too.
func (c *Conn) ExtendAfterSuspend(suspended time.Duration) {
	if c.extra != nil && c.extra.expiry > 0 {
		c.extra.expiry += min(suspended, math.MaxInt64-c.extra.expiry)
	}
	c.ExtendTimeouts(suspended)
}

// ExtendTimeouts says that for so long nobody has read from the peer, because a handler was at work: its
// limits of time are extended by that. Of a connection that is being dialled nothing
// is expected yet.
func (c *Conn) ExtendTimeouts(d time.Duration) {
	if !c.is(open) {
		return
	}
	if heard := c.lastHeard + toCoarseTime(d); int32(c.runtime.coarseNow()-heard) > 0 {
		c.lastHeard = heard
	} else {
		c.lastHeard = c.runtime.coarseNow()
	}
	for _, b := range []*Buffer{c.in, c.out} {
		if b != nil {
			b.waitingSince = min(b.waitingSince+d, c.runtime.Clock())
		}
	}
	if c.extra != nil && c.extra.handlerPartialSince > 0 {
		c.extra.handlerPartialSince = min(c.extra.handlerPartialSince+d, c.runtime.Clock())
	}
	c.queuedFiles().extendWaiting(d, c.runtime.Clock())
}

// NextTimeout is when Expire may have something to do, as far as is known now; ok is
// false for never.
func (c *Conn) NextTimeout() (at time.Duration, ok bool) {
	at, _ = c.ExpiresAt()
	if !c.is(closing | handshaking | failed) {
		var limits [3]timeLimit
		c.fillTimeLimits(c.runtime.Clock(), &limits)
		for i := range limits {
			at = earlierTime(at, limits[i].at)
		}
	}
	return at, at != 0
}

// Heartbeat is what keeps a silent connection alive, and finds out whether it is.
type Heartbeat struct {
	// Every is after how long a silence one is sent, 0 for never.
	Every time.Duration
	// Send sends one. It is called on the connection's owner and does not
	// block.
	Send func(c *Conn)
	// MaxMissed is after how many without a byte from the peer the connection
	// is given up; at most 255.
	MaxMissed int
}

// DetectsDeadPeersWithin says whether the engine itself gives up an idle peer that has gone without
// a word, within a time: by heartbeats, or by IdleTimeout.
func (c *Config) DetectsDeadPeersWithin(limit time.Duration) bool {
	idle, beats := c.Limits.IdleTimeout, c.Heartbeat.Every*time.Duration(c.Heartbeat.MaxMissed+1)
	return beats > 0 && beats <= limit || idle > 0 && idle <= limit
}

// unansweredHeartbeats is how many heartbeats the peer has not answered.
func (c *Conn) unansweredHeartbeats() int { return int(c.state / oneUnanswered) }

// sendHeartbeat sends a heartbeat.
func (c *Conn) sendHeartbeat() {
	c.state += oneUnanswered
	c.runtime.Counters.Add(Heartbeats, 1)
	c.callHandler(c.runtime.Heartbeat.Send)
	c.endEvent()
}

// ResetHeartbeat is called while a heartbeat is sent whose peer has nothing to say: its time
// begins anew, as if it had answered.
func (c *Conn) ResetHeartbeat() {
	c.state &^= unansweredMask
	c.lastHeard = c.runtime.coarseNow()
}

// SweepPeriod is how often each connection is to be looked at because of these
// limits: eight times in the shortest. It is 0 if that is never.
func (rt *Runtime) SweepPeriod() time.Duration {
	l := &rt.Limits
	var shortest time.Duration
	for _, d := range []time.Duration{l.FirstByteTimeout, l.MessageTimeout, l.IdleTimeout, l.WriteTimeout, rt.Heartbeat.Every} {
		if d > 0 && (shortest == 0 || d < shortest) {
			shortest = d
		}
	}
	if shortest == 0 {
		return 0
	}
	return max(shortest/8, FastSweepPeriod)
}

// The times of sweeping: the least time between two slices, and in how long all
// connections are looked at when some are about to end.
const (
	MinSliceInterval = 50 * time.Millisecond
	FastSweepPeriod  = 8 * MinSliceInterval
)

// maxSweepSlices is in how many slices all connections are looked at, at most.
const maxSweepSlices = 64

// SweepSlices says how often a slice of the connections is looked at when each is to be
// once in a period, and how many of so many chunks of them that is. Where there
// are few and there is time, there are few slices.
func SweepSlices(period time.Duration, numChunks int) (interval time.Duration, chunksPerSlice int) {
	slices := int(min(period/MinSliceInterval, maxSweepSlices))
	if period > FastSweepPeriod {
		slices = min(slices, numChunks)
	}
	slices = max(slices, 1)
	return period / time.Duration(slices), (numChunks + slices - 1) / slices
}
