package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

func (s *sim) checkInvariants() {
	s.driveTouched()
	s.check(s.failure == "", "fails in a call of the handler")
	s.check(s.host.directSent == 0, "%d bytes count as sent in this event when it is over", s.host.directSent)
	open, held := 0, 0
	for i, c := range s.slots {
		inBox := 0
		for _, p := range s.posts {
			if p.to.conn == c {
				inBox += max(emptyRequestSize, len(p.data))
			}
		}
		l := s.lives[i]
		if l != nil {
			s.pullRelayed(l, 0)
			for _, p := range l.kept {
				inBox += max(emptyRequestSize, len(p.data))
			}
		}
		s.check(c.refState.postedBytes() == inBox+c.postedBytesInOutput(), "slot %d: %d bytes marked as posted, %d are in the box and %d in the output", i, c.refState.postedBytes(), inBox, c.postedBytesInOutput())
		if l == nil {
			continue
		}
		open++
		s.check(c.unsentInMemoryBytes() <= 3*simMaxUnsent+16+l.relayedExtra(), "%v: %d bytes of unsent output", l, c.unsentInMemoryBytes())
		s.check((c.fileQueueOrNil() == nil) == (len(c.fileQueueOrNil().entriesOrNil()) == 0) && len(c.fileQueueOrNil().entriesOrNil()) <= MaxQueuedFiles, "%v: %d files wait", l, len(c.fileQueueOrNil().entriesOrNil()))
		s.check(c.UnsentAndDroppedBytes() == len(l.wrote)-len(l.wire), "%v: %d bytes pending, want %d", l, c.UnsentAndDroppedBytes(), len(l.wrote)-len(l.wire))
		s.checkMissedMessages(l)
		s.check(!l.tooLong || c.is(closing), "%v: has refused a message of MaxMessage bytes, and is open", l)
		s.check(c.postedBytesInOutput() <= c.UnsentAndDroppedBytes(), "%v: %d bytes owed to posts, %d pending", l, c.postedBytesInOutput(), c.UnsentAndDroppedBytes())
		s.check(!l.ended || c.in == nil, "%v: keeps input after Ended", l)
		if c.in != nil {
			held++
			s.check(c.in.Len() > 0, "%v: holds an empty buffer for input", l)
			s.check(c.in.Len() <= simMaxMessage+simMaxRead+l.rude+l.layerInput(), "%v: %d bytes of unused input", l, c.in.Len())
		}
		if c.out != nil {
			held += 1 + len(c.out.rest)
		}
		held += c.fileQueueOrNil().sumDataBehindFiles(func(b *Buffer) int { return 1 + len(b.rest) })
	}
	s.check(len(s.lent) == held, "%d buffers are lent, %d are held", len(s.lent), held)
	s.check(int(s.counters.Get(Open)) == open, "Counters.Open is %d, want %d", s.counters.Get(Open), open)
	s.checkMemoryCounters()
}

// relayedExtra is the maximum that a relay may have written beyond its limit: what was received
// nevertheless.
func (l *life) relayedExtra() int {
	if l.mate == nil {
		return 0
	}
	return l.mate.rude + simMaxMessage + simMaxRead
}

func (s *sim) checkMissedMessages(l *life) {
	want := l.fewer
	for _, u := range l.subs {
		if u.left {
			return // what it did not get does not count
		}
	}
	for _, u := range l.takes {
		want += int64(u.replaced)
	}
	s.check(l.conn.MissedMessages() == want, "%v: has missed %d messages, want %d", l, l.conn.MissedMessages(), want)
}

// settleAll lets everything under way arrive and checks that no connection is stuck.
func (s *sim) settleAll() {
	s.log("settle")
	for range 10_000 {
		before := len(s.trace)
		if s.box.HasRequests() {
			s.deliverRequests()
		}
		for _, l := range s.lives {
			for l != nil && l.retained > 0 && s.lives[l.conn.slot] == l {
				s.handlerReleases(l)
			}
			if l != nil && s.lives[l.conn.slot] == l && l.isReadingOff() {
				s.turnReadingOn(l)
			}
			if l != nil && s.lives[l.conn.slot] == l && l.conn.isReadRateExceeded() {
				s.log("%v: its rate allows more", l)
				l.relieved = s.now
				l.conn.resumeReadingIfRateAllows(math.MaxInt64)
				s.driveConnAndTouched(l)
			}
		}
		for _, l := range s.lives {
			if l != nil && (l.conn.WantsInput() || l.reset) {
				s.makeReadable(l)
			}
		}
		for _, l := range s.lives {
			if l != nil {
				s.makePeerSpace(l, 2*simMaxUnsent)
			}
		}
		s.checkInvariants()
		if len(s.trace) == before && !s.box.HasRequests() {
			s.checkSettled()
			return
		}
	}
	s.fail("does not come to rest")
}

