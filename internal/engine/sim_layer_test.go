package engine

import (
	"errors"
	"io"
)

// The simulation's layer is a header whose first byte is its length, then all bytes with one bit
// inverted, and a closing message.

var errLayer = errors.New("sim: the layer fails")

const (
	simVeil    = 0x20
	simGoodbye = 0x04
)

// simLayer is the layer of one connection. A late one completes its handshake only in Resume.
type simLayer struct {
	s    *sim
	l    *life
	head int // bytes of the header
	late bool

	begun  bool
	in     []byte // input before the handshake was done
	more   int    // bytes for the handler among it
	done   bool   // the handshake is done
	failed bool
	bye    bool // the closing message was sent
	closed int
}

// newLayer is Config.NewLayer: most connections have a layer.
func (s *sim) newLayer(c *Conn) Layer {
	l := s.lives[c.Slot()]
	if s.dice.intN(5) == 0 {
		return nil
	}
	s.makeLayer(l)
	l.layer.begun = true
	l.ref = c.Ref()
	return l.layer
}

func (s *sim) makeLayer(l *life) {
	l.layer = &simLayer{s: s, l: l, head: 1 + s.dice.intN(10), late: s.dice.intN(2) == 0}
	l.clear = len(l.sent)
	first := len(l.raw)
	for i := range l.layer.head {
		l.raw = append(l.raw, byte(l.layer.head-i))
	}
	if s.dice.intN(10) == 0 {
		l.raw[first] = 0xff
	}
}

// inFirstHandshake reports whether Opened waits for layers.
func (l *life) inFirstHandshake() bool { return l.layer != nil && !l.opened }

// handlerInsertsLayer inserts a layer. The peer has no input under way, and sends the header now.
func (s *sim) handlerInsertsLayer(l *life) {
	c := l.conn
	err := c.RequestLayerInsertion(func(*Conn) Layer {
		s.check(l.upgrading && !l.layer.begun && !c.is(closing|failed|peerEOF) && c.in == nil, "%v: its upgrade begins: state %b", l, c.state)
		s.log("%v: its upgrade begins", l)
		l.layer.begun, l.deaf = true, false
		return l.layer
	})
	wrong := l.layer != nil || !l.isSettled() || c.fileQueueOrNil() != nil
	if s.checkCall(l, "RequestLayerInsertion", err, l.hasStoppedWriting(), wrong) {
		l.upgrading, l.deaf = true, true
		l.allowReasons(ErrClearInput, io.EOF)
		s.makeLayer(l)
	}
}

// Secured is the handler's call after the handshake.
func (s *sim) Secured(c *Conn) {
	l := s.life(c)
	s.check(l.upgrading && l.layer.done && !l.closed && !c.is(closing|failed), "%v: Secured: state %b", l, c.state)
	l.upgrading = false
	s.log("%v: secured", l)
	s.act(l, "safe")
}

func (y *simLayer) OnRead(c *Conn, p []byte) error {
	y.checkConn(c)
	if y.done {
		c.OnPlaintext(obfuscate(p))
		return y.randomFailure(40)
	}
	y.in = append(y.in, p...)
	switch {
	case y.in[0] == 0xff:
		return y.failWithReply(c)
	case !y.ready():
		return y.randomFailure(20)
	case y.late:
		y.requestResume()
		return nil
	}
	return y.finishHandshake(c)
}

func (y *simLayer) ready() bool { return len(y.in) >= y.head }

// finishHandshake ends the handshake and passes on the remaining input.
func (y *simLayer) finishHandshake(c *Conn) error {
	rest := y.in[y.head:]
	y.done, y.more = true, len(rest)
	y.l.heard, y.l.since = y.s.now, y.s.now
	y.s.log("%v: has greeted", y.l)
	upgrades := y.l.upgrading
	c.OnHandshakeDone()
	if upgrades {
		y.s.flushDeferred(y.l)
	}
	if len(rest) > 0 {
		c.OnPlaintext(obfuscate(rest))
	}
	return nil
}

func (y *simLayer) requestResume() {
	err := y.l.ref.ResumeLayer()
	y.s.log("%v: the layer wants to be attended to: %v", y.l, err)
}

func (y *simLayer) ContinueHandshake(c *Conn) error {
	y.checkConn(c)
	switch {
	case y.done:
		return nil
	case y.ready():
		if err := y.randomFailure(10); err != nil {
			return err
		}
		return y.finishHandshake(c)
	case len(y.in) == 0 && len(y.l.wrote) == 0 && !c.is(shut) && y.s.dice.intN(2) == 0:
		y.appendOwnBytes(c, []byte("banner"))
	}
	return nil
}

func (y *simLayer) Write(c *Conn, p []byte) error {
	y.checkConn(c)
	y.s.check(y.done && !y.bye, "%v: is to write, done is %v, goodbye is %v", y.l, y.done, y.bye)
	c.AppendToTransport(obfuscate(p))
	return nil
}

func (y *simLayer) InputFull() bool { return false }

func (y *simLayer) Memory() (memory int, partial bool) { return 0, false }

// OnEOF fails during the handshake, immediately, in Resume or by timeout.
func (y *simLayer) OnEOF(c *Conn) error {
	y.checkConn(c)
	if y.done || y.s.dice.intN(2) == 0 {
		return nil
	}
	return y.failWithReply(c)
}

func (y *simLayer) SendClose(c *Conn) {
	y.checkConn(c)
	y.s.check(!y.bye, "%v: goodbye twice", y.l)
	if y.bye = true; y.done && y.s.dice.intN(2) == 0 {
		y.appendOwnBytes(c, []byte{simGoodbye})
	}
}

func (y *simLayer) OnClosed(c *Conn) {
	y.checkConn(c)
	y.closed++
}

func (y *simLayer) appendOwnBytes(c *Conn, p []byte) {
	y.l.expectRaw(y.s, p)
	c.AppendToTransport(p)
}

func (y *simLayer) checkConn(c *Conn) {
	y.s.check(y.closed == 0 && y.s.lives[c.Slot()] == y.l, "%v: its layer is called after its end", y.l)
}

// failWithReply fails, possibly after a reply to the peer.
func (y *simLayer) failWithReply(c *Conn) error {
	if y.s.dice.intN(2) == 0 {
		y.appendOwnBytes(c, []byte("alert"))
	}
	return y.randomFailure(1)
}

func (y *simLayer) randomFailure(one int) error {
	if y.s.dice.intN(one) > 0 || y.l.conn.is(closing|failed) {
		return nil
	}
	y.s.log("%v: the layer fails", y.l)
	y.l.allowReasons(errLayer)
	y.failed = true
	return errLayer
}

func obfuscate(p []byte) []byte {
	out := make([]byte, len(p))
	for i, b := range p {
		out[i] = b ^ simVeil
	}
	return out
}
