package engine

import (
	"math"
	"time"
)

// This file enforces timeouts. Connections have no timers; the owner calls CheckTimeouts for some of them at a time.

// coarseTime is a time in units of 2^24 ns, which are about 17 ms. It wraps around after 834 days.
type coarseTime uint32

func toCoarseTime(d time.Duration) coarseTime { return coarseTime(d >> 24) }

func (m coarseTime) elapsed(now time.Duration) time.Duration {
	if ago := int32(toCoarseTime(now) - m); ago > 0 {
		return time.Duration(ago) << 24
	}
	return 0
}

// TimeSinceInput returns the time since the peer's last input, accurate to 17 ms. ok is false before the first input.
func (c *Conn) TimeSinceInput() (d time.Duration, ok bool) {
	return c.lastHeard.elapsed(c.runtime.Clock()), !c.is(neverHeard)
}

// NextTimerDeadlineOrExpiry returns the connection's expiry time or the time of NextTimerOrDeadline, whichever is
// earlier. The expiry time is the time limit of a dial, a handshake or a close, or of sending output after the peer's
// EOF. If neither time is set, scheduled is false.
func (c *Conn) NextTimerDeadlineOrExpiry() (at time.Duration, scheduled bool) {
	if c.extra == nil {
		return 0, false
	}
	at, _ = c.NextTimerOrDeadline()
	at = earlierNonzeroTime(c.extra.expiry, at)
	return at, at != 0
}

// NextTimerOrDeadline returns the next time at which a timer fires, a deadline passes or a pause by a rate limit ends.
// CheckTimeouts should be called at most TimerTick after that time. If nothing is scheduled, scheduled is false.
func (c *Conn) NextTimerOrDeadline() (at time.Duration, scheduled bool) {
	if c.extra == nil || c.is(closing|failed|handshaking|openPending) || c.isExporting() {
		return 0, false
	}
	at = earlierNonzeroTime(c.extra.timer, c.extra.deadline)
	if r := c.extra.readRate; r != nil {
		at = earlierNonzeroTime(at, earlierNonzeroTime(r.bytes.pausedUntil, r.messages.pausedUntil))
	}
	return at, at != 0
}

// TimerTick is the resolution of timers in I/O models that use event loops.
const TimerTick = 10 * time.Millisecond

func (c *Conn) TimerBucket() uint8 {
	if c.extra == nil {
		return 0
	}
	return c.extra.timerBucket
}

// SetTimerBucket records the number of the timer bucket in which the driver keeps the connection. The number 0 means
// none. A bucket may be set only while NextTimerOrDeadline returns ok. Closing the connection clears the number.
func (c *Conn) SetTimerBucket(bucket uint8) {
	if c.extra != nil {
		c.extra.timerBucket = bucket
		c.freeExtraIfZero()
	}
}

