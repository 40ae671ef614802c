package engine

import (
	"errors"
	"io"
	"math"
	"slices"
)

// This file is how a connection gets a layer after its handler has heard of it, as by
// STARTTLS. It is asked for in a call of the handler and begins when that has returned: no
// input in clear may be left then, because the handler would take it for input that came by
// the layer. From then on the connection greets again, but Closed is called for its end.
// Mail that comes meanwhile is kept: it goes by the layer.

// ErrClearInput says that there was such input.
var ErrClearInput = errors.New("myriad: input in clear behind the one that starts TLS")

// upgrade is what such a connection has until the layer has greeted.
type upgrade struct {
	make func(*Conn) Layer // nil when it has begun
	mail []keptMail
	held int // bytes of memory of mail that is kept, as they are counted
}

type keptMail struct {
	mail Mail
	data []byte
}

// Securer is a Handler that is called when the layer of an Upgrade has greeted: on the
// owner, never by a worker.
type Securer interface {
	Secured(c *Conn)
}

// Upgrade gives the connection a layer when the call at hand has returned.
func (c *Conn) Upgrade(make func(*Conn) Layer) error {
	switch {
	case !c.is(open) || c.is(closing|failed|closingWrite|shut):
		return ErrClosed
	case c.is(greeting) || c.layer() != nil || c.inputTaken() || c.files() != nil:
		return ErrBadUse
	}
	c.listen(false)
	c.extra().upgrade = &upgrade{make: make}
	return nil
}

func (c *Conn) upgrades() bool { return c.more != nil && c.more.upgrade != nil }

// beginUpgrade puts the layer in, after an event.
func (c *Conn) beginUpgrade() {
	x := c.more
	newLayer := x.upgrade.make
	if newLayer == nil || c.is(closing|failed) {
		return
	}
	x.upgrade.make = nil
	switch {
	case c.in != nil:
		c.CloseWith(ErrClearInput)
		return
	case c.is(peerEnded):
		c.CloseWith(io.EOF)
		return
	}
	c.state &^= readPaused | inputHeld
	c.heard = c.host.coarseNow()
	c.state |= greeting
	c.host.Counters.Add(Greeting, 1)
	x.layer, x.due = newLayer(c), math.MaxInt64
	if t := c.host.Limits.HandshakeTimeout; t > 0 {
		x.due = c.host.Now() + t
	}
	c.resumeLayer()
}

// upgraded goes on when the layer has greeted.
func (c *Conn) upgraded() {
	x := c.more
	kept := x.upgrade.mail
	c.host.Counters.Add(Buffered, -int64(x.upgrade.held))
	x.upgrade, x.due = nil, 0
	if c.is(peerEnded) {
		x.due = c.host.Now() + c.host.Limits.CloseTimeout
	}
	mail := func() {
		for len(kept) > 0 {
			k := kept[0]
			kept = kept[1:]
			c.Mailed(k.mail, k.data)
		}
	}
	defer mail() // what a Goexit leaves, which no handler gets
	if s, ok := c.handler().(Securer); ok {
		c.call(s.Secured)
	}
	mail()
}

// endUpgrade lets go of what is kept for a layer that does not come any more.
func (c *Conn) endUpgrade() {
	kept := c.more.upgrade.mail
	c.host.Counters.Add(Buffered, -int64(c.more.upgrade.held))
	c.more.upgrade = nil
	if c.is(greeting) {
		c.state &^= greeting
		c.host.Counters.Add(Greeting, -1)
	}
	for _, k := range kept {
		c.Mailed(k.mail, k.data) // which is late
	}
}

// keepMail keeps mail that is to go by the layer, and says whether it has.
func (c *Conn) keepMail(m Mail, data []byte) bool {
	if !c.upgrades() || !c.is(open) || m.Kind == MailResumeLayer || m.Kind == MailCast {
		return false
	}
	u := c.more.upgrade
	if len(u.mail) >= 2*c.host.Limits.MaxMail {
		c.CloseWith(ErrFull)
		return false
	}
	if m.shared != nil {
		data = nil // it has them
	}
	u.mail = append(u.mail, keptMail{m, slices.Clone(data)})
	n := MailSize + len(data)
	u.held += n
	c.host.Counters.Add(Buffered, int64(n))
	return true
}
