package engine

import (
	"bytes"
	"errors"
)

type handlerCharacter int

const (
	echoes     handlerCharacter = iota
	lines                       // answer whole lines and leave the rest
	amplifies                   // much output per byte; stops when paused
	floods                      // the same without stopping
	hoards                      // uses input late or never
	closes                      // closes after a goodbye at the end of a line
	streams                     // writes until paused, continues in Writable
	panics                      // panics in any method
	cheats                      // returns invalid counts
	characters                  // number of characters
)

func (a handlerCharacter) String() string {
	return [...]string{"echoes", "lines", "amplifies", "floods", "hoards", "closes", "streams", "panics", "cheats"}[a]
}

func (s *sim) Opened(c *Conn) {
	l := s.lives[c.Slot()]
	s.check(!l.opened && !c.is(relayed), "%v: Opened twice, or in a relay", l)
	s.check(c.Value() == nil, "%v: has the value of another connection", l)
	s.check(!c.is(handshaking|openPending), "%v: Opened before its time: state %b", l, c.state)
	s.check(!l.dialled || c.DialStartedAt() == l.began, "%v: DialledAt is %d, want %d", l, c.DialStartedAt(), l.began)
	s.check(c.RefusedBytes() == 0, "%v: Refused is %d in Opened", l, c.RefusedBytes())
	l.opened, l.known, l.ref = true, true, c.Ref()
	c.SetValue(l)
	s.randomPanic(l)
	if s.dice.intN(4) == 0 {
		s.handlerWrites(l, []byte("hello"))
	}
	s.randomHandlerCall(l)
}

func (s *sim) Received(c *Conn, in []byte) int {
	l := s.life(c)
	want := l.sent[l.used:l.plaintextReceived()]
	s.check(c.UnsentAndDroppedBytes() <= simHigh, "%v: Received while %d bytes are owed", l, c.UnsentAndDroppedBytes())
	s.check(!l.choked || c.UnsentAndDroppedBytes() <= simLow, "%v: Received while %d bytes are owed, of more", l, c.UnsentAndDroppedBytes())
	s.check(!l.ended && !l.closed && !c.is(closing|failed), "%v: Received after the end: state %b", l, c.state)
	s.check(!l.deaf, "%v: Received while it does not listen", l)
	s.check(!c.isMessageRateExceeded(), "%v: Received beyond its rate", l)
	s.check(l.isSettled(), "%v: Received, and nobody is to hear of its input: state %b", l, c.state)
	s.check(bytes.Equal(in, want), "%v: Received offers %q, want %q", l, in, want)
	s.check(len(in) > l.refused, "%v: Received offers the same %d bytes again", l, len(in))
	s.check(c.RefusedBytes() == l.seen, "%v: Refused is %d, want %d", l, c.RefusedBytes(), l.seen)
	l.refused = 0
	used := s.handleInput(l, in)
	c.CountMessagesAndLimitRate(min(used, 1))
	if used == 0 {
		if !s.checkPaused(l) {
			l.seen = len(in)
		}
		s.noteRefused(l, len(in))
	}
	if used > 0 {
		l.seen = 0
		l.since = s.now
	}
	if used >= 0 && used <= len(in) {
		l.used += used
	}
	s.log("%v: used %d of %d bytes, %d pending", l, used, len(in), c.UnsentAndDroppedBytes())
	return used
}

// noteRefused records that the handler waits for more input, unless it is paused.
func (s *sim) noteRefused(l *life, n int) {
	if s.checkPaused(l) {
		return
	}
	l.refused = n
	if n >= simMaxMessage {
		l.tooLong = true
		l.allowReasons(ErrMessageTooLong)
	}
}

