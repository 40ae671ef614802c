package engine

import (
	"io"
	"net/netip"
	"time"
)

// Action is what a driver is to do next for a connection.
type Action uint8

const (
	Wait    Action = iota // for the next event
	Send                  // send Output, then report Sent
	Deliver               // call Conn.Deliver
	Shut                  // shut the sending direction, then report ShutDone
	Close                 // close the descriptor, then report Finish
)

// The bits of a connection's state.
//
//	open     Opened has been called, Closed has not
//	ended    the handler knows that the peer has ended (with gone)
//	gone     the peer will send no more
//	held     unused input waits for output to drain, not for more input
//	drain    close at the next idle moment
//	closing  no more input is offered; end says why
//	shut     our sending direction is shut; lingering for the peer's end
//	failed   the transport is of no more use: close at once
//	blocked  the kernel took less output than it was given
//	outbound we dialled
//	fresh    Opened is still to be called, by a worker
//	parting  a worker calls Closed, or has called it
const (
	open uint16 = 1 << iota
	ended
	gone
	held
	drain
	closing
	shut
	failed
	blocked
	outbound
	fresh
	parting
)

// Conn is one connection: a state machine that makes no system call. Events go
// in through its methods, Next says what is to be done; see the package
// comment. It belongs to its owner: only Ref is for others.
//
// Its size is what an idle connection costs; TestConnSize holds it down.
type Conn struct {
	host *Host
	in   *Buffer // input that the handler has not used; nil if none
	out  *Buffer // output that is not sent; nil if none
	end  *ending // set with closing or gone
	user any
	mark mark
	seen uint32 // bytes of unused input that the handler was offered and refused
	owed uint32 // bytes in out that were posted; still in mark

	peerAddr [16]byte
	peerPort uint16
	state    uint16

	// fd and armed are the driver's: its descriptor, and what it watches it
	// for.
	fd    int32
	slot  uint32
	armed uint16
}

// ending is what only a connection needs that comes to its end.
type ending struct {
	why error // set with closing
	due time.Duration
}

func (c *Conn) is(bits uint16) bool { return c.state&bits != 0 }

// Bind gives a connection its host and its number, once, before anyone else
// can know it.
func (c *Conn) Bind(h *Host, slot uint32) { c.host, c.slot = h, slot }

// Slot numbers the connection among those of its owner.
func (c *Conn) Slot() uint32 { return c.slot }

// FD is the driver's descriptor of the connection, as SetFD has set it.
func (c *Conn) FD() int32 { return c.fd }

// SetFD keeps the driver's descriptor.
func (c *Conn) SetFD(fd int32) { c.fd = fd }

// Armed is the driver's note of what it watches the descriptor for.
func (c *Conn) Armed() uint16 { return c.armed }

// SetArmed keeps that note.
func (c *Conn) SetArmed(bits uint16) { c.armed = bits }

// Open says that the connection is established and calls Opened.
func (c *Conn) Open(peer netip.AddrPort, dialled bool) {
	c.state = open
	if dialled {
		c.state |= outbound
		c.host.Counters.Dialled.Add(1)
	} else {
		c.host.Counters.Accepted.Add(1)
	}
	c.host.Counters.Open.Add(1)
	c.Expect(peer)
	c.seen, c.owed = 0, 0
	if c.host.Away {
		c.state |= fresh
		return
	}
	c.callOpened()
	c.endEvent()
}

// Expect keeps the address of a peer that is being dialled, for Peer.
func (c *Conn) Expect(peer netip.AddrPort) {
	c.peerAddr, c.peerPort = peer.Addr().As16(), peer.Port()
}

// IsOpen says whether the connection is between Open and Finish.
func (c *Conn) IsOpen() bool { return c.is(open) }

// Arrived takes input; p is valid during the call.
func (c *Conn) Arrived(p []byte) {
	c.host.Counters.Reads.Add(1)
	c.host.Counters.BytesIn.Add(int64(len(p)))
	switch {
	case c.is(closing | failed):
		// Lingering: nobody wants it any more.
	case c.host.Away:
		c.keep(p)
		c.state |= held
	case c.in != nil:
		c.in.append(p)
		c.offerBuffered()
	default:
		if rest := c.offer(p); len(rest) > 0 && !c.is(closing|failed) {
			c.keep(rest)
		}
	}
	c.endEvent()
}

// keep appends to the unused input.
func (c *Conn) keep(p []byte) {
	if c.in == nil {
		c.in = c.host.Buffers.Get()
	}
	c.in.append(p)
}