func (s *sim) checkSettled() {
	for _, l := range s.lives {
		if l == nil {
			continue
		}
		c := l.conn
		next := s.checkedNextAction(l)
		s.check(next == Wait && c.UnsentAndDroppedBytes() == 0, "%v: at rest, but asks for %d and owes %d bytes", l, next, c.UnsentAndDroppedBytes())
		if c.is(handshaking) && l.told {
			continue // it has its time
		}
		if c.is(closing) {
			s.check(!l.fin && c.WantsInput(), "%v: stuck while it closes: state %b", l, c.state)
			continue
		}
		if l.joining && slices.ContainsFunc(l.related, func(o *life) bool { return len(o.kept) > 0 }) {
			continue // that one's layer has its time, too
		}
		s.check(!l.parting && !l.joining, "%v: at rest, parting is %v, and joining is %v", l, l.parting, l.joining)
		s.check(len(l.takes) == 0 && (len(l.kept) == 0 || c.is(handshaking)), "%v: at rest, with values or mail that wait", l)
		s.check(l.arrived == len(l.raw), "%v: at rest with %d of %d bytes read", l, l.arrived, len(l.raw))
		s.check(!l.finishing || l.shut || c.is(handshaking), "%v: at rest, and has not closed its direction", l)
		if c.is(relayed) {
			s.checkRelayed(l)
			continue
		}
		s.check(!l.fin && c.WantsInput(), "%v: stuck: state %b", l, c.state)
		s.check(s.host.Drained == nil || !l.awaits, "%v: at rest, was told that it is Paused, and Writable was not called", l)
		s.check(s.host.Draining == nil || !l.drained || !l.opened || l.draining == 1, "%v: was to drain, and Draining was called %d times", l, l.draining)
		s.check(!c.is(draining) || c.in != nil || l.shut, "%v: was to drain, is idle, and is still open", l)
	}
}

// checkRelayed checks that an idle relay has forwarded everything.
func (s *sim) checkRelayed(l *life) {
	s.findJoinedRelays()
	m := l.mate
	s.check(m != nil && m.mate == l && s.lives[m.conn.slot] == m, "%v: at rest, and joined with %v", l, m)
	s.check(l.used == l.plaintextReceived(), "%v: at rest, and %d of %d bytes are relayed", l, l.used, l.plaintextReceived())
	s.check(l.told == l.fin && m.shut == l.fin, "%v: its peer has ended: %v; at rest, that is known: %v, and passed on: %v", l, l.fin, l.told, m.shut)
	s.check(!l.fin || !m.fin, "%v: at rest, and both directions of its relay have ended", l)
}

// finishAll ends all peers and lets time pass: nothing may be left.
func (s *sim) finishAll() {
	for _, l := range s.lives {
		if l != nil {
			s.log("%v: the peer ends at last", l)
			l.fin = true
		}
	}
	s.settleAll()
	for range 3 {
		s.advanceClock(simHandshake)
		s.settleAll()
	}
	s.checkInvariants()
	refused := 0
	for _, l := range s.past {
		s.check(l.closed == l.opened && (l.closed || l.layer != nil), "%v: opened is %v and closed is %v", l, l.opened, l.closed)
		if !l.closed {
			refused++
		}
	}
	counts := Counts{}
	s.counters.AddToWithMaxAge(&counts)
	s.checkFinalCounters(counts, refused)
	for i, c := range s.slots {
		s.check(c.refState.postedBytes() == 0, "slot %d: %d bytes still marked as posted", i, c.refState.postedBytes())
	}
	s.check(len(s.lent) == 0, "%d buffers were not returned", len(s.lent))
}

func (s *sim) checkComplete(l *life) {
	s.check(bytes.Equal(l.wire, l.wrote), "%v: the peer got %q of %q", l, l.wire, l.wrote)
}