func (s *sim) Ended(c *Conn, in []byte) int {
	l := s.life(c)
	s.check(!l.ended && !l.closed && !c.is(closing|failed), "%v: Ended after the end: state %b", l, c.state)
	s.check(!l.deaf, "%v: Ended while it does not listen", l)
	s.check(!c.isMessageRateExceeded(), "%v: Ended beyond its rate", l)
	s.check(l.isSettled(), "%v: Ended, and nobody is to hear of its input: state %b", l, c.state)
	s.check(l.told && l.plaintextReceived() == len(l.sent), "%v: Ended after %d of %d bytes", l, l.plaintextReceived(), len(l.sent))
	s.check(bytes.Equal(in, l.sent[l.used:]), "%v: Ended with %q, want %q", l, in, l.sent[l.used:])
	s.check(len(in) == l.refused, "%v: Ended with %d bytes, of which Received was not offered %d", l, len(in), len(in)-l.refused)
	l.ended, l.used = true, len(l.sent)
	s.log("%v: ended with %d bytes unused", l, len(in))
	s.randomPanic(l)
	if s.dice.intN(2) == 0 {
		s.handlerWrites(l, []byte("that was all"))
	}
	s.randomHandlerCall(l)
	return len(in)
}

func (s *sim) Nudged(c *Conn) {
	l := s.life(c)
	s.expectHandlerCall(l, nil)
	s.log("%v: nudged", l)
	s.act(l, "awake")
}

// act is what handler calls do. It records whether later deferred requests are lost.
func (s *sim) act(l *life, text string) {
	defer func() { l.dead = l.conn.is(closing|failed) || l.panicked }()
	s.randomPanic(l)
	s.handlerWrites(l, []byte(text))
	s.randomHandlerCall(l)
}

func (s *sim) Closed(c *Conn, why error) {
	l := s.life(c)
	s.check(l.opened && !l.closed, "%v: Closed, but opened is %v and closed is %v", l, l.opened, l.closed)
	l.closed, l.why = true, why
	s.closes++
	s.checkReason(l, why)
	s.check(!l.cheated || errors.Is(why, ErrBadUse) || l.panicked, "%v: cheated, and closed for %v", l, why)
	s.check(!l.panicked || errors.Is(why, errPanic), "%v: panicked, and closed for %v", l, why)
	s.handlerWrites(l, []byte("too late"))
	err := c.Ref().Send([]byte("too late"))
	s.check(errors.Is(err, ErrClosed), "%v: Send in Closed gives %v", l, err)
	s.randomPanic(l)
}

func (s *sim) handleInput(l *life, in []byte) (used int) {
	if s.dice.intN(6) == 0 {
		s.randomHandlerCall(l)
	}
	switch l.acts {
	case lines:
		for !s.checkPaused(l) {
			i := bytes.IndexByte(in[used:], '\n')
			if i < 0 {
				break
			}
			s.handlerWrites(l, in[used:used+i+1])
			used += i + 1
		}
		return used
	case amplifies:
		for used < len(in) && !s.checkPaused(l) {
			s.handlerWrites(l, bytes.Repeat(in[used:used+1], 1+s.dice.intN(simMaxUnsent/2)))
			used++
		}
		return used
	case floods:
		s.handlerWrites(l, bytes.Repeat(in, 1+s.dice.intN(4)))
		return len(in)
	case hoards:
		if s.dice.intN(6) == 0 {
			s.handlerWrites(l, bytes.Repeat([]byte("."), simHigh+1))
		}
		if s.dice.intN(6) > 0 {
			return 0
		}
		return 1 + s.dice.intN(len(in))
	case closes:
		return s.handleInputClosing(l, in)
	case streams:
		s.writeUntilPaused(l)
		return len(in)
	case panics:
		s.randomPanic(l)
	case cheats:
		if s.dice.intN(6) == 0 {
			l.cheated = !l.conn.is(closing | failed)
			l.allowReasons(ErrBadUse)
			return []int{-1, len(in) + 1}[s.dice.intN(2)]
		}
	}
	s.handlerWrites(l, in)
	return len(in)
}

func (s *sim) handleInputClosing(l *life, in []byte) int {
	i := bytes.IndexByte(in, '\n')
	if i < 0 {
		return len(in)
	}
	s.handlerWrites(l, []byte("goodbye"))
	s.handlerCloses(l)
	s.handlerWrites(l, []byte("too late"))
	return i + 1
}

func (s *sim) handlerCloses(l *life) {
	why := []error{nil, errOwn}[s.dice.intN(2)]
	s.log("%v: handler closes for %v", l, why)
	l.allowReasons(why)
	if s.dice.intN(4) == 0 {
		l.conn.CloseWaitingForPeerEOF(why)
	} else {
		l.conn.CloseWith(why)
	}
}

