package engine

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// openSlot accepts or dials a connection, whose kernel has space for some output.
func (s *sim) openSlot(slot int) {
	l := &life{conn: s.slots[slot], id: len(s.past), heard: s.now, subs: map[*topic]*sub{}}
	l.acts = handlerCharacter(s.dice.intN(int(characters)))
	l.room, l.dialled = s.dice.intN(2*simMaxUnsent), s.dice.intN(4) == 0
	s.past, s.lives[slot] = append(s.past, l), l
	s.log("%v: opens, %v, room for %d bytes", l, l.acts, l.room)
	peer := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(l.id))
	if l.dialled {
		l.began = time.Duration(s.dice.intN(1<<30)) << (s.dice.intN(30)) // any bits
		l.began++
		l.conn.OnDialling(peer, l.began)
	}
	l.conn.OnOpen(peer, l.dialled)
	s.check(l.opened == (!l.inFirstHandshake() && !s.host.OnWorkers), "%v: Opened was called: %v", l, l.opened)
	s.check(l.conn.IsDialled() == l.dialled, "%v: Outbound is %v", l, !l.dialled)
	s.check(l.conn.Peer() == peer, "%v: Peer is %v, want %v", l, l.conn.Peer(), peer)
	s.driveConnAndTouched(l)
}

// makeReadable gives the driver a reason to read a random number of bytes, occasionally although
// the connection does not want input, like a receive under way when reading pauses.
func (s *sim) makeReadable(l *life) {
	rude := !l.conn.WantsInput()
	if rude && (l.told || l.taken || s.dice.intN(6) > 0) {
		return
	}
	if s.readRandom(l) {
		s.driveConnAndTouched(l)
	}
}

func (s *sim) readRandom(l *life) (some bool) {
	switch n := min(len(l.raw)-l.arrived, 1+s.dice.intN(simMaxRead)); {
	case l.reset:
		s.log("%v: reading fails", l)
		s.breakTransport(l)
	case n > 0:
		s.log("%v: %d bytes arrive", l, n)
		s.deliverInput(l, n)
	case l.fin && !l.told:
		s.log("%v: end of file", l)
		l.told, l.heard = true, s.now
		l.allowReasons(io.EOF)
		l.conn.OnEOF()
	default:
		return false
	}
	return true
}

// deliverInput passes the next n bytes to the connection.
func (s *sim) deliverInput(l *life, n int) {
	if !l.conn.WantsInput() {
		l.rude += n
	}
	p := bytes.Clone(l.raw[l.arrived : l.arrived+n])
	l.arrived += n
	l.heard, l.unheard = s.now, 0
	if l.conn.in == nil {
		l.since = s.now
	}
	l.conn.OnRead(p)
	overwrite(p)
	if c := l.conn; s.sameLoop() && l.layer == nil && c.is(relayed) && !c.is(closing|failed) && c.in == nil {
		o := c.localPartner()
		s.check(!o.is(overHighWater) || o.is(closing) || !c.WantsInput(), "%v: wants more than its relay has room for", l)
	}
}

// readOnce reads once, or reports that there is nothing.
func (s *sim) readOnce(l *life) {
	c := l.conn
	s.check(c.WantsInput(), "%v: is to be read, and wants no input: state %b", l, c.state)
	some := l.reset || l.arrived < len(l.raw) || l.fin && !l.told
	if some {
		s.readRandom(l)
	} else {
		s.log("%v: nothing to read", l)
	}
	if some && (l.arrived < len(l.raw) || l.reset) {
		return
	}
	l.allowReasons(s.allowedTimeouts(l)...) // it is judged now
	c.CloseIfTimedOutAfterEmptyRead()
	s.check(some || !c.is(finalReadPending), "%v: is still to be read from", l)
}

func (s *sim) runOrShedHandler(l *life) {
	c := l.conn
	if !c.CanShed() || s.dice.intN(3) > 0 {
		s.log("%v: deliver", l)
		c.MakeDeferredHandlerCalls()
		return
	}
	s.log("%v: shed", l)
	s.check(l.opened && !l.ended, "%v: may be shed with more than input due: state %b", l, c.state)
	sheds := s.counters.Get(Shed)
	c.CallShedHandler(errShed)
	s.check(s.counters.Get(Shed) == sheds+1, "%v: the shed is not counted", l)
}

// shedInput is the handler's Shed, with the same rules as Received.
func (s *sim) shedInput(c *Conn, in []byte, why error) int {
	s.check(why == errShed, "shed because of %v", why)
	return s.Received(c, in)
}

