package engine

import (
	"io"
	"net"
	"net/netip"
	"time"
)

// Action is what a driver is to do next for a connection.
type Action uint8

const (
	Wait     Action = iota // for the next event
	Send                   // send Output, then report Sent
	Deliver                // call Conn.Deliver
	Read                   // read once without waiting, then report Arrived, PeerClosed, Failed or Empty
	SendFile               // send File, then report Sent; or call Conn.Load
	Detach                 // make it a net.Conn, with nothing under way, then report Detached
	Shut                   // shut the sending direction, then report ShutDone
	Close                  // close the descriptor, then report Finish
)

// The bits of a connection's state. Above them stands how many heartbeats the
// peer has left unanswered.
//
//	open       established, not finished
//	ended      the handler knows that the peer has ended (with gone)
//	gone       the peer will send no more
//	held       unused input waits for output to drain, or to be listened to again, not for more input
//	drain      close at the next idle moment
//	closing    no more input is offered; more says why
//	shut       our sending direction is shut; lingering for the peer's end
//	failed     the transport is of no more use: close at once
//	blocked    the kernel took less output than it was given
//	outbound   we dialled
//	fresh      Opened is still to be called, by a worker
//	greeting   layers are at work before Opened
//	silent     the peer has sent nothing yet
//	choked     owes more than HighWater, and has not got below LowWater since
//	relieved   Drained is to be called
//	warned     Draining is to be called
//	registered counted among the connections of its source
//	beginning  seen and heard together are when it was dialled; Opened is under way
//	deaf       the handler does not listen: see Listen
//	unread     is to be read from before it is closed for silence or a drain
//	own        user is an Owned: its handler is its own
//	finishing  our sending direction is to be shut when output is sent: see CloseWrite
//	relayed    joined with another connection: see Relay
//	called     its handler is being called for it
const (
	open uint32 = 1 << iota
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
	greeting
	silent
	choked
	relieved
	warned
	registered
	beginning
	deaf
	unread
	own
	finishing
	relayed

	called    = 1 << 23
	missed    = 1 << 24 // one heartbeat
	allMissed = 0xff * missed
)

// Conn is one connection: a state machine that makes no system call. Events go
// in through its methods, Next says what is to be done; see the package
// comment. It belongs to its owner: only Ref is for others.
//
// Its size is what an idle connection costs; TestConnSize holds it down.
type Conn struct {
	host  *Host
	in    *Buffer // input that the handler has not used; nil if none
	out   *Buffer // output that is not sent; nil if none
	more  *extra  // nil if none of it is needed
	user  any
	mark  mark
	seen  uint32 // bytes of unused input that the handler was offered and refused
	heard moment // when the peer last sent something

	peerAddr [16]byte
	peerPort uint16
	armed    uint16 // the driver's: what it watches the descriptor for
	state    uint32
	fd       int32 // the driver's, and the listener's number; see entrance.go
	slot     uint32
}

// extra is what only a connection needs that has layers, gets values of topics, has
// missed messages, or comes to its end.
type extra struct {
	why error         // set with closing
	due time.Duration // when it expires; 0 for never
	// dialled is when connecting began, until Opened has been called.
	dialled time.Duration
	layer   Layer // nil if none
	held    int   // what the layer holds, as it is counted
	bidden  bool  // the layer has said goodbye
	parting bool  // a worker calls Closed, or has called it
	// Of a relay between two owners, see relay.go.
	partner Ref
	ahead   int
	asked   bool
	// reads is how many reads a drain still waits for.
	reads int
	// retained is how often the connection is retained: see Retain.
	retained int
	duplex   bool // see Duplex
	// detach is set when the connection is to be given up; see Detach.
	detach  *func(nc net.Conn, unread []byte)
	upgrade *upgrade // nil if there is none under way
	// timer is when Timer is to be called, deadline when the connection is to be
	// closed; 0 for never.
	timer, deadline time.Duration
	queue           *files // nil if none waits
	direct          int    // see Conn.direct
	// partial is since when the layer waits for the rest of something; 0 if
	// it does not.
	partial time.Duration
	latest  []*Latest // values to take when nothing else is owed
	dropped int64     // messages that its peer had no room for
}

