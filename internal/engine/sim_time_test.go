package engine

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// This file is what the simulation knows of the passing of time, of water marks
// and of counters.

// dress rolls what the host offers beyond the plain.
func (s *sim) dress() {
	h, roll := &s.host, s.dice.roll(64)
	h.DropMessages = roll&1 != 0
	if roll&2 != 0 {
		h.Drained, h.Draining = s.writable, s.drainingNow
	}
	if roll&4 != 0 {
		l := &h.Limits
		l.FirstByteTimeout, l.MessageTimeout, l.IdleTimeout, l.WriteTimeout = simFirstByte, simMessage, simIdle, simWrite
	}
	if roll&8 != 0 {
		h.Heartbeat = Heartbeat{Every: simBeat, Send: s.beat, MaxMissed: simMissed}
	}
	if roll&16 != 0 {
		h.NewLayer = s.newLayer
		h.Limits.HandshakeTimeout = simHandshake
	}
	if roll&32 != 0 { // as with workers, but that they are quick
		h.Away, h.Direct = true, nil
		h.Shed = s.shed
	}
}

// coarse is how much less than the truth a time of silence may be taken for, and
// with it some more.
const coarse = 40 * time.Millisecond

// pass moves the clock and expires who is due.
func (s *sim) pass(d time.Duration) {
	s.now += d
	s.host.SetClock(s.now)
	s.log("time passes: %v", s.now)
	for _, l := range s.lives {
		if l != nil {
			s.expire(l)
		}
	}
}

func (s *sim) expire(l *life) {
	c := l.conn
	at, ok := c.Due()
	owes, over, open := c.Pending() > 0, ok && at <= s.now, !c.is(closing|failed)
	must := s.overdue(l)
	if over && c.is(greeting) {
		l.cause(ErrHandshakeTimeout)
	}
	if over && owes {
		l.cause(ErrCloseTimeout)
	}
	l.cause2(s.mayExpire(l)...)
	beats := s.beats
	acted := c.Expire(s.now)
	s.check(acted || c.Next() == Wait, "%v: Expire did nothing, and Next is %d", l, c.Next())
	if want := over && (owes || !open || c.is(greeting)); want {
		s.check(c.Next() == Close, "%v: not expired at %v, due %v", l, s.now, at)
	}
	if open && c.is(closing) {
		silence := []error{ErrFirstByteTimeout, ErrMessageTimeout, ErrIdleTimeout, ErrHeartbeatTimeout}
		s.check(!slices.Contains(silence, c.more.why), "%v: closed for %v, and nobody has looked for input", l, c.more.why)
	}
	arrived := l.arrived
	s.drive(l)
	if open && !over && must != nil && beats == s.beats && arrived == l.arrived && !l.told {
		s.check(l.closed || c.is(closing|failed), "%v: not closed at %v for %v", l, s.now, must)
	}
}

// mayExpire are the reasons for which a connection may be closed now.
func (s *sim) mayExpire(l *life) (may []error) {
	lim, c := &s.host.Limits, l.conn
	if c.is(closing | failed | greeting | fresh) {
		return nil
	}
	quiet, calm := s.now-l.heard, s.now-l.free(l.heard)
	add := func(why error, limit, passed time.Duration) {
		if limit > 0 && passed >= limit {
			may = append(may, why)
		}
	}
	if n := len(l.wire); n < len(l.wrote) {
		add(ErrWriteTimeout, lim.WriteTimeout, s.now-l.stamps[n])
	}
	if !l.told && !c.is(outbound|choked|deaf) {
		switch {
		case l.arrived <= l.header():
			add(ErrFirstByteTimeout, lim.FirstByteTimeout, calm)
		case c.in != nil:
			add(ErrMessageTimeout, lim.MessageTimeout, s.now-l.free(l.since))
		default:
			add(ErrIdleTimeout, lim.IdleTimeout, calm)
		}
	}
	if h := s.host.Heartbeat; h.Every > 0 && l.unheard >= simMissed {
		add(ErrHeartbeatTimeout, h.Every, quiet/(simMissed+1))
	}
	return may
}

// overdue is a reason for which a connection must be closed by now, nil if there
// is none.
func (s *sim) overdue(l *life) error {
	lim, c := &s.host.Limits, l.conn
	if lim.WriteTimeout == 0 || c.is(greeting|fresh|closing|failed|gone|held) {
		return nil
	}
	if n := len(l.wire); n < len(l.wrote) && s.now-l.stamps[n] >= 2*lim.WriteTimeout && !l.filed {
		return ErrWriteTimeout
	}
	quiet, since := s.now-l.free(l.heard), l.free(l.since)
	switch {
	case c.is(outbound | choked | deaf):
	case l.arrived <= l.header() && quiet >= lim.FirstByteTimeout+coarse:
		return ErrFirstByteTimeout
	case l.arrived > l.header() && c.in != nil && s.now-since >= lim.MessageTimeout+coarse:
		return ErrMessageTimeout
	case l.arrived > l.header() && c.in == nil && quiet >= lim.IdleTimeout+coarse:
		return ErrIdleTimeout
	}
	return nil
}

func (l *life) cause2(whys ...error) { l.causes = append(l.causes, whys...) }