// Deliver calls the handler: with input that was held back, and to tell it when
// there is none left and the peer has ended.
func (c *Conn) Deliver() {
	if c.is(fresh) {
		c.state &^= fresh
		c.callOpened()
	}
	if c.is(held) {
		c.offerBuffered()
	}
	if c.is(gone) && !c.is(ended|held|closing|failed) {
		c.deliverEnd()
	}
	c.endEvent()
}

// deliverEnd tells the handler that the peer has ended. What it leaves because
// the connection is paused waits for output to drain.
func (c *Conn) deliverEnd() {
	var rest []byte
	if c.in != nil {
		rest = c.in.Bytes()
	}
	used := c.callEnded(rest)
	if used > 0 && used < len(rest) && c.owesMuch() && !c.is(closing|failed) {
		c.in.skip(used)
		c.seen = 0
		c.state |= held
		return
	}
	c.state |= ended
	c.dropInput()
}

// offerBuffered offers the unused input and keeps what is left.
func (c *Conn) offerBuffered() {
	c.state &^= held
	if c.in == nil {
		return
	}
	rest := c.offer(c.in.Bytes())
	if c.is(closing | failed) {
		c.dropInput()
		return
	}
	c.in.skip(c.in.Len() - len(rest))
	if c.in.Len() == 0 {
		c.dropInput()
	}
}

// offer calls the handler until it uses no more, and returns what is left. It
// offers ReadSize bytes at a time, as much as a read brings, beyond those that
// the handler has refused already: where much input has piled up, what a
// handler writes for one offer stays within bounds all the same.
func (c *Conn) offer(in []byte) []byte {
	for len(in) > 0 && !c.is(closing|failed) {
		if c.owesMuch() {
			c.state |= held
			break
		}
		part := in[:min(len(in), int(c.seen)+ReadSize)]
		used := c.callReceived(part)
		switch {
		case used < 0 || used > len(part):
			c.fail(ErrBadUse)
		case used > 0:
			in, c.seen = in[used:], 0
		case c.owesMuch():
		case len(part) >= c.host.Limits.MaxMessage:
			c.CloseWith(ErrMessageTooLong)
		default:
			c.seen = uint32(len(part))
			if len(part) == len(in) {
				return in
			}
		}
	}
	return in
}

// owesMuch says whether reading pauses until output has been sent.
func (c *Conn) owesMuch() bool { return c.Pending()+c.host.direct > c.host.Limits.MaxUnsent/2 }

// PeerClosed says that the peer will send no more. What it is owed it must take
// within the time that a close has.
func (c *Conn) PeerClosed() {
	c.state |= gone
	if c.end == nil {
		c.end = &ending{due: c.host.Now() + c.host.Limits.CloseTimeout}
	}
}

// Failed says that the transport is broken.
func (c *Conn) Failed(err error) { c.Kill(Reason(err)) }

// Kill closes at once, without sending what is owed. The reason of a connection
// that is closing already and owes nothing stays as it is.
func (c *Conn) Kill(why error) {
	if c.is(closing) && c.Pending() == 0 {
		c.state |= failed
		return
	}
	c.fail(why)
}

// Drain closes at the next moment at which nothing is under way.
func (c *Conn) Drain() { c.state |= drain }

// fail gives up the connection: output that is owed is dropped.
func (c *Conn) fail(why error) {
	c.CloseWith(why)
	c.end.why = why
	c.state |= failed
}

// CloseWith starts to close: no more input is offered, output so far is sent.
// The first reason counts.
func (c *Conn) CloseWith(why error) {
	if c.is(closing) {
		return
	}
	c.mark.next()
	c.setClosing(why)
}

// retire starts to close in order: not while mail is on its way.
func (c *Conn) retire(why error) bool {
	if !c.mark.retire() {
		return false
	}
	c.setClosing(why)
	return true
}

func (c *Conn) setClosing(why error) {
	c.state |= closing
	if c.end != nil {
		c.end.why = why
		return
	}
	c.end = &ending{why: why, due: c.host.Now() + c.host.Limits.CloseTimeout}
}

// Output is what is to be sent, valid until the next event.
func (c *Conn) Output() []byte { return c.out.Bytes() }

// Offered says that the kernel has been given Output and reports later how much
// of it was taken. The memory stays valid until then.
func (c *Conn) Offered() {
	c.out.lend()
	c.state |= blocked
}

// Sent says that the first n bytes of Output were taken.
func (c *Conn) Sent(n int) {
	c.host.Counters.Writes.Add(1)
	c.host.Counters.BytesOut.Add(int64(n))
	c.out.skip(n)
	left := c.out.Len()
	if c.owed > uint32(left) {
		c.mark.release(int(c.owed) - left)
		c.owed = uint32(left)
	}
	if left > 0 {
		c.state |= blocked
		return
	}
	c.state &^= blocked
	c.dropOutput()
}

