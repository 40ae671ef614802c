package engine

import (
	"slices"
	"time"
)

// coarse exceeds the error of coarse times.
const coarse = 40 * time.Millisecond

func (s *sim) advanceClock(d time.Duration) {
	s.now += d
	s.host.SetClock(s.now)
	s.log("time passes: %v", s.now)
	for _, l := range s.lives {
		if l != nil {
			s.checkTimeouts(l)
		}
	}
}

func (s *sim) checkTimeouts(l *life) {
	c := l.conn
	s.pullRelayed(l, 0)
	owes, open := c.UnsentAndDroppedBytes() > 0, !c.is(closing|failed)
	at, over := l.endDue()
	must := s.requiredTimeout(l)
	if over && c.is(handshaking) {
		l.allowReasons(ErrHandshakeTimeout)
	}
	if over && owes {
		l.allowReasons(ErrCloseTimeout)
	}
	l.allowReasons(s.allowedTimeouts(l)...)
	own := open && !c.is(handshaking|openPending) && !(over && owes) // its own times count
	deadline, timer := own && l.hasPassed(l.deadline), own && l.hasPassed(l.timer)
	beats, timers := s.beats, s.timers
	if c.isReadRateExceeded() {
		l.relieved = s.now
	}
	acted := c.CheckTimeouts(s.now)
	if next := s.checkedNextAction(l); !acted {
		s.check(next == Wait, "%v: Expire did nothing, and Next is %d", l, next)
	} else if over && (owes || !open || c.is(handshaking)) {
		s.check(next == Close, "%v: not expired at %v, due %v", l, s.now, at)
	}
	s.check(!deadline || c.is(closing), "%v: not closed at %v, the deadline was at %v", l, s.now, l.deadline)
	s.check(!timer || deadline || s.timers == timers+1, "%v: Timer was not called at %v, it was set for %v", l, s.now, l.timer)
	if open && c.is(closing) && !deadline && s.timers == timers && !l.told {
		silence := []error{ErrFirstByteTimeout, ErrMessageTimeout, ErrIdleTimeout, ErrHeartbeatTimeout}
		s.check(!slices.Contains(silence, c.extra.closeReason), "%v: closed for %v, and nobody has looked for input", l, c.extra.closeReason)
	}
	arrived := l.arrived
	s.driveConnAndTouched(l)
	if open && !over && must != nil && beats == s.beats && timers == s.timers && arrived == l.arrived && !l.told {
		s.check(l.closed || c.is(closing|failed), "%v: not closed at %v for %v", l, s.now, must)
	}
}

// endDue returns when a close or handshake times out, and whether it has.
func (l *life) endDue() (at time.Duration, over bool) {
	if l.conn.extra == nil || l.conn.extra.expiry == 0 {
		return 0, false
	}
	return l.conn.extra.expiry, l.conn.extra.expiry <= l.conn.runtime.Now()
}

func (l *life) hasPassed(at time.Duration) bool { return at != 0 && at <= l.conn.runtime.Now() }

func (s *sim) handlerSetsTimers(l *life) {
	after := func() time.Duration { return time.Duration(s.dice.intN(4)) * time.Duration(s.dice.intN(int(simClose))) }
	d, at := after(), time.Duration(0)
	if d > 0 {
		at = s.now + d
	}
	if s.dice.intN(4) > 0 {
		s.log("%v: sets its timer for %v", l, at)
		l.timer = at
		l.conn.SetTimer(d)
	} else {
		s.log("%v: sets its deadline to %v", l, at)
		l.deadline = at
		l.conn.SetDeadline(d)
	}
}

func (s *sim) onTimer(c *Conn) {
	l := s.life(c)
	s.check(!l.closed && !c.is(closing|failed), "%v: Timer after the end: state %b", l, c.state)
	s.check(l.hasPassed(l.timer), "%v: Timer at %v, and it was set for %v", l, s.now, l.timer)
	l.timer = 0
	s.timers++
	s.log("%v: its timer runs out", l)
	s.act(l, "tick")
}

