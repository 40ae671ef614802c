package engine

import (
	"io"
	"net"
	"net/netip"
	"sync"
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
	Detach                 // with nothing under way make it a net.Conn, then report Detached; or AtRest
	Shut                   // shut the sending direction, then report ShutDone
	Close                  // close the descriptor, then report Finish
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
	seen  uint32     // bytes of unused input that the handler was offered and refused
	heard coarseTime // when the peer last sent something

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
	dialled        time.Duration
	layer          Layer   // nil if none
	layerBytes     int     // what the layer holds, as it is counted
	byeSent        bool    // the layer has said goodbye
	closedByWorker bool    // a worker calls Closed, or has called it
	remote         *remote // of a relay between two owners
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
	// held is what the handler holds, and heldSince since when a part of a message is among
	// it, or 0: see Hold.
	held      int
	heldSince time.Duration
	values    []*Latest // values to take when nothing else is unsent
	dropped   int64     // messages that its peer had no room for
	unsent    int       // bytes of output that were dropped
	leaving   uint8     // how far it is with being handed over; see migrate.go
}

// empty says whether it means nothing.
func (x *extra) empty() bool {
	return x.why == nil && x.due == 0 && x.dialled == 0 && x.layer == nil && x.layerBytes == 0 && !x.byeSent && !x.closedByWorker &&
		x.remote == nil && x.reads == 0 && x.retained == 0 && !x.duplex &&
		x.detach == nil && x.upgrade == nil && x.timer == 0 && x.deadline == 0 &&
		x.queue == nil && x.direct == 0 && x.partial == 0 && x.held == 0 && x.heldSince == 0 && len(x.values) == 0 && x.dropped == 0 && x.unsent == 0 && x.leaving == 0
}

// Bind gives a connection its host, its number, and the generation that it begins with,
// once, before anyone else can know it. Two connections with the same number have
// different ones.
func (c *Conn) Bind(h *Host, slot, generation uint32) {
	c.host, c.slot = h, slot
	c.mark.v.Store(uint64(generation) << 32)
}

// Slot numbers the connection among those of its owner.
func (c *Conn) Slot() uint32 { return c.slot }

// Generation is that of the Refs to the connection, or to the next one in its slot.
func (c *Conn) Generation() uint32 { return c.mark.generation() }

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

// Dialling says that a connection to a peer, none for a unix socket, is being made
// since a time of Host.Now.
func (c *Conn) Dialling(peer netip.AddrPort, since time.Duration) {
	c.Expect(peer)
	c.extra().dialled = since
}

// DialledAt is when connecting began, by the clock of Since: just before the connect call,
// or in a model that leaves that to package net before its dial. It is for Opened of a
// connection that was dialled; otherwise it means nothing.
func (c *Conn) DialledAt() time.Duration {
	if c.more == nil {
		return 0
	}
	return c.more.dialled
}

// Open says that the connection is established. It calls Opened, unless layers
// have to do their part before.
func (c *Conn) Open(peer netip.AddrPort, dialled bool) {
	c.state = c.state&ownHandler | open | silent
	switch {
	case dialled:
		c.state |= outbound
		c.host.Counters.Add(Dialled, 1)
		*c.extra() = extra{dialled: c.more.dialled}
	case !c.host.proxied(c.Listener(), peer):
		c.state |= registered
	}
	c.host.Counters.Add(Open, 1)
	c.Expect(peer)
	c.seen, c.heard = 0, c.host.coarseNow()
	if l := c.newLayer(); l != nil {
		c.startLayer(l)
		return
	}
	c.begin()
	c.endEvent()
}