func (s *sim) checkReason(l *life, why error) {
	causes := slices.Clone(l.causes)
	for _, o := range append(l.related, l.mate) {
		if o != nil {
			causes = append(causes, o.causes...)
		}
	}
	s.check(slices.ContainsFunc(causes, func(cause error) bool { return errors.Is(why, cause) }),
		"%v: closed for %v, which did not happen; what did: %v", l, why, causes)
	s.check(errors.Is(why, ErrDetached) == l.taken || errors.Is(why, errPanic), "%v: closed for %v, detached: %v", l, why, l.taken)
	if l.mate != nil || l.upgrading || len(l.related) > 0 && errors.Is(why, io.EOF) {
		return // see checkRelay
	}
	inOrder := errors.Is(why, io.EOF) || errors.Is(why, ErrServerClosed)
	if inOrder || why == nil || errors.Is(why, errOwn) || errors.Is(why, ErrDeadline) || errors.Is(why, ErrMessageTooLong) || errors.Is(why, ErrDetached) {
		s.checkComplete(l)
	}
	s.check(!inOrder || l.retained == 0 || l.shut, "%v: closed in order, and is retained", l)
	s.check(!inOrder || l.waiting == 0, "%v: closed in order with %d accepted posts in the mailbox", l, l.waiting)
	s.check(!errors.Is(why, ErrServerClosed) || l.refused == 0, "%v: drained with %d bytes of a message unused", l, l.refused)
	s.check(!errors.Is(why, io.EOF) || l.ended, "%v: end of file without Ended", l)
}

func (s *sim) log(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf(format, args...))
}

func (s *sim) check(ok bool, format string, args ...any) {
	if !ok || s.failure != "" {
		s.fail(format, args...)
	}
}

// simFailure ends a simulation. If it passes through a handler call, Conn recovers it, and the
// simulation ends at the next check.
type simFailure string

func (s *sim) fail(format string, args ...any) {
	if s.failure == "" {
		s.failure = simFailure(fmt.Sprintf("%s: %s\nafter these steps:\n\t%s", s.name, fmt.Sprintf(format, args...), strings.Join(s.trace, "\n\t")))
	}
	panic(s.failure)
}

// life returns the record of the connection that the handler is called for.
func (s *sim) life(c *Conn) *life {
	l := s.lives[c.Slot()]
	s.check(l.opened, "%v: called before Opened: state %b", l, c.state)
	s.check(c.Value() == l, "%v: has the value of another connection", l)
	s.check(c.Ref() == l.ref, "%v: its Ref differs from the one in Opened", l)
	return l
}

func sharedMemory(posts []*post) (n int64) {
	for _, p := range posts {
		if p.shared {
			n += int64(cap(p.data))
		}
	}
	return n
}

func (s *sim) checkMemoryCounters() {
	var want [gauges]int64
	want[Buffered] = int64(s.box.CountedMemory()) + sharedMemory(s.posts)
	for _, l := range s.lives {
		if l == nil {
			continue
		}
		want[Open]++
		want[Buffered] += int64(l.conn.BufferMemory()) + sharedMemory(l.kept)
		for bit, n := range map[uint32]*int64{handshaking: &want[Handshaking], overHighWater: &want[Paused], closing: &want[Closing]} {
			if l.conn.is(bit) {
				*n++
			}
		}
	}
	for i := range gauges {
		s.check(s.counters.Get(i) == want[i], "gauge %d is %d, want %d", i, s.counters.Get(i), want[i])
	}
}

func (s *sim) checkFinalCounters(n Counts, refused int) {
	count := func(what string, got int64, want int) {
		s.check(got == int64(want), "counted %d %s, want %d", got, what, want)
	}
	var closed int64
	for why := NumRefusedCauses; why < NumCauses; why++ {
		closed += n.ClosedBy(why)
	}
	dialled, accepted := 0, 0
	for _, l := range s.past {
		if l.dialled {
			dialled++
		} else if l.opened {
			accepted++
		}
	}
	count("refused", n.TotalRefused(), refused)
	count("closed", closed, s.closes)
	count("accepted", n[Accepted], accepted)
	count("dialled", n[Dialled], dialled)
	count("heartbeats", n[Heartbeats], s.beats)
	count("replaced", n[Replaced], s.replaced)
	count("dropped", n[Dropped], s.drops)
	count("panics", n[Panics], s.panics)
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
		count("closed for "+why.Error(), n.ClosedBy(cause), times)
	}
}