// allowedTimeouts returns the close reasons that are possible now.
func (s *sim) allowedTimeouts(l *life) (may []error) {
	lim, c := &s.host.Limits, l.conn
	if c.is(closing | failed | handshaking | openPending) {
		return nil
	}
	quiet, calm := s.now-l.heard, s.now-l.silentSince(l.heard)
	add := func(why error, limit, passed time.Duration) {
		if limit > 0 && passed >= limit {
			may = append(may, why)
		}
	}
	if l.hasPassed(l.deadline) {
		may = append(may, ErrDeadline)
	}
	if n := len(l.wire); n < len(l.wrote) {
		add(ErrWriteTimeout, lim.WriteTimeout, s.now-l.stamps[n])
	}
	if l.told && l.outlivesPeer() {
		add(ErrIdleTimeout, lim.IdleTimeout, quiet)
	}
	if !l.told && !c.is(dialled|overHighWater|readPaused) {
		switch {
		case c.is(relayed):
			add(ErrIdleTimeout, lim.IdleTimeout, calm)
		case l.plaintextReceived() == 0:
			add(ErrFirstByteTimeout, lim.FirstByteTimeout, calm)
		case c.in != nil:
			add(ErrMessageTimeout, lim.MessageTimeout, s.now-l.silentSince(l.since))
		default:
			add(ErrIdleTimeout, lim.IdleTimeout, calm)
		}
	}
	if h := s.host.Heartbeat; h.Every > 0 && l.unheard >= simMissed {
		add(ErrHeartbeatTimeout, h.Every, quiet/(simMissed+1))
	}
	return may
}

// requiredTimeout returns a close reason that is overdue, or nil.
func (s *sim) requiredTimeout(l *life) error {
	lim, c := &s.host.Limits, l.conn
	if lim.WriteTimeout == 0 || c.is(handshaking|openPending|closing|failed|peerEOF|inputHeld|relayed) {
		return nil
	}
	if n := len(l.wire); n < len(l.wrote) && s.now-l.stamps[n] >= 2*lim.WriteTimeout && !l.filed {
		return ErrWriteTimeout
	}
	quiet, since := s.now-l.silentSince(l.heard), l.silentSince(l.since)
	switch {
	case c.is(dialled | overHighWater | readPaused):
	case l.plaintextReceived() == 0 && quiet >= lim.FirstByteTimeout+coarse:
		return ErrFirstByteTimeout
	case l.plaintextReceived() > 0 && c.in != nil && s.now-since >= lim.MessageTimeout+coarse:
		return ErrMessageTimeout
	case l.plaintextReceived() > 0 && c.in == nil && quiet >= lim.IdleTimeout+coarse:
		return ErrIdleTimeout
	}
	return nil
}

// sendHeartbeat is the handler's Heartbeat.Send.
func (s *sim) sendHeartbeat(c *Conn) {
	l := s.lives[c.Slot()]
	s.check(l.opened && !l.closed && !c.is(closing|failed|peerEOF), "%v: heartbeat: state %b", l, c.state)
	quiet := s.now - l.heard
	s.check(!c.is(overHighWater|inputHeld|readPaused|relayed), "%v: heartbeat while nobody listens: state %b", l, c.state)
	s.check(quiet >= simBeat && l.unheard < simMissed, "%v: heartbeat after %v, %d unheard", l, quiet, l.unheard)
	l.unheard++
	s.beats++
	s.log("%v: heartbeat", l)
	s.act(l, "beat")
}

// checkHighWater tracks HighWater and LowWater.
func (s *sim) checkHighWater(l *life) {
	if l.conn.is(relayed) {
		l.choked, l.high = false, false // its backpressure is the other one's
		return
	}
	if l.conn.UnsentAndDroppedBytes() > simHigh {
		l.choked, l.high = true, true
	}
	if l.conn.UnsentAndDroppedBytes() <= simLow {
		l.choked = false
	}
}

// onWritable is the handler's Drained.
func (s *sim) onWritable(c *Conn) {
	l := s.life(c)
	s.check(l.opened && !l.closed && !c.is(closing|failed|relayed), "%v: Writable after the end: state %b", l, c.state)
	s.check(l.high, "%v: Writable, and never was more than %d bytes owed", l, simHigh)
	s.check(c.UnsentAndDroppedBytes() <= simHigh, "%v: Writable while %d bytes are owed", l, c.UnsentAndDroppedBytes())
	l.high, l.awaits = c.UnsentAndDroppedBytes() > simHigh, false
	s.log("%v: writable", l)
	s.randomPanic(l)
	if l.acts == streams && l.streamed < 20 && s.dice.intN(4) > 0 {
		l.streamed++
		s.writeUntilPaused(l)
	}
	s.randomHandlerCall(l)
}

func (s *sim) writeUntilPaused(l *life) {
	for range 20 {
		if s.checkPaused(l) {
			return
		}
		s.handlerWrites(l, []byte("a piece of a stream")[:1+s.dice.intN(19)])
	}
}

// onDraining is the handler's Draining.
func (s *sim) onDraining(c *Conn) {
	l := s.life(c)
	s.check(l.opened && !l.closed && !c.is(closing|failed|relayed), "%v: Draining after the end: state %b", l, c.state)
	s.check(l.drained && l.draining == 0, "%v: Draining again, or without Drain", l)
	l.draining++
	s.log("%v: draining", l)
	s.act(l, "farewell")
}
