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

func coarseOf(d time.Duration) coarseTime { return coarseTime(d >> 24) }

// since is how long ago m was, up to 34 ms less where Host.moment made it, and
// never more: nobody's time is over too early.
func (m coarseTime) since(now time.Duration) time.Duration {
	if ago := int32(coarseOf(now) - m); ago > 0 {
		return time.Duration(ago) << 24
	}
	return 0
}

// Due is when a connection expires that is closing, whose peer has ended, that greets,
// is being dialled, or has a timer or a deadline; ok is false while it has no such
// bound. Connections that have one are looked at more often than the others.
func (c *Conn) Due() (at time.Duration, ok bool) {
	if c.more == nil {
		return 0, false
	}
	at = c.more.due
	if !c.is(closing) {
		at = earlier(earlier(at, c.more.timer), c.more.deadline)
	}
	return at, at != 0
}

// earlier is the earlier of two times, of which 0 is never.
func earlier(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// SetTimer has the handler's Timer called after a time; 0 is never. The next call takes
// its place.
func (c *Conn) SetTimer(d time.Duration) {
	if c.is(open) && (d > 0 || c.more != nil) {
		c.extra().timer = c.after(d)
	}
}

// SetDeadline has the connection closed after a time, with ErrDeadline; 0 is never. The
// next call takes its place.
func (c *Conn) SetDeadline(d time.Duration) {
	if c.is(open) && (d > 0 || c.more != nil) {
		c.extra().deadline = c.after(d)
	}
}

func (c *Conn) after(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return c.host.Now() + d
}

// DialTimeout gives up a connection that is being dialled at a time.
func (c *Conn) DialTimeout(at time.Duration) { c.extra().due = at }

// runTimer does what the connection's own times ask for, and says whether that was
// something.
func (c *Conn) runTimer(now time.Duration) bool {
	if c.more == nil || c.is(closing|greeting|openPending) {
		return false
	}
	switch x := c.more; {
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

// Expire does what is due: it gives up a connection whose time has come, or sends
// a heartbeat. It says whether it did anything.
func (c *Conn) Expire(now time.Duration) (acted bool) {
	switch {
	case !c.is(open) || c.is(failed) || c.leaves():
		return false
	case c.endIsDue(now):
		c.expireEnd()
		return true
	case c.runTimer(now):
		return true
	case c.is(closing | greeting):
		if c.is(greeting) {
			c.resumeLayer() // in case its mail found no room
			c.endEvent()
		}
		return true
	}
	why, beat := c.overdue(now)
	switch {
	case beat:
		c.sendHeartbeat()
	case why == nil:
		return false
	case why == ErrWriteTimeout:
		c.fail(why)
	case c.is(peerEnded):
		c.CloseWith(why)
	default:
		c.state |= readBeforeClose // it may have said something that nobody has read
	}
	return true
}

// giveUp closes a connection whose time is over. A peer that has left heartbeats
// unanswered is not sent anything any more.
func (c *Conn) giveUp(why error) {
	if why == ErrHeartbeatTimeout || why == ErrWriteTimeout {
		c.fail(why)
	} else {
		c.CloseWith(why)
	}
}

// endIsDue says whether something has not come to its end in time.
func (c *Conn) endIsDue(now time.Duration) bool {
	return c.more != nil && c.more.due != 0 && now >= c.more.due && (c.is(closing|greeting) || c.Pending() > 0)
}

// expireEnd gives up a connection that has not come to its end in time.
func (c *Conn) expireEnd() {
	switch {
	case c.is(greeting) && !c.is(closing):
		c.fail(ErrHandshakeTimeout)
	case c.is(greeting): // it is turned away, and has been told why
		c.state |= failed
	case c.Pending() > 0:
		c.fail(ErrCloseTimeout)
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

func limitFrom(since, limit time.Duration, why error) timeLimit {
	if limit <= 0 {
		return timeLimit{}
	}
	return timeLimit{since + limit, why}
}

// timeLimits are those that run for an open connection. Where several are over, the
// first counts.
func (c *Conn) timeLimits(now time.Duration, all *[3]timeLimit) {
	c.noteBypassUse()
	l, heard := &c.host.Limits, now-c.heard.since(now)
	if c.hasOutput() {
		all[0] = limitFrom(c.outputSince(), l.WriteTimeout, ErrWriteTimeout)
	}
	if c.is(peerEnded) && c.retained() {
		all[1] = limitFrom(heard, l.IdleTimeout, ErrIdleTimeout)
	}
	if c.is(peerEnded | inputHeld | openPending | overHighWater | readPaused) {
		return // it is not the peer's turn, or nobody listens
	}
	if every := c.host.Heartbeat.Every; !c.is(relayed) {
		all[1] = limitFrom(heard+time.Duration(c.unanswered())*every, every, nil)
		if c.unanswered() >= c.host.Heartbeat.MaxMissed {
			all[1].why = ErrHeartbeatTimeout
		}
	}
	switch {
	case c.state&(outbound|ownHandler) == outbound:
	case c.state&(outbound|silent) == silent:
		all[2] = limitFrom(heard, l.FirstByteTimeout, ErrFirstByteTimeout)
	case c.in != nil || c.partial() > 0:
		all[2] = limitFrom(c.begun(), l.MessageTimeout, ErrMessageTimeout)
	default:
		all[2] = limitFrom(heard, l.IdleTimeout, ErrIdleTimeout)
	}
}

// overdue is the reason of the limit that is over, nil if none is, and then whether a
// heartbeat is due.
func (c *Conn) overdue(now time.Duration) (why error, beat bool) {
	var limits [3]timeLimit
	c.timeLimits(now, &limits)
	for i := range limits {
		l := &limits[i]
		switch {
		case l.at == 0 || now < l.at:
		case l.why != nil:
			return l.why, false
		default:
			beat = true
		}
	}
	return nil, beat
}

// begun is when the message at hand has begun.
func (c *Conn) begun() time.Duration {
	if c.in != nil {
		return earlier(c.in.since, c.partial())
	}
	return c.partial()
}

// ProcessStopped says that the process has stood still for so long. Then what bounds a
// connection's beginning and end has stood still, too.
func (c *Conn) ProcessStopped(d time.Duration) {
	if c.more != nil && c.more.due > 0 {
		c.more.due += min(d, math.MaxInt64-c.more.due)
	}
	c.ExtendTimes(d)
}

// ExtendTimes says that for so long nobody has read from the peer, because a handler was at work: its
// limits of time are extended by that. Of a connection that is being dialled nothing
// is expected yet.
func (c *Conn) ExtendTimes(d time.Duration) {
	if !c.is(open) {
		return
	}
	if heard := c.heard + coarseOf(d); int32(c.host.coarseNow()-heard) > 0 {
		c.heard = heard
	} else {
		c.heard = c.host.coarseNow()
	}
	for _, b := range []*Buffer{c.in, c.out} {
		if b != nil {
			b.since = min(b.since+d, c.host.Clock())
		}
	}
	if c.more != nil && c.more.heldSince > 0 {
		c.more.heldSince = min(c.more.heldSince+d, c.host.Clock())
	}
	c.files().extend(d, c.host.Clock())
}

// Wakes is when Expire may have something to do, as far as is known now; ok is
// false for never.
func (c *Conn) Wakes() (at time.Duration, ok bool) {
	at, _ = c.Due()
	if !c.is(closing | greeting | failed) {
		var limits [3]timeLimit
		c.timeLimits(c.host.Clock(), &limits)
		for i := range limits {
			at = earlier(at, limits[i].at)
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

// Watches says whether the engine itself gives up an idle peer that has gone without
// a word, within a time: by heartbeats, or by IdleTimeout.
func (c *Config) Watches(gone time.Duration) bool {
	idle, beats := c.Limits.IdleTimeout, c.Heartbeat.Every*time.Duration(c.Heartbeat.MaxMissed+1)
	return beats > 0 && beats <= gone || idle > 0 && idle <= gone
}

// unanswered is how many heartbeats the peer has not answered.
func (c *Conn) unanswered() int { return int(c.state / missed) }

// sendHeartbeat sends a heartbeat.
func (c *Conn) sendHeartbeat() {
	c.state += missed
	c.host.Counters.Add(Heartbeats, 1)
	c.call(c.host.Heartbeat.Send)
	c.endEvent()
}

// ExpectNoAnswer is called while a heartbeat is sent whose peer has nothing to say: its time
// begins anew, as if it had answered.
func (c *Conn) ExpectNoAnswer() {
	c.state &^= allMissed
	c.heard = c.host.coarseNow()
}

// SweepPeriod is how often each connection is to be looked at because of these
// limits: eight times in the shortest. It is 0 if that is never.
func (h *Host) SweepPeriod() time.Duration {
	l := &h.Limits
	var shortest time.Duration
	for _, d := range []time.Duration{l.FirstByteTimeout, l.MessageTimeout, l.IdleTimeout, l.WriteTimeout, h.Heartbeat.Every} {
		if d > 0 && (shortest == 0 || d < shortest) {
			shortest = d
		}
	}
	if shortest == 0 {
		return 0
	}
	return max(shortest/8, UrgentSweepPeriod)
}

// The times of sweeping: the least time between two slices, and in how long all
// connections are looked at when some are about to end.
const (
	MinSlice          = 50 * time.Millisecond
	UrgentSweepPeriod = 8 * MinSlice
)

// maxSlices is in how many slices all connections are looked at, at most.
const maxSlices = 64

// Slice says how often a slice of the connections is looked at when each is to be
// once in a period, and how many of so many chunks of them that is. Where there
// are few and there is time, there are few slices.
func Slice(period time.Duration, chunks int) (every time.Duration, n int) {
	slices := int(min(period/MinSlice, maxSlices))
	if period > UrgentSweepPeriod {
		slices = min(slices, chunks)
	}
	slices = max(slices, 1)
	return period / time.Duration(slices), (chunks + slices - 1) / slices
}