// empty says whether it means nothing.
func (x *extra) empty() bool {
	return x.why == nil && x.due == 0 && x.layer == nil && x.held == 0 && !x.bidden && !x.parting &&
		x.partner.c == nil && x.ahead == 0 && !x.asked && x.reads == 0 && x.retained == 0 && !x.duplex &&
		x.detach == nil && x.upgrade == nil && x.timer == 0 && x.deadline == 0 &&
		x.queue == nil && x.direct == 0 && x.partial == 0 && len(x.latest) == 0 && x.dropped == 0
}

func (c *Conn) is(bits uint32) bool { return c.state&bits != 0 }

// Bind gives a connection its host and its number, once, before anyone else
// can know it.
func (c *Conn) Bind(h *Host, slot uint32) { c.host, c.slot = h, slot }

// Slot numbers the connection among those of its owner.
func (c *Conn) Slot() uint32 { return c.slot }

// FD is the driver's descriptor of the connection, as SetFD has set it.
func (c *Conn) FD() int32 {
	if c.fd < 0 {
		return c.fd
	}
	return c.fd & (MaxFD - 1)
}

// SetFD keeps the driver's descriptor, which is less than MaxFD, for a connection that
// has come by no listener, yet.
func (c *Conn) SetFD(fd int32) { c.fd = fd }

// Armed is the driver's note of what it watches the descriptor for.
func (c *Conn) Armed() uint16 { return c.armed }

// SetArmed keeps that note.
func (c *Conn) SetArmed(bits uint16) { c.armed = bits }

// Open says that the connection is established. It calls Opened, unless layers
// have to do their part before.
func (c *Conn) Open(peer netip.AddrPort, dialled bool) {
	c.state = c.state&own | open | silent
	c.more = nil // of a dial
	var began time.Duration
	switch {
	case dialled:
		c.state |= outbound
		c.host.Counters.Add(Dialled, 1)
		began = c.noted()
	case !c.host.proxied(c.Listener(), peer):
		c.state |= registered
	}
	c.host.Counters.Add(Open, 1)
	c.Expect(peer)
	c.seen, c.heard = 0, c.host.moment()
	if l := c.newLayer(); l != nil {
		c.greet(l, began)
		return
	}
	c.begin(began)
	c.endEvent()
}

// begin calls Opened, or has it called by a worker. A dial began at a time.
func (c *Conn) begin(began time.Duration) {
	if !c.is(outbound) {
		c.host.Counters.Add(Accepted, 1)
	}
	switch {
	case c.host.Away:
		c.state |= fresh
		if began != 0 {
			c.extra().dialled = began
		}
	case began == 0:
		c.callOpened()
	default:
		c.note(began)
		c.state |= beginning
		c.callOpened()
		c.state &^= beginning
		c.seen, c.heard = 0, c.host.moment()
	}
}

// Expect keeps the address of a peer that is being dialled, for Peer.
func (c *Conn) Expect(peer netip.AddrPort) {
	c.peerAddr, c.peerPort = peer.Addr().As16(), peer.Port()
}

// Closing says whether the connection has begun to close.
func (c *Conn) Closing() bool { return c.is(closing | failed) }

// IsOpen says whether the connection is between Open and Finish.
func (c *Conn) IsOpen() bool { return c.is(open) }

// Arrived takes input; p is valid during the call.
func (c *Conn) Arrived(p []byte) {
	n := c.host.Counters.Add(Reads, 1)
	c.host.Counters.Add(BytesIn, int64(len(p)))
	if sample := n%sampling == 0; (sample || c.host.Timing) && !c.host.Away {
		start := c.host.Now()
		c.host.SetClock(start)
		c.take(p)
		end := c.host.Now()
		c.host.SetClock(end)
		c.host.called(c, end-start, sample)
		return
	}
	c.take(p)
}

