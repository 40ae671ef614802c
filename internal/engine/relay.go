package engine

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
)

// This file is how two connections are joined.
//
// Connections of one loop, which has Host.At, know each other by slot, which takes the
// place of seen: a relay needs no memory beside them. What one receives is written to
// the other at once; the other is choked when it owes more than HighWater, and then the
// first is deaf until it has come down to LowWater. The two begin to close in one step,
// so that neither slot outlives the relay.
//
// Connections of two owners know each other by Ref, and all goes by mail. A connection
// that is ahead of its partner by more than HighWater asks for a grant and is deaf until
// that has come: the partner gives it when what it owes has come down to LowWater. Mail
// keeps the order, so that the end of a direction comes behind its bytes.
//
// Where any goroutine may use a socket (Host.Pass), a connection sends to its partner's
// directly while nothing else waits to be sent there: see bypass. What the kernel does not
// take goes by mail, and then the connection is deaf until all of that is sent.

// Relay joins two connections. It is for the owner of one of them.
func (c *Conn) Relay(to Ref) error {
	switch {
	case c.is(closing|failed) || !c.is(open) || to.Closed():
		return ErrClosed
	case c.is(relayed) || to.c == c || c.upgrades() || c.detaches():
		return ErrBadUse
	}
	if c.host.At != nil && to.On(c.host) != nil {
		c.state |= deaf // until they meet
		return c.Ref().post(Request{Kind: MailDo, Shared: &Shared{
			Do:   func(c *Conn) { c.meet(to) },
			Lost: func() { _ = to.Close() }, // it may have closed
		}})
	}
	from := c.Ref()
	var in, out *bypass
	if c.host.Pass != nil {
		in, out = new(bypass), new(bypass)
	}
	err := to.post(Request{Kind: MailDo, Shared: &Shared{
		Do: func(o *Conn) {
			if o.is(relayed) {
				_ = from.Close() // it may have closed
				return
			}
			o.joinTo(from, out, in)
		},
		Lost: func() { _ = from.Close() },
	}})
	if err == nil {
		c.joinTo(to, in, out)
	}
	return err
}

// Relayed says whether the connection is joined with another one.
func (c *Conn) Relayed() bool { return c.is(relayed) }

// meet joins two connections of one loop, on the loop. Where workers call handlers, the
// other one may be with one of them: then it looks for this one when it is back.
func (c *Conn) meet(to Ref) {
	o, from := to.On(c.host), c.Ref()
	switch {
	case c.is(relayed):
	case o == nil:
		c.CloseWith(ErrClosed)
	case !c.host.Mine(o):
		err := to.post(Request{Kind: MailDo, Shared: &Shared{
			Do:   func(o *Conn) { o.meet(from) },
			Lost: func() { _ = from.Close() }, // it may have closed
		}})
		if err != nil {
			c.CloseWith(err)
			_ = to.Close()
		}
	case o.is(relayed):
		c.CloseWith(ErrBadUse)
	default:
		c.join()
		o.join()
		c.seen, o.seen = o.slot, c.slot
		c.host.Touch(c)
		c.host.Touch(o)
	}
}

// join begins a relay, on either side. What was kept is forwarded by Deliver, because
// the handler may be looking at it now.
func (c *Conn) join() {
	c.state |= relayed
	c.state &^= silent | ended | deaf | held | relieved | allMissed
	if c.is(choked) {
		c.unchoke()
	}
	if c.attentive(); c.is(gone) {
		c.more.due = 0
	}
}

// remote is what a connection has to know of its partner with another owner.
type remote struct {
	partner Ref
	ahead   int  // bytes that were mailed since the last grant
	asked   bool // the partner waits for a grant
	// in is how the partner gets past this connection's owner, out how this one gets
	// past the partner's; nil where descriptors are for their owners only.
	in, out *bypass
}

// bypass has a connection's socket sent to by the partner, so that nothing is copied, and
// nobody woken. The lock is held for as long as that takes, which never waits.
type bypass struct {
	mu   sync.Mutex
	open bool          // the connection owes nothing, and has no layer
	used atomic.Uint32 // when it was last used, as a moment
}

// remote is nil for a connection whose partner has the same owner, or that has none.
func (c *Conn) remote() *remote {
	if c.more == nil {
		return nil
	}
	return c.more.remote
}

// joinTo joins the connection to one of another owner.
func (c *Conn) joinTo(to Ref, in, out *bypass) {
	c.join()
	c.extra().remote = &remote{partner: to, in: in, out: out}
	c.openBypass()
}

func (c *Conn) openBypass() {
	if in := c.more.remote.in; in != nil && !c.owes() && c.layer() == nil {
		in.mu.Lock()
		in.open = true
		in.mu.Unlock()
	}
}

// closeBypass is for a connection that is about to owe something.
func (c *Conn) closeBypass() {
	if r := c.remote(); r != nil && r.in != nil {
		r.in.mu.Lock()
		r.in.open = false
		r.in.mu.Unlock()
	}
}

// hearBypass counts what came by a bypass as heard.
func (c *Conn) hearBypass() {
	if r := c.remote(); r != nil && r.in != nil {
		if used := moment(r.in.used.Load()); used != 0 && int32(used-c.heard) > 0 {
			c.heard = used
		}
	}
}

// Bypass calls send to have the partner's socket sent to, if it may be now, and says
// whether it was called. send does not wait.
func (c *Conn) Bypass(send func(o *Conn)) bool {
	r := c.remote()
	if r == nil || r.out == nil || c.in != nil || c.is(closing|failed) {
		return false
	}
	r.out.mu.Lock()
	defer r.out.mu.Unlock()
	if !r.out.open || r.partner.c.mark.posted() != 0 { // that goes first
		return false
	}
	r.out.used.Store(uint32(c.host.moment()))
	send(r.partner.c)
	return true
}