// makePeerSpace makes the peer read, so that the kernel has space for n more bytes.
func (s *sim) makePeerSpace(l *life, n int) {
	l.room += n
	if l.room == 0 || !l.conn.WantsWritable() {
		return
	}
	s.log("%v: room for %d bytes", l, l.room)
	l.conn.OnWritable()
	s.driveConnAndTouched(l)
}

func (s *sim) startDrain(l *life) {
	s.log("%v: drain", l)
	l.allowReasons(ErrServerClosed)
	if !l.drained {
		l.owed = len(l.raw)
	}
	l.drained = l.drained || !l.conn.is(closing)
	l.conn.BeginShutdownDrain()
	s.driveConnAndTouched(l)
}

// driveConnAndTouched performs the actions of a connection and of those that it has affected.
func (s *sim) driveConnAndTouched(l *life) {
	s.performActions(l)
	s.driveTouched()
}

func (s *sim) driveTouched() {
	for len(s.touched) > 0 {
		c := s.touched[0]
		s.touched = s.touched[1:]
		if l := s.lives[c.Slot()]; l != nil {
			s.performActions(l)
		}
	}
}

func (s *sim) performActions(l *life) {
	if s.lives[l.conn.Slot()] != l {
		return // finished by what it had touched
	}
	c := l.conn
	for range 10_000 {
		open := !c.is(closing)
		if c.is(overHighWater) { // it may not be any more, in a moment
			l.relieved = s.now
		}
		a := s.checkedNextAction(l)
		if open && c.is(closing) && c.extra.closeReason == ErrServerClosed && !c.is(readPaused|peerEOF) {
			s.check(l.arrived >= l.owed, "%v: drained with %d of the %d bytes read that were sent before", l, l.arrived, l.owed)
		}
		switch a {
		case Wait:
			s.checkWaiting(l)
			return
		case Send:
			s.kernelSend(l)
		case SendFile:
			s.kernelSendFile(l)
		case FeedHandler:
			s.runOrShedHandler(l)
		case Read:
			s.readOnce(l)
		case DetachOrExport:
			s.detachConn(l)
		case ShutWrite:
			s.shutWrite(l)
		case Close:
			s.finish(l)
			return
		default:
			s.fail("%v: unknown action %d", l, a)
		}
	}
	s.fail("%v: the driver got stuck: state %b", l, c.state)
}

func (s *sim) checkedNextAction(l *life) Action {
	s.pullRelayed(l, 0)
	l.high = l.high || l.conn.UnsentAndDroppedBytes() > simHigh && !l.conn.is(relayed)
	s.takeLatestValues(l)
	return l.conn.AdvanceToNextAction()
}

func (s *sim) checkWaiting(l *life) {
	c := l.conn
	if l.choked || c.is(overHighWater|readPaused) || c.isReadRateExceeded() {
		l.relieved = s.now
	}
	_, due := c.NextTimerDeadlineOrExpiry()
	s.checkHighWater(l)
	s.check(!l.choked || !c.WantsInput(), "%v: wants input while it owes %d bytes", l, c.UnsentAndDroppedBytes())
	s.check(c.is(readPaused) == l.deaf || !l.isSettled() || c.is(closing), "%v: Deaf is %v", l, c.is(readPaused))
	s.check(!c.IsReadPaused() || !c.WantsInput() || c.is(closing), "%v: wants input, and does not listen", l)
	s.check(!l.told || !c.WantsInput(), "%v: wants input after its end", l)
	s.check(!l.told || due || l.outlivesPeer(), "%v: its peer has ended, and it has no bound: state %b", l, c.state)
	mail := c.refState.postedBytes() > c.postedBytesInOutput()
	s.check(c.WantsInput() || c.WantsWritable() || due || mail || c.is(readPaused) || l.outlivesPeer(),
		"%v: waits for nothing: state %b", l, c.state)
}

// outlivesPeer reports whether others decide when the connection closes after EOF.
func (l *life) outlivesPeer() bool { return l.conn.is(relayed) || l.retained > 0 }

// kernelSendDirect is Runtime.SendDirect. It reports errors at the next send.
func (s *sim) kernelSendDirect(c *Conn, first []byte, behind [][]byte) int {
	l, p := s.lives[c.Slot()], append(bytes.Clone(first), bytes.Join(behind, nil)...)
	s.check(len(first) > 0, "%v: the first of %d pieces is empty", l, 1+len(behind))
	s.pullRelayed(l, len(p))
	s.check(bytes.HasPrefix(p, l.wrote[len(l.wire):]), "%v: sends before what was written earlier", l)
	s.check(!c.is(blocked), "%v: sends directly while the kernel takes nothing", l)
	s.check(l.layer == nil, "%v: sends past its layer", l)
	if l.reset {
		return 0
	}
	return s.kernelTakes(l, p)
}