// Room says that the kernel takes output again.
func (c *Conn) Room() { c.state &^= blocked }

// ShutDone says that our direction is shut: the peer has the linger time to
// end its own.
func (c *Conn) ShutDone() {
	c.state |= shut
	c.end.due = c.host.Now() + c.host.Limits.Linger
}

// Mailed takes a piece of mail that the owner has taken from its mailbox. data
// is valid during the call. The connection may have closed in the meantime.
func (c *Conn) Mailed(m Mail, data []byte) {
	if len(data) == 0 {
		c.mark.release(noBytes)
	}
	if m.gen != c.mark.generation() || !c.is(open) {
		c.mark.release(len(data))
		return
	}
	switch m.Kind {
	case MailSend:
		if len(data) > 0 {
			c.room().append(data)
			c.owed += uint32(len(data))
		}
	case MailClose:
		c.CloseWith(nil)
	case MailNudge:
		c.callNudged()
		c.endEvent()
	}
}

// Due is when a connection expires that is closing, or whose peer has ended; ok
// is false while it has no bound.
func (c *Conn) Due() (at time.Duration, ok bool) {
	if c.end == nil {
		return 0, false
	}
	return c.end.due, true
}

// Expire gives up a connection whose time has come.
func (c *Conn) Expire(now time.Duration) {
	if c.end == nil || now < c.end.due {
		return
	}
	if c.Pending() > 0 {
		c.fail(ErrCloseTimeout)
	} else if c.is(closing) {
		c.state |= failed
	}
}

// WantsInput says whether the driver is to read.
func (c *Conn) WantsInput() bool {
	switch {
	case c.is(gone | failed):
		return false
	case c.is(closing):
		return c.is(shut)
	}
	return !c.is(held|fresh) && !c.owesMuch()
}

// WantsRoom says whether the driver is to report Room.
func (c *Conn) WantsRoom() bool { return c.is(blocked) && !c.is(failed) }

// Next says what is to be done.
func (c *Conn) Next() Action {
	switch {
	case c.is(failed):
		return Close
	case c.out != nil && !c.is(blocked):
		return Send
	case c.out != nil && (c.is(closing) || c.owesMuch()):
		return Wait
	case c.is(closing):
		return c.nextClosing()
	case c.is(held | fresh), c.is(gone) && !c.is(ended):
		return Deliver
	case c.out != nil:
		return Wait
	case c.is(gone) && c.retire(io.EOF):
		return Close
	case c.is(drain) && c.in == nil && c.retire(ErrServerClosed):
		return c.nextClosing()
	}
	return Wait
}

// nextClosing is Next for a closing connection that owes nothing.
func (c *Conn) nextClosing() Action {
	switch {
	case c.is(gone):
		return Close
	case c.is(shut):
		return Wait
	}
	return Shut
}

// Part is for a connection whose Closed a worker is to call: Run does that, and
// Finish then does not.
func (c *Conn) Part() { c.state |= parting }

// Parted says whether Part has been called.
func (c *Conn) Parted() bool { return c.is(parting) }

// Run is a worker's part: the handler's calls that are due. The worker owns the
// connection until Returned has been called.
func (c *Conn) Run() {
	start := c.host.Now()
	if c.is(parting) {
		c.callClosed(c.end.why)
	} else {
		c.Deliver()
	}
	if t := c.host.Times; t != nil {
		t.add(c.host.Now() - start)
	}
	c.host.Returned(c)
}

// Finish says that the descriptor has been closed, and calls Closed. The slot
// may be used again afterwards.
func (c *Conn) Finish() {
	c.dropInput()
	c.dropOutput()
	if !c.is(parting) {
		c.callClosed(c.end.why)
	}
	c.host.Counters.Open.Add(-1)
	c.state, c.end, c.user = 0, nil, nil
}

func (c *Conn) dropInput() {
	if c.in != nil {
		c.host.Buffers.Put(c.in)
		c.in, c.seen = nil, 0
	}
}

func (c *Conn) dropOutput() {
	if c.owed > 0 {
		c.mark.release(int(c.owed))
		c.owed = 0
	}
	if c.out != nil {
		c.host.Buffers.Put(c.out)
		c.out = nil
	}
}

// room is the output to append to.
func (c *Conn) room() *Buffer {
	if c.out == nil {
		c.out = c.host.Buffers.Get()
	}
	return c.out
}