func (s *sim) handlerWrites(l *life, p []byte) {
	c := l.conn
	s.pullRelayed(l, 0)
	closed := l.hasStoppedWriting()
	tooMuch := c.unsentInMemoryBytes()-c.postedBytesInOutput()+s.host.directSent+len(p) > simMaxUnsent
	if fits := !closed && !l.upgrading && !tooMuch; fits {
		l.expectWritten(s, p) // before it is sent at once
	}
	var n int
	var err error
	switch s.dice.intN(3) {
	case 0:
		n, err = c.WriteString(string(p))
	case 1:
		n, err = c.Write(p)
	case 2:
		i := s.dice.intN(len(p) + 1)
		j := i + s.dice.intN(len(p)-i+1)
		n, err = c.Writev(p[:i], p[i:j], p[j:])
	}
	var want error
	switch {
	case closed:
		want = ErrClosed
	case l.upgrading: // before the layer has greeted
		want = ErrBadUse
	case len(p) > simMaxUnsent:
		want = ErrTooLarge
	case tooMuch:
		s.expectDropped(l)
		if want = ErrSlowConsumer; s.host.DropMessages {
			want = ErrFull
		}
	default:
		l.high = l.high || c.UnsentAndDroppedBytes()+s.host.directSent > simHigh
	}
	s.check(errors.Is(err, want), "%v: Write of %d bytes gives %v, want %v", l, len(p), err, want)
	s.check(n == len(p) && err == nil || n == 0 && err != nil, "%v: Write of %d bytes gives %d, %v", l, len(p), n, err)
}

func (s *sim) checkPaused(l *life) bool {
	paused := l.conn.IsPaused()
	if paused && !l.conn.is(closing|failed) {
		if l.deaf || !l.isSettled() || l.conn.isMessageRateExceeded() {
			return true
		}
		s.check(l.high || l.choked, "%v: Paused while %d bytes are owed", l, l.conn.UnsentAndDroppedBytes())
		l.awaits, l.relieved = true, s.now
	}
	return paused
}

func (s *sim) randomHandlerCall(l *life) {
	c := l.conn
	open := !l.closed && c.IsOpen()
	switch s.dice.intN(36) {
	case 0:
		s.handlerCloses(l)
	case 1, 2, 3:
		s.postToRandomConn()
	case 4:
		if open {
			s.log("%v: listens no more", l)
			l.deaf = l.deaf || l.isSettled()
			c.SetReading(false)
		}
	case 5, 6:
		if !c.is(relayed) {
			s.handlerSendsFile(l)
		}
	case 7, 8:
		if open {
			s.handlerSetsTimers(l)
		}
	case 9:
		if open && s.dice.intN(2) == 0 {
			s.handlerDetaches(l)
		}
	case 10, 11, 12:
		if open && s.dice.intN(2) == 0 {
			s.handlerRelays(l)
		}
	case 13, 14:
		if open && l.arrived == len(l.raw) {
			s.handlerInsertsLayer(l)
		}
	case 15:
		if open && !c.is(relayed) && !l.joining && s.dice.intN(2) == 0 {
			s.handlerClosesWrite(l)
		}
	case 17:
		if open {
			s.log("%v: limits its rates", l)
			c.SetReadRate(s.dice.intN(3)*40, s.dice.intN(3)*2)
		}
	case 16:
		if open && l.retained < 2 {
			s.handlerRetains(l)
		}
	}
}

func (s *sim) handlerClosesWrite(l *life) {
	s.log("%v: closes its direction", l)
	if !l.conn.is(closing | failed) {
		l.finishing = true
	}
	l.conn.CloseWrite()
}

func (s *sim) handlerRetains(l *life) {
	s.log("%v: is retained", l)
	if !l.conn.is(closing | failed) {
		if l.retained++; l.conn.is(peerEOF) {
			l.heard = s.now
		}
	}
	l.conn.Retain()
}

func (s *sim) handlerReleases(l *life) {
	s.log("%v: is released", l)
	l.retained--
	l.conn.Release()
	s.driveConnAndTouched(l)
}

func (s *sim) randomPanic(l *life) {
	if l.acts != panics || s.dice.intN(4) > 0 {
		return
	}
	s.log("%v: handler panics", l)
	s.panics++
	if !l.closed {
		l.panicked = true
		l.allowReasons(errPanic)
	}
	panic(errPanic)
}
