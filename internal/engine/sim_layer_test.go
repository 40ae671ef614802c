package engine

import (
	"errors"
	"time"
)

// This file is the layer of the simulation: a header whose first byte is its
// length, then all bytes with one bit turned, and a goodbye.

var errLayer = errors.New("sim: the layer fails")

const (
	simVeil    = 0x20
	simGoodbye = 0x04
)

// simLayer is the layer of one connection. A late one greets when it is attended
// to, and not before.
type simLayer struct {
	s    *sim
	l    *life
	head int // bytes of the header
	late bool

	in     []byte // what has come before the greeting was over
	more   int    // bytes that it had for the handler then
	done   bool   // has greeted
	failed bool
	bye    bool // has said goodbye
	closed int
}

// newLayer is Host.NewLayer: most connections have one.
func (s *sim) newLayer(c *Conn) Layer {
	l := s.lives[c.Slot()]
	if s.dice.roll(5) == 0 {
		return nil
	}
	l.layer = &simLayer{s: s, l: l, head: 1 + s.dice.roll(10), late: s.dice.roll(2) == 0}
	l.ref = c.Ref()
	for i := range l.layer.head {
		l.raw = append(l.raw, byte(l.layer.head-i))
	}
	if s.dice.roll(10) == 0 {
		l.raw[0] = 0xff
	}
	return l.layer
}

func (y *simLayer) Arrived(c *Conn, p []byte) error {
	y.check(c)
	if y.done {
		c.Plain(veiled(p))
		return y.mayFail(40)
	}
	y.in = append(y.in, p...)
	switch {
	case y.in[0] == 0xff:
		return y.fail(c)
	case !y.ready():
		return y.mayFail(20)
	case y.late:
		y.wake()
		return nil
	}
	return y.greet(c)
}

func (y *simLayer) ready() bool { return len(y.in) >= y.head }

// greet ends the greeting, and passes on what has come behind it.
func (y *simLayer) greet(c *Conn) error {
	rest := y.in[y.head:]
	y.done, y.more = true, len(rest)
	y.l.heard, y.l.since = y.s.now, y.s.now
	y.s.log("%v: has greeted", y.l)
	c.Greeted()
	if len(rest) > 0 {
		c.Plain(veiled(rest))
	}
	return nil
}

// wake asks for Attend from outside.
func (y *simLayer) wake() {
	err := y.l.ref.Attend()
	y.s.log("%v: the layer wants to be attended to: %v", y.l, err)
	if err == nil {
		y.l.waiting++
		y.s.posts = append(y.s.posts, post{to: y.l, kind: MailAttend})
	}
}

func (y *simLayer) Attend(c *Conn) error {
	y.check(c)
	switch {
	case y.done:
		return nil
	case y.ready():
		if err := y.mayFail(10); err != nil {
			return err
		}
		return y.greet(c)
	case len(y.in) == 0 && len(y.l.wrote) == 0 && y.s.dice.roll(2) == 0:
		y.append(c, []byte("banner"))
	}
	return nil
}

func (y *simLayer) Write(c *Conn, p []byte) error {
	y.check(c)
	y.s.check(y.done && !y.bye, "%v: is to write, done is %v, goodbye is %v", y.l, y.done, y.bye)
	c.Append(veiled(p))
	return nil
}

// Ended fails where the greeting is not over, or leaves that to Attend or to the
// time that a greeting has.
func (y *simLayer) Full() bool { return false }

func (y *simLayer) Held() (memory int, partial bool) { return 0, false }

func (y *simLayer) Ended(c *Conn) error {
	y.check(c)
	if y.done || y.s.dice.roll(2) == 0 {
		return nil
	}
	return y.fail(c)
}

func (y *simLayer) Closing(c *Conn) {
	y.check(c)
	y.s.check(!y.bye, "%v: goodbye twice", y.l)
	if y.bye = true; y.done && y.s.dice.roll(2) == 0 {
		y.append(c, []byte{simGoodbye})
	}
}

func (y *simLayer) Closed(c *Conn) {
	y.check(c)
	y.closed++
}

// append sends what is the layer's own.
func (y *simLayer) append(c *Conn, p []byte) {
	y.l.appends(y.s, p)
	c.Append(p)
}

func (y *simLayer) check(c *Conn) {
	y.s.check(y.closed == 0 && y.s.lives[c.Slot()] == y.l, "%v: its layer is called after its end", y.l)
}

// fail fails, perhaps with a word to the peer.
func (y *simLayer) fail(c *Conn) error {
	if y.s.dice.roll(2) == 0 {
		y.append(c, []byte("alert"))
	}
	return y.mayFail(1)
}

func (y *simLayer) mayFail(one int) error {
	if y.s.dice.roll(one) > 0 || y.l.conn.is(closing|failed) {
		return nil
	}
	y.s.log("%v: the layer fails", y.l)
	y.l.cause(errLayer)
	y.failed = true
	return errLayer
}

func veiled(p []byte) []byte {
	out := make([]byte, len(p))
	for i, b := range p {
		out[i] = b ^ simVeil
	}
	return out
}

// What a life knows of its layer.

// size is how many bytes come before the handler's.
func (l *life) header() int {
	if l.layer == nil {
		return 0
	}
	return l.layer.head
}

// extra is how much input the layer had for the handler at once.
func (l *life) extra() int {
	if l.layer == nil {
		return 0
	}
	return l.layer.more
}

// plain is how many of the bytes that are for the handler it may have seen.
func (l *life) plain() int { return max(l.arrived-l.header(), 0) }

// over is what the handler's bytes become on the wire.
func (l *life) over(p []byte) []byte {
	if l.layer == nil {
		return p
	}
	return veiled(p)
}

// writes notes what the handler, or mail, has written.
func (l *life) writes(s *sim, p []byte) { l.appends(s, l.over(p)) }

func (l *life) appends(s *sim, raw []byte) {
	l.wrote = append(l.wrote, raw...)
	for range raw {
		l.stamps = append(l.stamps, s.now)
	}
}

// free is since when the peer can be blamed for its silence.
func (l *life) free(since time.Duration) time.Duration { return max(since, l.relieved) }