func (c *Conn) take(p []byte) {
	switch {
	case c.is(closing | failed):
		// Lingering: nobody wants it any more.
	case c.layer() != nil:
		c.passUp(p)
	default:
		c.Plain(p)
	}
	if c.is(unread) {
		c.stillUnread()
	}
	c.endEvent()
}

// Plain takes input as the handler is to see it; p is valid during the call. Only
// such counts as a word from the peer: the first bytes of a TLS record are none.
func (c *Conn) Plain(p []byte) {
	if c.more != nil {
		c.more.partial = 0
	}
	c.heard = c.host.moment()
	c.state &^= silent | allMissed
	switch {
	case c.is(closing | failed):
	case c.is(relayed):
		if c.in != nil {
			c.keep(p)
		} else {
			c.forward(p)
		}
	case c.host.Away:
		c.keep(p)
		c.state |= held
	case c.in != nil:
		c.host.append(c.in, p)
		c.offerBuffered(nil)
	default:
		if rest := c.offer(p, nil); len(rest) > 0 && !c.is(closing|failed) {
			c.keep(rest)
		}
	}
}

// keep appends to the unused input.
func (c *Conn) keep(p []byte) {
	if c.in == nil {
		c.in = c.host.get(len(p))
	}
	c.host.append(c.in, p)
}