// begin calls Opened, or has it called by a worker.
func (c *Conn) begin() {
	if !c.is(outbound) {
		c.host.Counters.Add(Accepted, 1)
	}
	if c.host.OnWorkers {
		c.state |= openPending
	} else {
		c.callOpened()
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

// extra gives the connection what most have no need of.
func (c *Conn) extra() *extra {
	if c.more == nil {
		c.more = extras.Get().(*extra)
	}
	return c.more
}

// extras are what finished connections have had, cleared. So when many end in a short time,
// as when they are handed over, few are made.
var extras = sync.Pool{New: func() any { return new(extra) }}

// Output is what is to be sent next, valid until the next event. There may be more
// behind it.
func (c *Conn) Output() []byte { return c.out.Bytes() }

// Offered says that the kernel has been given Output and reports later how much
// of it was taken. The memory stays valid until then.
func (c *Conn) Offered() {
	c.out.lent = true
	c.state |= blocked
}

// SendBlocked says that the kernel takes nothing of Output now. A driver says so that
// waits before it reports Sent: the time to take it begins at the first time.
func (c *Conn) SendBlocked(now time.Duration) {
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
	c.checkLowWater()
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
	c.mailed(m, data)
	m.done()
}

func (c *Conn) mailed(m Mail, data []byte) {
	late := m.Late() // and then nothing else of the connection may be looked at
	if len(data) == 0 {
		c.unpost(noBytes)
	}
	if late || !c.is(open) {
		c.unpost(len(data))
		if m.shared != nil && m.shared.Lost != nil {
			m.shared.Lost()
		}
		return
	}
	switch m.Kind {
	case MailSend:
		if c.is(relayed) {
			c.heard = c.host.coarseNow()
		}
		if c.sendClosed() {
			c.unpost(len(data))
			c.host.Counters.Add(Dropped, 1)
		} else if c.passDown(data); c.lastOutput() != nil {
			c.lastOutput().owed += len(data)
		} else {
			c.unpost(len(data))
		}
	case MailCast:
		c.unpost(len(data))
		if c.takesBroadcasts() {
			_, _ = c.Write(data) // as in Cast
			c.endEvent()
		}
	case MailLatest:
		c.queueValue(m.shared.latest)
	case MailResumeLayer:
		c.resumeLayer()
		c.endEvent()
	case MailClose:
		c.CloseWith(nil)
	case MailNudge:
		c.callNudged()
		c.endEvent()
	case MailDo:
		if !c.is(greeting | openPending | closing | failed) {
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
	case c.is(peerEnded|failed) || c.leaves():
		return false
	case c.is(closing):
		return c.is(shut)
	case c.is(greeting) && c.more.layer.Full():
		return false
	}
	return !c.is(inputHeld|openPending) && !c.inputPaused()
}

// WantsRoom says whether the driver is to report Room.
func (c *Conn) WantsRoom() bool { return c.is(blocked) && !c.is(failed) && !c.leaves() }

// Next says what is to be done.
func (c *Conn) Next() Action {
	switch {
	case c.is(failed):
		return Close
	case c.leaves():
		return c.nextLeaving()
	case c.mayTakeValues():
		c.takeValues()
		return c.Next()
	case c.hasOutput() && !c.is(blocked):
		if c.out == nil {
			return SendFile
		}
		return Send
	case c.hasOutput() && (c.is(closing) || c.pausesReading()):
		return Wait
	case c.is(closing):
		return c.nextClosing()
	case c.is(greeting):
		return c.nextGreeting()
	case c.is(openPending | drainedPending | drainingPending):
		return Deliver
	case c.detaches() && !c.hasOutput() && c.mark.posted() == 0:
		return Detach
	case c.is(inputHeld), c.is(peerEnded) && !c.is(endDelivered), c.is(relayed) && c.in != nil:
		if c.is(readPaused | yielded) {
			return Wait
		}
		return Deliver
	case c.is(readBeforeClose) && c.WantsInput():
		return Read
	case c.hasOutput():
		return Wait
	case c.is(closingWrite) && !c.is(shut) && c.mark.posted() == 0:
		return c.nextShut()
	case c.retained():
		return Wait
	case c.is(peerEnded) && c.retire(io.EOF):
		return c.nextClosing()
	case c.is(draining) && !c.is(relayed) && c.in == nil && c.partial() == 0 && c.retire(ErrServerClosed):
		return c.nextClosing()
	}
	return Wait
}

// nextGreeting is Next for a connection that its handler has not heard of. What
// the peer's end means to it is for its layer to say.
func (c *Conn) nextGreeting() Action {
	if c.is(readBeforeClose) && c.WantsInput() {
		return Read
	}
	if c.out == nil && c.is(draining) && c.retire(ErrServerClosed) {
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
	if n := c.Pending(); n > 0 {
		c.extra().unsent = n
	}
	if c.out != nil {
		c.release(c.out)
		c.out = nil
	}
	c.dropFiles()
}