// kernelTakes takes as much of p as there is space for.
func (s *sim) kernelTakes(l *life, p []byte) int {
	n := min(l.room, len(p))
	s.log("%v: sent %d of %d bytes", l, n, len(p))
	s.check(bytes.HasPrefix(l.wrote[len(l.wire):], p[:n]), "%v: sends %q, want %q", l, p[:n], l.wrote[len(l.wire):])
	s.check(!l.shut, "%v: sends after the end", l)
	l.wire = append(l.wire, p[:n]...)
	l.room -= n
	return n
}

func (s *sim) kernelSend(l *life) {
	c, out := l.conn, l.conn.Output()
	s.check(len(out) > 0, "%v: asked to send nothing", l)
	s.check(bytes.HasPrefix(l.wrote[len(l.wire):], out), "%v: output is %q, want %q", l, out, l.wrote[len(l.wire):])
	s.check(len(out) <= s.host.maxPieceSize, "%v: a piece of %d bytes of output, at most %d were wanted", l, len(out), s.host.maxPieceSize)
	if l.reset && s.dice.intN(2) == 0 {
		s.log("%v: sending fails", l)
		s.breakTransport(l)
		return
	}
	n := s.kernelTakes(l, out)
	c.OnSent(n)
	if n < len(out) || c.UnsentAndDroppedBytes() <= simLow { // otherwise the next piece is sent now
		s.checkHighWater(l)
	}
}

func (s *sim) shutWrite(l *life) {
	c := l.conn
	s.check(!l.shut, "%v: shut twice", l)
	s.checkComplete(l)
	if m := l.mate; m != nil && !c.is(closing) {
		s.check(m.told && m.used == len(m.sent), "%v: shut, and %v has sent %d bytes, of which %d are relayed, ended: %v", l, m, len(m.sent), m.used, m.told)
	}
	s.check(c.is(closing) || c.is(relayed) || l.finishing, "%v: shut, and nobody has asked for it", l)
	s.log("%v: shut", l)
	l.shut = true
	c.MarkWriteShutAndLingerIfClosing()
	if c.is(closing) {
		s.check(c.extra.expiry == s.now+simLinger, "%v: lingers until %v, now is %v", l, c.extra.expiry, s.now)
	}
}

// breakTransport breaks the transport, which is the close reason unless everything was done.
func (s *sim) breakTransport(l *life) {
	if !l.conn.is(closing) || l.conn.UnsentAndDroppedBytes() > 0 {
		l.allowReasons(syscall.ECONNRESET)
	}
	l.conn.OnTransportError(&net.OpError{Op: "write", Err: syscall.EPIPE})
}

func (s *sim) finish(l *life) {
	before := s.counters.Get(Open)
	refused := l.conn.InHandshake()
	if refused && l.layer.failed {
		s.check(!errors.Is(l.conn.extra.closeReason, ErrHandshakeTimeout), "%v: refused for %v, but its layer has failed", l, l.conn.extra.closeReason)
	}
	l.conn.OnClosed()
	s.log("%v: closed: %v", l, l.why)
	s.check(l.closed == !refused, "%v: Closed was called: %v, was refused: %v", l, l.closed, refused)
	s.check(l.opened || !l.closed, "%v: Closed without Opened", l)
	s.check(l.layer == nil || l.layer.closed == 1 || !l.layer.begun, "%v: its layer was not closed once", l)
	s.check(s.counters.Get(Open) == before-1, "%v: Counters.Open is %d, was %d", l, s.counters.Get(Open), before)
	s.check(!l.conn.IsOpen() && l.conn.AdvanceToNextAction() == Wait, "%v: not free after Finish: state %b", l, l.conn.state)
	s.check(l.conn.in == nil && l.conn.out == nil && l.conn.extra == nil && l.conn.userData == nil, "%v: Finish left something behind", l)
	s.lives[l.conn.Slot()] = nil
	s.checkRelay(l)
}

// turnReadingOn turns reading on again, in a handler call.
func (s *sim) turnReadingOn(l *life) {
	s.log("%v: listens", l)
	if l.deaf = false; !l.conn.is(closing) {
		l.relieved = s.now
	}
	l.conn.SetReading(true)
	s.driveConnAndTouched(l)
}