func earlierNonzeroTime(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// SetTimer schedules a call of the handler's Timer after the time d. It replaces an earlier timer. If d is 0, it only
// removes the earlier timer.
func (c *Conn) SetTimer(d time.Duration) {
	if c.is(open) && (d > 0 || c.extra != nil) {
		c.ensureExtra().timer = c.timeAfterOrZero(d)
	}
}

// SetDeadline makes the connection close with ErrDeadline after the time d. It replaces an earlier deadline. If d is 0,
// it only removes the earlier deadline.
func (c *Conn) SetDeadline(d time.Duration) {
	if c.is(open) && (d > 0 || c.extra != nil) {
		c.ensureExtra().deadline = c.timeAfterOrZero(d)
	}
}

func (c *Conn) timeAfterOrZero(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return c.runtime.Now() + d
}

// SetDialTimeout makes the dial fail at the given time, which is on the clock of Runtime.Now.
func (c *Conn) SetDialTimeout(deadline time.Duration) { c.ensureExtra().expiry = deadline }

func (c *Conn) callTimerOrCloseAtDeadline(now time.Duration) (fired bool) {
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

// CheckTimeouts enforces the connection's time limits. It may start to close the connection, request one more read
// before a close, call Timer, send a heartbeat, or end a pause by a rate limit. acted reports whether the driver must
// perform the connection's next actions.
func (c *Conn) CheckTimeouts(now time.Duration) (acted bool) {
	if !c.is(open) || c.is(failed) || c.isExporting() {
		return false
	}
	resumed := c.resumeReadingIfRateAllows(now)
	switch {
	case c.isCloseOrHandshakeOverdue(now):
		c.failAfterHandshakeOrCloseTimeout()
		return true
	case c.callTimerOrCloseAtDeadline(now):
		return true
	case c.is(closing | handshaking):
		if c.is(handshaking) {
			c.continueLayerHandshake() // a RequestResumeLayer may not have fit into the mailbox
			c.startPendingLayerAndUpdatePause()
		}
		return true
	}
	reason, beat := c.exceededTimeLimit(now)
	switch {
	case beat && c.runtime.SweepsHeartbeats:
		return resumed
	case beat:
		c.callHeartbeatSend()
	case reason == nil:
		return resumed
	case reason == ErrWriteTimeout:
		c.abortWith(reason)
	case c.is(peerEOF):
		c.CloseWith(reason)
	default:
		c.state |= finalReadPending // unread input may have arrived
	}
	return true
}

func (c *Conn) closeOrAbortByTimeoutKind(timeoutErr error) {
	if timeoutErr == ErrHeartbeatTimeout || timeoutErr == ErrWriteTimeout {
		c.abortWith(timeoutErr)
	} else {
		c.CloseWith(timeoutErr)
	}
}

func (c *Conn) isCloseOrHandshakeOverdue(now time.Duration) bool {
	return c.extra != nil && c.extra.expiry != 0 && now >= c.extra.expiry && (c.is(closing|handshaking) || c.UnsentAndDroppedBytes() > 0)
}

func (c *Conn) failAfterHandshakeOrCloseTimeout() {
	switch {
	case c.is(handshaking) && !c.is(closing):
		c.abortWith(ErrHandshakeTimeout)
	case c.is(handshaking): // a refused connection that has got its reply
		c.state |= failed
	case c.UnsentAndDroppedBytes() > 0:
		c.abortWith(ErrCloseTimeout)
	case c.is(closing):
		c.state |= failed
	}
}

// timeLimit is a time at which a connection is closed with a close reason. If reason is nil, a heartbeat is sent at
// that time instead. The zero value means that there is no limit.
type timeLimit struct {
	at     time.Duration
	reason error
}

func newTimeLimitUnlessZero(since, duration time.Duration, closeReason error) timeLimit {
	if duration <= 0 {
		return timeLimit{}
	}
	return timeLimit{since + duration, closeReason}
}

func (c *Conn) fillTimeLimits(now time.Duration, limits *[3]timeLimit) {
	c.countPartnerSendsAsActivity()
	l, heard := &c.runtime.Limits, now-c.lastHeard.elapsed(now)
	if c.hasOutput() {
		limits[0] = newTimeLimitUnlessZero(c.outputWaitingSince(), l.WriteTimeout, ErrWriteTimeout)
	}
	if c.is(peerEOF) && c.handlerOrRelayDelaysClose() {
		limits[1] = newTimeLimitUnlessZero(heard, c.runtime.currentIdleTimeout(), ErrIdleTimeout)
	}
	if c.is(peerEOF|inputHeld|openPending|overHighWater|readPaused) || c.isReadRateExceeded() {
		return // the peer need not send, or input is not read
	}
	if every := c.runtime.Heartbeat.Every; !c.is(relayed) {
		limits[1] = newTimeLimitUnlessZero(heard+time.Duration(c.unansweredHeartbeats())*every, every, nil)
		if c.unansweredHeartbeats() >= c.runtime.Heartbeat.MaxMissed {
			limits[1].reason = ErrHeartbeatTimeout
		}
	}
	switch {
	case c.state&(dialled|ownHandler) == dialled:
	case c.state&(dialled|neverHeard) == neverHeard:
		limits[2] = newTimeLimitUnlessZero(heard, l.FirstByteTimeout, ErrFirstByteTimeout)
	case c.in != nil || c.partialMessageSince() > 0:
		limits[2] = newTimeLimitUnlessZero(c.messageStartedAt(), l.MessageTimeout, ErrMessageTimeout)
	default:
		limits[2] = newTimeLimitUnlessZero(heard, c.runtime.currentIdleTimeout(), ErrIdleTimeout)
	}
}

func (c *Conn) exceededTimeLimit(now time.Duration) (reason error, heartbeatDue bool) {
	now += c.runtime.LookAhead
	var limits [3]timeLimit
	c.fillTimeLimits(now, &limits)
	for i := range limits {
		l := &limits[i]
		switch {
		case l.at == 0 || now < l.at:
		case l.reason != nil:
			return l.reason, false
		default:
			heartbeatDue = true
		}
	}
	return nil, heartbeatDue
}

func (c *Conn) messageStartedAt() time.Duration {
	if c.in != nil {
		return earlierNonzeroTime(c.in.waitingSince, c.partialMessageSince())
	}
	return c.partialMessageSince()
}

// ExtendTimeLimitsAfterSuspend extends the connection's time limits after the process was suspended. suspended is the
// duration of the suspension. Timers and deadlines are not extended.
func (c *Conn) ExtendTimeLimitsAfterSuspend(suspended time.Duration) {
	if c.extra != nil && c.extra.expiry > 0 {
		c.extra.expiry += min(suspended, math.MaxInt64-c.extra.expiry)
	}
	c.ExtendTimeouts(suspended)
}

// ExtendTimeouts adds d to the time limits for the peer, for example because a long handler call has delayed reading.
// While the connection is being dialled, it has no effect.
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
	c.fileQueueOrNil().extendProgressTimer(d, c.runtime.Clock())
}

// NextTimeout returns the next time at which CheckTimeouts may have something to do. If nothing is scheduled, scheduled
// is false. Later events may change the time.
func (c *Conn) NextTimeout() (at time.Duration, scheduled bool) {
	at, _ = c.NextTimerDeadlineOrExpiry()
	if !c.is(closing | handshaking | failed) {
		var limits [3]timeLimit
		c.fillTimeLimits(c.runtime.Clock(), &limits)
		for i := range limits {
			at = earlierNonzeroTime(at, limits[i].at)
		}
	}
	return at, at != 0
}

// SweepPeriod returns the interval at which CheckTimeouts must be called for every connection. The interval is 1/8 of
// the shortest time limit, but at least FastSweepPeriod. If there are no time limits, the result is 0.
func (rt *Runtime) SweepPeriod() time.Duration {
	l := &rt.Limits
	var shortest time.Duration
	heartbeats := rt.Heartbeat.Every
	if rt.SweepsHeartbeats {
		heartbeats = 0
	}
	for _, d := range []time.Duration{l.FirstByteTimeout, l.MessageTimeout, l.IdleTimeout, l.WriteTimeout, heartbeats} {
		if d > 0 && (shortest == 0 || d < shortest) {
			shortest = d
		}
	}
	if shortest == 0 {
		return 0
	}
	return max(shortest/8, FastSweepPeriod)
}

// Intervals of sweeps, which check the timeouts of all connections.
const (
	MinSliceInterval = 50 * time.Millisecond // minimum time between two slices of a sweep
	FastSweepPeriod  = 8 * MinSliceInterval  // time of a full sweep while a connection has a timer, deadline or expiry
)

const maxSweepSlices = 64

// SweepSlices divides a sweep into slices. A sweep checks all connections once in each period. The connections are
// stored in numChunks chunks. Each slice checks chunksPerSlice of these chunks. interval is the time between two
// slices.
func SweepSlices(period time.Duration, numChunks int) (interval time.Duration, chunksPerSlice int) {
	slices := int(min(period/MinSliceInterval, maxSweepSlices))
	if period > FastSweepPeriod {
		slices = min(slices, numChunks)
	}
	slices = max(slices, 1)
	return period / time.Duration(slices), (numChunks + slices - 1) / slices
}
