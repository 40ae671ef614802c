package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// inspect checks what holds after each step.
func (s *sim) inspect() {
	open, held := 0, 0
	for i, c := range s.slots {
		inBox := 0
		for _, p := range s.posts {
			if p.to.conn == c {
				inBox += max(noBytes, len(p.data))
			}
		}
		s.check(c.mark.posted() == inBox+c.posted(), "slot %d: %d bytes marked as posted, %d are in the box and %d in the output", i, c.mark.posted(), inBox, c.posted())
		l := s.lives[i]
		if l == nil {
			continue
		}
		open++
		s.check(c.unsent() <= 2*simMaxUnsent+16+simMaxUnsent, "%v: %d bytes of unsent output", l, c.unsent())
		s.check((c.files() == nil) == (len(c.files().all()) == 0) && len(c.files().all()) <= MaxFiles, "%v: %d files wait", l, len(c.files().all()))
		s.check(c.Pending() == len(l.wrote)-len(l.wire), "%v: %d bytes pending, want %d", l, c.Pending(), len(l.wrote)-len(l.wire))
		s.check(c.posted() <= c.Pending(), "%v: %d bytes owed to posts, %d pending", l, c.posted(), c.Pending())
		s.check(!l.ended || c.in == nil, "%v: keeps input after Ended", l)
		if c.in != nil {
			held++
			s.check(c.in.Len() > 0, "%v: holds an empty buffer for input", l)
			s.check(c.in.Len() <= simMaxMessage+simMaxRead+l.rude+l.extra(), "%v: %d bytes of unused input", l, c.in.Len())
		}
		if c.out != nil {
			held += 1 + len(c.out.rest)
		}
		held += c.files().sum(func(b *Buffer) int { return 1 + len(b.rest) })
	}
	s.check(len(s.lent) == held, "%d buffers are lent, %d are held", len(s.lent), held)
	s.check(int(s.counters.Get(Open)) == open, "Counters.Open is %d, want %d", s.counters.Get(Open), open)
	s.recount()
}

// settle lets everything under way arrive, until nothing more happens, and
// checks that no connection is stuck.
func (s *sim) settle() {
	s.log("settle")
	for range 10_000 {
		before := len(s.trace)
		if s.box.Waiting() {
			s.deliverMail()
		}
		for _, l := range s.lives {
			if l != nil && l.deaf {
				s.listen(l)
			}
		}
		for _, l := range s.lives {
			if l != nil && (l.conn.WantsInput() || l.reset) {
				s.readable(l)
			}
		}
		for _, l := range s.lives {
			if l != nil {
				s.roomFor(l, 2*simMaxUnsent)
			}
		}
		s.inspect()
		if len(s.trace) == before && !s.box.Waiting() {
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
		s.check(c.Next() == Wait && c.Pending() == 0, "%v: at rest, but asks for %d and owes %d bytes", l, c.Next(), c.Pending())
		if c.is(greeting) && l.told {
			continue // it has its time
		}
		s.check(!l.fin && c.WantsInput(), "%v: stuck: state %b", l, c.state)
		s.check(l.arrived == len(l.raw), "%v: at rest with %d of %d bytes read", l, l.arrived, len(l.raw))
		s.check(s.host.Drained == nil || !l.awaits || c.is(closing), "%v: at rest, was told that it is Paused, and Writable was not called", l)
		s.check(s.host.Draining == nil || !l.drained || !l.opened || l.draining == 1 || c.is(closing), "%v: was to drain, and Draining was called %d times", l, l.draining)
		s.check(!c.is(drain) || c.in != nil || l.shut, "%v: was to drain, is idle, and is still open", l)
	}
}

// finishAll lets every peer end and all time pass: nothing may be left.
func (s *sim) finishAll() {
	for _, l := range s.lives {
		if l != nil {
			s.log("%v: the peer ends at last", l)
			l.fin = true
		}
	}
	s.settle()
	for range 3 {
		s.pass(simHandshake)
		s.settle()
	}
	s.inspect()
	refused := 0
	for _, l := range s.past {
		s.check(l.closed == l.opened && (l.closed || l.layer != nil), "%v: opened is %v and closed is %v", l, l.opened, l.closed)
		if !l.closed {
			refused++
		}
	}
	counts := Counts{}
	s.counters.AddTo(&counts)
	s.checkBooks(counts, refused)
	s.check(int(counts[Panics]) == s.panics, "counted %d panics of %d", counts[Panics], s.panics)
	for i, c := range s.slots {
		s.check(c.mark.posted() == 0, "slot %d: %d bytes still marked as posted", i, c.mark.posted())
	}
	s.check(len(s.lent) == 0, "%d buffers were not returned", len(s.lent))
}

// checkComplete says that everything written or posted is on the wire.
func (s *sim) checkComplete(l *life) {
	s.check(bytes.Equal(l.wire, l.wrote), "%v: the peer got %q of %q", l, l.wire, l.wrote)
}

// checkReason checks why a connection closed, and what that reason promises.
func (s *sim) checkReason(l *life, why error) {
	s.check(slices.ContainsFunc(l.causes, func(cause error) bool { return errors.Is(why, cause) }),
		"%v: closed for %v, which did not happen; what did: %v", l, why, l.causes)
	inOrder := errors.Is(why, io.EOF) || errors.Is(why, ErrServerClosed)
	if inOrder || why == nil || errors.Is(why, errOwn) {
		s.checkComplete(l)
	}
	s.check(!inOrder || l.waiting == 0, "%v: closed in order with %d accepted posts in the mailbox", l, l.waiting)
	s.check(!errors.Is(why, ErrServerClosed) || l.refused == 0, "%v: drained with %d bytes of a message unused", l, l.refused)
	s.check(!errors.Is(why, io.EOF) || l.ended, "%v: end of file without Ended", l)
}

func (s *sim) log(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf(format, args...))
}

func (s *sim) check(ok bool, format string, args ...any) {
	if !ok {
		s.t.Helper()
		s.fail(format, args...)
	}
}

func (s *sim) fail(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("%s: %s\nafter these steps:\n\t%s", s.name, fmt.Sprintf(format, args...), strings.Join(s.trace, "\n\t"))
}

// life finds the record of the connection that the handler is called for.
func (s *sim) life(c *Conn) *life {
	l := s.lives[c.Slot()]
	s.check(l.opened, "%v: called before Opened: state %b", l, c.state)
	s.check(c.Value() == l, "%v: has the value of another connection", l)
	return l
}