// beat is the handler's heartbeat.
func (s *sim) beat(c *Conn) {
	l := s.lives[c.Slot()]
	s.check(l.opened && !l.closed && !c.is(closing|failed|gone), "%v: heartbeat: state %b", l, c.state)
	quiet := s.now - l.heard
	s.check(!c.is(choked|held|deaf), "%v: heartbeat while nobody listens: state %b", l, c.state)
	s.check(quiet >= simBeat && l.unheard < simMissed, "%v: heartbeat after %v, %d unheard", l, quiet, l.unheard)
	l.unheard++
	s.beats++
	s.log("%v: heartbeat", l)
	s.mayPanic(l)
	s.write(l, []byte("beat"))
	s.maySurprise(l)
}

// water keeps the marks of a connection that waits.
func (s *sim) water(l *life) {
	if l.conn.Pending() > simHigh {
		l.choked, l.high = true, true
	}
	if l.conn.Pending() <= simLow {
		l.choked = false
	}
}

// writable is the handler's Writable.
func (s *sim) writable(c *Conn) {
	l := s.life(c)
	s.check(l.opened && !l.closed && !c.is(closing|failed), "%v: Writable after the end: state %b", l, c.state)
	s.check(l.high, "%v: Writable, and never was more than %d bytes owed", l, simHigh)
	s.check(c.Pending() <= simHigh, "%v: Writable while %d bytes are owed", l, c.Pending())
	l.high, l.awaits = c.Pending() > simHigh, false
	s.log("%v: writable", l)
	s.mayPanic(l)
	if l.acts == streams && l.streamed < 20 && s.dice.roll(4) > 0 {
		l.streamed++
		s.stream(l)
	}
	s.maySurprise(l)
}

// stream writes until it is paused, or no more fits.
func (s *sim) stream(l *life) {
	for range 20 {
		if s.paused(l) {
			return
		}
		s.write(l, []byte("a piece of a stream")[:1+s.dice.roll(19)])
	}
}

// drainingNow is the handler's Draining.
func (s *sim) drainingNow(c *Conn) {
	l := s.life(c)
	s.check(l.opened && !l.closed && !c.is(closing|failed), "%v: Draining after the end: state %b", l, c.state)
	s.check(l.drained && l.draining == 0, "%v: Draining again, or without Drain", l)
	l.draining++
	s.log("%v: draining", l)
	s.mayPanic(l)
	s.write(l, []byte("farewell"))
	s.maySurprise(l)
}

// yield kills the connection with the largest buffers.
func (s *sim) yield() {
	open := slices.DeleteFunc(slices.Clone(s.lives), func(l *life) bool { return l == nil })
	if len(open) == 0 {
		return
	}
	l := slices.MaxFunc(open, func(a, b *life) int { return cmp.Compare(a.conn.Holds(), b.conn.Holds()) })
	s.log("%v: gives way", l)
	l.cause(ErrOverBudget)
	l.conn.Kill(ErrOverBudget)
	s.drive(l)
}

// recount compares what is counted with what there is.
func (s *sim) recount() {
	var want [gauges]int64
	for _, l := range s.lives {
		if l == nil {
			continue
		}
		want[Open]++
		want[Buffered] += int64(l.conn.Holds())
		for bit, n := range map[uint32]*int64{greeting: &want[Greeting], choked: &want[Paused], closing: &want[Closing]} {
			if l.conn.is(bit) {
				*n++
			}
		}
	}
	for i := range gauges {
		s.check(s.counters.Get(i) == want[i], "gauge %d is %d, want %d", i, s.counters.Get(i), want[i])
	}
}

// checkBooks compares the counters at the end with what has happened.
func (s *sim) checkBooks(n Counts, refused int) {
	s.check(n.AllRefused() == int64(refused), "counted %d refused, want %d", n.AllRefused(), refused)
	var closed int64
	for why := RefusedCauses; why < Causes; why++ {
		closed += n.Closed(why)
	}
	s.check(closed == int64(s.closes), "counted %d closed, Closed was called %d times", closed, s.closes)
	dialled := 0
	for _, l := range s.past {
		if l.dialled {
			dialled++
		}
	}
	accepted := 0
	for _, l := range s.past {
		if l.opened && !l.dialled {
			accepted++
		}
	}
	s.check(int(n[Accepted]) == accepted && int(n[Dialled]) == dialled, "counted %d accepted and %d dialled, want %d and %d", n[Accepted], n[Dialled], accepted, dialled)
	s.check(n[Heartbeats] == int64(s.beats), "counted %d heartbeats of %d", n[Heartbeats], s.beats)
	s.check(n[Dropped] == int64(s.drops), "counted %d dropped of %d", n[Dropped], s.drops)
	wants := map[Cause]error{
		ClosedFirstByte: ErrFirstByteTimeout, ClosedMessage: ErrMessageTimeout, ClosedIdle: ErrIdleTimeout, ClosedWrite: ErrWriteTimeout,
		ClosedHeartbeat: ErrHeartbeatTimeout, ClosedSlow: ErrSlowConsumer, ClosedBudget: ErrOverBudget, ClosedClose: ErrCloseTimeout,
	}
	for cause, why := range wants {
		times := 0
		for _, l := range s.past {
			if l.closed && errors.Is(l.why, why) {
				times++
			}
		}
		s.check(n.Closed(cause) == int64(times), "counted %d closed for %v, want %d", n.Closed(cause), why, times)
	}
}
