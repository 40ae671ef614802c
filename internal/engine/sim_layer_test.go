package engine

import (
	"errors"
	"io"
)

// The layer of the simulation is a header whose first byte is its length, then all bytes
// with one bit turned, and a goodbye.

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

	begun  bool
	in     []byte // what has come before the greeting was over
	more   int    // bytes that it had for the handler then
	done   bool   // has greeted
	failed bool
	bye    bool // has said goodbye
	closed int
}

// newFirstLayer is Host.NewLayer: most connections have one.
func (s *sim) newLayer(c *Conn) Layer {
	l := s.lives[c.Slot()]
	if s.dice.roll(5) == 0 {
		return nil
	}
	s.makeLayer(l)
	l.layer.begun = true
	l.ref = c.Ref()
	return l.layer
}

// makeLayer makes a layer, whose header the peer sends.
func (s *sim) makeLayer(l *life) {
	l.layer = &simLayer{s: s, l: l, head: 1 + s.dice.roll(10), late: s.dice.roll(2) == 0}
	l.clear = len(l.sent)
	first := len(l.raw)
	for i := range l.layer.head {
		l.raw = append(l.raw, byte(l.layer.head-i))
	}
	if s.dice.roll(10) == 0 {
		l.raw[first] = 0xff
	}
}

// greets says whether layers are at work before Opened.
func (l *life) greets() bool { return l.layer != nil && !l.opened }

// upgrades has the handler ask for a layer. Its peer has sent nothing that has not
// arrived, and begins with the header now.
func (s *sim) upgrades(l *life) {
	c := l.conn
	err := c.InsertLayer(func(*Conn) Layer {
		s.check(l.upgrading && !l.layer.begun && !c.is(closing|failed|peerEOF) && c.in == nil, "%v: its upgrade begins: state %b", l, c.state)
		s.log("%v: its upgrade begins", l)
		l.layer.begun, l.deaf = true, false
		return l.layer
	})
	s.log("%v: asks for a layer: %v", l, err)
	switch {
	case l.writesNoMore():
		s.check(errors.Is(err, ErrClosed), "%v: Upgrade after the end gives %v", l, err)
	case l.layer != nil || !l.settled() || c.queuedFiles() != nil:
		s.check(errors.Is(err, ErrBadUse), "%v: Upgrade gives %v", l, err)
	default:
		s.check(err == nil, "%v: Upgrade gives %v", l, err)
		l.upgrading, l.deaf = true, true
		l.cause(ErrClearInput, io.EOF)
		s.makeLayer(l)
	}
}

// Secured is the handler's call when the layer has greeted.
func (s *sim) Secured(c *Conn) {
	l := s.life(c)
	s.check(l.upgrading && l.layer.done && !l.closed && !c.is(closing|failed), "%v: Secured: state %b", l, c.state)
	l.upgrading = false
	s.log("%v: secured", l)
	defer s.mayDie(l)
	s.mayPanic(l)
	s.write(l, []byte("safe"))
	s.maySurprise(l)
}

func (y *simLayer) OnRead(c *Conn, p []byte) error {
	y.check(c)
	if y.done {
		c.OnPlaintext(veiled(p))
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
	upgrades := y.l.upgrading
	c.OnHandshakeDone()
	if upgrades {
		y.s.flush(y.l)
	}
	if len(rest) > 0 {
		c.OnPlaintext(veiled(rest))
	}
	return nil
}

// wake asks for Resume from outside.
func (y *simLayer) wake() {
	err := y.l.ref.ResumeLayer()
	y.s.log("%v: the layer wants to be attended to: %v", y.l, err)
}

func (y *simLayer) Resume(c *Conn) error {
	y.check(c)
	switch {
	case y.done:
		return nil
	case y.ready():
		if err := y.mayFail(10); err != nil {
			return err
		}
		return y.greet(c)
	case len(y.in) == 0 && len(y.l.wrote) == 0 && !c.is(shut) && y.s.dice.roll(2) == 0:
		y.append(c, []byte("banner"))
	}
	return nil
}

func (y *simLayer) Write(c *Conn, p []byte) error {
	y.check(c)
	y.s.check(y.done && !y.bye, "%v: is to write, done is %v, goodbye is %v", y.l, y.done, y.bye)
	c.AppendToTransport(veiled(p))
	return nil
}

func (y *simLayer) InputFull() bool { return false }

func (y *simLayer) Memory() (memory int, partial bool) { return 0, false }

// OnEOF fails where the greeting is not over, or leaves that to Resume or to the
// time that a greeting has.
func (y *simLayer) OnEOF(c *Conn) error {
	y.check(c)
	if y.done || y.s.dice.roll(2) == 0 {
		return nil
	}
	return y.fail(c)
}

func (y *simLayer) SendClose(c *Conn) {
	y.check(c)
	y.s.check(!y.bye, "%v: goodbye twice", y.l)
	if y.bye = true; y.done && y.s.dice.roll(2) == 0 {
		y.append(c, []byte{simGoodbye})
	}
}

func (y *simLayer) OnClosed(c *Conn) {
	y.check(c)
	y.closed++
}

// append sends what is the layer's own.
func (y *simLayer) append(c *Conn, p []byte) {
	y.l.appends(y.s, p)
	c.AppendToTransport(p)
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