// Deliver calls the handler: with input that was held back, and to tell it when
// there is none left and the peer has ended.
func (c *Conn) Deliver() {
	if c.is(relayed) {
		c.state &^= relieved | warned
		c.flush()
		c.endEvent()
		return
	}
	if c.is(fresh) {
		c.state &^= fresh
		c.callOpened()
	}
	if c.is(relieved) {
		c.state &^= relieved
		c.callDrained()
	}
	if c.is(warned) && !c.is(closing|failed) {
		c.callDraining()
	}
	c.state &^= warned
	if c.is(held) {
		c.offerBuffered(nil)
	}
	if c.is(gone) && !c.is(ended|held|deaf|closing|failed) {
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
	if used > 0 && used < len(rest) && c.waits() && !c.is(closing|failed) {
		c.in.skip(used)
		c.seen = 0
		c.state |= held
		return
	}
	c.state |= ended
	c.dropInput()
}

// offerBuffered offers the unused input and keeps what is left. With a reason it
// is shed.
func (c *Conn) offerBuffered(shed error) {
	c.state &^= held
	if c.in == nil {
		return
	}
	rest := c.offer(c.in.Bytes(), shed)
	if c.is(closing | failed) {
		c.dropInput()
		return
	}
	if used := c.in.Len() - len(rest); used > 0 {
		c.in.skip(used)
		c.in.since = c.host.Clock() // another message begins
	}
	if c.in.Len() == 0 {
		c.dropInput()
	}
}

// offer calls the handler until it uses no more, and returns what is left. It
// offers ReadSize bytes at a time, as much as a read brings, beyond those that
// the handler has refused already: where much input has piled up, what a
// handler writes for one offer stays within bounds all the same.
func (c *Conn) offer(in []byte, shed error) []byte {
	for len(in) > 0 && !c.is(closing|failed) {
		if c.waits() {
			c.state |= held
			break
		}
		part := in[:min(len(in), int(c.seen)+ReadSize)]
		used := c.callReceived(part, shed)
		switch {
		case used < 0 || used > len(part):
			c.fail(ErrBadUse)
		case used > 0:
			in, c.seen = in[used:], 0
		case c.waits():
		case len(part) >= c.host.Limits.MaxMessage:
			c.TooLong(uint64(len(part)))
		default:
			c.seen = uint32(len(part))
			if len(part) == len(in) {
				return in
			}
		}
	}
	return in
}

// waits says whether no input is offered now.
func (c *Conn) waits() bool { return c.owesMuch() || c.is(deaf) }

// owesMuch says whether reading pauses until output has been sent: from above
// HighWater until not above LowWater. With ReadOn it never does, but the handler
// hears of the latter all the same.
func (c *Conn) owesMuch() bool {
	if !c.is(choked|relayed) && c.Pending()+c.direct() > c.host.Limits.HighWater {
		c.state |= choked
		c.host.Counters.Add(Paused, 1)
	}
	return c.is(choked) && !c.host.ReadOn && !c.ReadsOn()
}

// relieve ends that when it is time, and has a partner go on.
func (c *Conn) relieve() {
	if c.more != nil && c.more.asked {
		c.grant()
	}
	if !c.is(choked) || c.Pending() > c.host.Limits.LowWater {
		return
	}
	c.unchoke()
	if c.is(relayed) {
		c.goOn()
		return
	}
	if (c.host.Drained != nil || c.is(own)) && !c.is(closing|failed) {
		c.state |= relieved
	}
}

// unchoke goes on with reading. The peer's times begin anew: so far nobody has
// listened.
func (c *Conn) unchoke() {
	c.state &^= choked
	c.host.Counters.Add(Paused, -1)
	c.attentive()
}

// attentive has the peer's times begin now.
func (c *Conn) attentive() {
	c.heard = c.host.moment()
	if c.in != nil {
		c.in.since = c.host.Clock()
	}
}

// extra gives the connection what most have no need of.
func (c *Conn) extra() *extra {
	if c.more == nil {
		c.more = &extra{}
	}
	return c.more
}

// Output is what is to be sent next, valid until the next event. There may be more
// behind it.
func (c *Conn) Output() []byte { return c.out.Bytes() }

// Offered says that the kernel has been given Output and reports later how much
// of it was taken. The memory stays valid until then.
func (c *Conn) Offered() {
	c.out.lent = true
	c.state |= blocked
}

// Waits says that the kernel takes nothing of Output now. A driver says so that
// waits before it reports Sent: the time to take it begins at the first time.
func (c *Conn) Waits(now time.Duration) {
	if c.out == nil {
		c.files().begin(now)
	} else if c.out.goal == 0 {
		c.out.goal, c.out.since = c.out.Len(), now
	}
}

// Sent says that the first n bytes of Output were taken, or of File, if there is no
// output.
func (c *Conn) Sent(n int) {
	c.host.Counters.Add(Writes, 1)
	c.host.Counters.Add(BytesOut, int64(n))
	if c.out == nil {
		c.sentFile(n)
		return
	}
	all := n == len(c.Output())
	left, _ := c.took(n)
	switch {
	case left == 0:
		c.state &^= blocked
		c.emptied()
	case all:
		c.state &^= blocked
		first := c.out
		c.out = first.follow()
		c.host.put(first)
		c.out.progress(n, c.host.Clock())
	default:
		c.state |= blocked
		c.out.progress(n, c.host.Clock())
	}
	c.relieve()
}

// Room says that the kernel takes output again.
func (c *Conn) Room() { c.state &^= blocked }

// ShutDone says that our direction is shut: if the connection is closing, the peer
// has the linger time to end its own.
func (c *Conn) ShutDone() {
	c.state |= shut
	if c.is(closing) {
		c.more.due = c.host.Now() + c.host.Limits.Linger
	}
}

// Mailed takes a piece of mail that the owner has taken from its mailbox. data
// is valid during the call. The connection may have closed in the meantime.
func (c *Conn) Mailed(m Mail, data []byte) {
	if m.shared != nil {
		data = m.shared.Bytes
	}
	if !m.Late() && c.keepMail(m, data) {
		return
	}
	late := m.Late() // and then nothing else of the connection may be looked at
	if len(data) == 0 {
		c.mark.release(noBytes)
	}
	if late || !c.is(open) {
		c.mark.release(len(data))
		if m.shared != nil && m.shared.Lost != nil {
			m.shared.Lost()
		}
		return
	}
	switch m.Kind {
	case MailSend:
		if c.is(relayed) {
			c.heard = c.host.moment() // its partner has
		}
		if c.sendsNoMore() {
			c.mark.release(len(data))
			c.host.Counters.Add(Dropped, 1)
		} else if c.passDown(data); c.latest() != nil {
			c.latest().owed += len(data)
		} else {
			c.mark.release(len(data))
		}
	case MailCast:
		c.mark.release(len(data))
		if c.hears() {
			_, _ = c.Write(data) // as in Cast
			c.endEvent()
		}
	case MailLatest:
		c.awaits(m.shared.latest)
	case MailAttend:
		c.attend()
		c.endEvent()
	case MailClose:
		c.CloseWith(nil)
	case MailNudge:
		c.callNudged()
		c.endEvent()
	case MailDo:
		if !c.is(greeting | fresh | closing | failed) {
			c.call(m.shared.Do)
			c.endEvent()
		} else if m.shared.Lost != nil {
			m.shared.Lost()
		}
	}
}

// WantsInput says whether the driver is to read.
func (c *Conn) WantsInput() bool {
	switch {
	case c.is(gone | failed):
		return false
	case c.is(closing):
		return c.is(shut)
	case c.is(greeting) && c.more.layer.Full():
		return false
	}
	return !c.is(held|fresh) && !c.waits()
}

// WantsRoom says whether the driver is to report Room.
func (c *Conn) WantsRoom() bool { return c.is(blocked) && !c.is(failed) }

// Next says what is to be done.
func (c *Conn) Next() Action {
	switch {
	case c.is(failed):
		return Close
	case c.mayTake():
		c.takeLatest()
		return c.Next()
	case c.owes() && !c.is(blocked):
		if c.out == nil {
			return SendFile
		}
		return Send
	case c.owes() && (c.is(closing) || c.owesMuch()):
		return Wait
	case c.is(closing):
		return c.nextClosing()
	case c.is(greeting):
		return c.nextGreeting()
	case c.is(fresh | relieved | warned):
		return Deliver
	case c.detaches() && !c.owes() && c.mark.posted() == 0:
		return Detach
	case c.is(held), c.is(gone) && !c.is(ended), c.is(relayed) && c.in != nil:
		if c.is(deaf) {
			return Wait
		}
		return Deliver
	case c.is(unread) && c.WantsInput():
		return Read
	case c.owes():
		return Wait
	case c.is(finishing) && !c.is(shut) && c.mark.posted() == 0:
		return c.nextShut()
	case c.retained():
		return Wait
	case c.is(gone) && c.retire(io.EOF):
		return c.nextClosing()
	case c.is(drain) && !c.is(relayed) && c.in == nil && c.partial() == 0 && c.retire(ErrServerClosed):
		return c.nextClosing()
	}
	return Wait
}

// nextGreeting is Next for a connection that its handler has not heard of. What
// the peer's end means to it is for its layer to say.
func (c *Conn) nextGreeting() Action {
	if c.is(unread) && c.WantsInput() {
		return Read
	}
	if c.out == nil && c.is(drain) && c.retire(ErrServerClosed) {
		return c.nextClosing()
	}
	return Wait
}

// Greets says whether the handler has not heard of the connection.
func (c *Conn) Greets() bool { return c.is(greeting) && !c.upgrades() }

// Discard lets go of the buffers of a connection that is to be closed: of its input,
// and of its output if the kernel has not been given that.
func (c *Conn) Discard(output bool) {
	if c.dropInput(); output {
		c.dropOutput()
	}
}

func (c *Conn) dropInput() {
	if c.in != nil {
		c.host.put(c.in)
		if c.in = nil; !c.is(relayed) {
			c.seen = 0
		}
	}
}

func (c *Conn) dropOutput() {
	if c.out != nil {
		c.release(c.out)
		c.out = nil
	}
	c.dropFiles()
}