// sentRemote is for a connection that has sent something.
func (c *Conn) sentRemote() {
	c.openBypass()
	if c.more.remote.asked {
		c.grant()
	}
}

// flush forwards what was kept, and then the end.
func (c *Conn) flush() {
	if in := c.in; in != nil {
		c.in = nil
		c.forward(in.Bytes())
		c.host.put(in)
	}
	if c.is(gone) && !c.is(closing|failed) {
		c.relayEnd()
	}
}

// joined is the other connection of one loop, nil if it has another owner. It is not
// asked for any more once the two have begun to close: then a worker may have it, or its
// slot be another one's.
func (c *Conn) joined() *Conn {
	if c.remote() != nil {
		return nil
	}
	return c.host.At(c.seen)
}

// forward gives the other connection what this one has received.
func (c *Conn) forward(p []byte) {
	c.heard = c.host.moment()
	if o := c.joined(); o != nil {
		o.relay(p)
		if o.is(choked) {
			c.state |= deaf
		}
		c.host.Touch(o)
		return
	}
	c.forwardRemote(p)
}

func (c *Conn) forwardRemote(p []byte) {
	r := c.more.remote
	c.Bypass(func(o *Conn) {
		n := c.host.Pass(o, p)
		if p = p[n:]; n > 0 {
			c.host.Counters.Add(Writes, 1)
			c.host.Counters.Add(BytesOut, int64(n))
		}
	})
	if len(p) == 0 {
		return
	}
	for len(p) > 0 && !c.is(closing|failed) {
		n := min(len(p), c.host.Limits.MaxUnsent)
		switch err := r.partner.Send(p[:n]); {
		case err == nil:
			r.ahead += n
			p = p[n:]
		case errors.Is(err, ErrFull):
			c.keep(p)
			r.ahead = max(r.ahead, c.host.Limits.HighWater+1)
			p = nil
		default:
			c.CloseWith(io.EOF) // the other one tells why
		}
	}
	if (r.ahead > c.host.Limits.HighWater || r.out != nil) && !c.is(deaf) {
		c.state |= deaf
		c.tell(func(o *Conn) {
			if r := o.remote(); r != nil {
				r.asked = true
				o.grant()
			}
		})
	}
}

// relay writes what the other connection has received.
func (c *Conn) relay(p []byte) {
	if c.is(closing | failed | finishing) {
		return
	}
	c.heard = c.host.moment()
	h := c.host
	if !c.owes() && c.layer() == nil && h.Direct != nil && len(p) >= h.DirectSize {
		n := h.Direct(c, [][]byte{p})
		if n > 0 {
			h.Counters.Add(Writes, 1)
			h.Counters.Add(BytesOut, int64(n))
		}
		p = p[n:]
	}
	c.passDown(p)
	if !c.is(choked) && c.Pending() > h.Limits.HighWater {
		c.state |= choked
		h.Counters.Add(Paused, 1)
	}
}

// SpliceTo is the connection to which what this one receives may be moved without being
// looked at: nothing waits before it, and neither has a layer. It is nil if there is none.
func (c *Conn) SpliceTo() *Conn {
	if !c.is(relayed) || c.is(closing|failed) || c.in != nil || c.layer() != nil {
		return nil
	}
	o := c.joined()
	if o == nil || o.owes() || o.layer() != nil || o.is(closing|failed|finishing) {
		return nil
	}
	return o
}

// Spliced counts n bytes that were moved so, or in a Bypass.
func (c *Conn) Spliced(n int) {
	c.heard = c.host.moment()
	if o := c.joined(); o != nil {
		o.heard = c.heard
	}
	if n > 0 {
		c.host.Counters.Add(Reads, 1)
		c.host.Counters.Add(BytesIn, int64(n))
		c.host.Counters.Add(Writes, 1)
		c.host.Counters.Add(BytesOut, int64(n))
	}
	if c.is(unread) {
		c.stillUnread()
	}
}

// goOn has the other connection read again, after this one was choked.
func (c *Conn) goOn() {
	if c.is(closing | failed) {
		return
	}
	if o := c.joined(); o != nil {
		o.Listen(true)
		c.host.Touch(o)
	}
}

// grant has the partner go on that has asked, once this one owes little.
func (c *Conn) grant() {
	r, most := c.more.remote, c.host.Limits.LowWater
	if r.in != nil {
		most = 0 // more goes by the bypass
	}
	if c.is(closing|failed) || c.Pending() > most {
		return
	}
	r.asked = false
	c.tell(func(o *Conn) {
		if r := o.remote(); r != nil {
			r.ahead = 0
			o.Listen(true)
		}
	})
}

// tell has something done to a partner of another owner.
func (c *Conn) tell(do func(o *Conn)) {
	if err := c.more.remote.partner.Do(do); errors.Is(err, ErrFull) {
		c.CloseWith(ErrFull)
	}
}

// relayEnd passes on that the peer has ended, behind all it has sent.
func (c *Conn) relayEnd() {
	if c.in != nil || c.is(ended) {
		return
	}
	c.state |= ended
	c.heard = c.host.moment()
	if o := c.joined(); o != nil {
		o.CloseWrite()
		c.host.Touch(o)
		return
	}
	c.tell((*Conn).CloseWrite)
}

// relayClose passes on that the connection closes.
func (c *Conn) relayClose(why error) {
	if o := c.joined(); o != nil {
		if !o.is(closing) {
			o.CloseWith(why)
			c.host.Touch(o)
		}
		return
	}
	_ = c.more.remote.partner.Do(func(o *Conn) { o.CloseWith(why) }) // it may have closed, too
}
