package goroutine

import (
	"errors"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// conn is a connection with its goroutine.
type conn struct {
	engine.Conn
	group        *group
	nc           net.Conn
	io           transport
	input        *[]byte // what it reads into
	handled      uint8   // what it has done of orders
	fullRead     bool    // the last read filled its buffer
	bulk         bool    // and brought more than heavyRead: reads in turn
	wasBlocked   bool    // for output to be taken, since the last Sent
	urgent       bool    // it is counted in group.urgent
	peerTold     bool    // a proxy has told whose it is
	awaitingRoom bool    // a goroutine waits for room in its place

	// For everyone:
	box      atomic.Pointer[engine.Mailbox]
	parked   atomic.Bool
	requests atomic.Uint32
	wakeAt   atomic.Uint32 // when it wants to be woken, as instant has it; 0 for never
	buffered atomic.Uint32 // bytes of memory that its buffers hold, while it waits
}

func newConn(g *group, nc net.Conn) (*conn, error) {
	c := &conn{group: g, nc: nc}
	return c, c.initIO()
}

// addrPort reads an address of package net; the zero value if it has no port.
func addrPort(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort()
	}
	return netip.AddrPort{}
}

// local is Host.LocalAddr.
func (g *group) local(c *engine.Conn) netip.AddrPort {
	g.mu.Lock()
	own := g.conns.get(c.Slot())
	g.mu.Unlock()
	return addrPort(own.nc.LocalAddr())
}

// run is the connection's life. Where a handler calls runtime.Goexit, the connection has failed, and
// is closed in the deferred function.
func (c *conn) run(open func(c *conn)) {
	closed := false
	defer func() {
		if closed {
			return
		}
		if v := recover(); v != nil {
			panic(v)
		}
		c.releaseBuffer()
		c.run(nil)
	}()
	if open != nil {
		open(c)
	}
	for {
		switch c.NextAction() {
		case engine.Send:
			c.send()
		case engine.SendFile:
			c.sendFile()
		case engine.FeedHandler:
			c.FeedHandler()
		case engine.Read:
			c.readNow()
		case engine.DetachOrExport:
			c.detach()
		case engine.ShutWrite:
			c.shut()
		case engine.Close:
			closed = true
			c.close()
			return
		case engine.Wait:
			switch {
			case !c.WantsWritable():
				c.receive()
			case c.awaitingRoom || c.HasIndependentDirections() && c.awaitRoom():
				c.receive() // neither direction waits for the other
			default:
				c.OnWritable() // the next Send waits for it
			}
		}
	}
}

// open opens it. It was dialled at a time, or accepted, and something may have been read
// from it already.
func (c *conn) open(dialled time.Duration, read []byte) {
	c.updateClock()
	peer := addrPort(c.nc.RemoteAddr())
	if dialled != 0 {
		c.OnDialling(peer, dialled)
	}
	c.OnOpen(peer, dialled != 0)
	if len(read) > 0 {
		c.OnRead(read)
		c.noteProxiedPeer()
	}
}

// updateClock sets the clock, before something that is timed begins by it.
func (c *conn) updateClock() { c.group.host.SetClock(c.group.now()) }

// send sends the output, and waits until the kernel has taken it.
func (c *conn) send() {
	c.publish()
	n, err := c.write()
	if c.wasBlocked || n < c.UnsentBytes() {
		c.wasBlocked = false
		c.updateClock()
	}
	c.OnSent(n)
	c.afterSend(err)
}

// afterSend takes the end of a write: an error, or what has come meanwhile.
func (c *conn) afterSend(err error) {
	if err != nil {
		c.interrupted(err)
	} else if c.hasRequests() {
		c.handleRequests()
	}
}

// receive waits for input or mail, and reads once. A connection that wants no
// input, because its peer has ended while it greets or its handshake has enough,
// waits for mail alone.
func (c *conn) receive() {
	if c.hasRequests() {
		c.handleRequests()
		return
	}
	c.publish()
	if c.expired() {
		return
	}
	if c.WantsInput() {
		c.take(c.read())
	} else if err := c.waitMail(); err != nil {
		c.interrupted(err)
	}
}

// expired does what is due for a connection that never waits, because it always has
// input or waits for its turn or memory: the sweeper can't wake it. It says whether
// something was.
func (c *conn) expired() bool {
	due := c.wakeAt.Load()
	if due == 0 || !c.bulk && !c.group.overBudget(c.group.reading.Load()) {
		return false
	}
	now := c.group.now()
	return int32(instant(now)-due) > 0 && c.CheckTimeouts(now)
}

// readNow reads once without waiting.
func (c *conn) readNow() {
	p, err := c.tryRead()
	all := err == nil && (len(p) == 0 || !c.fullRead)
	c.take(p, err)
	if all {
		c.OnReadEmpty()
	}
}

// take gives the core what a read has brought.
func (c *conn) take(p []byte, err error) {
	if len(p) > 0 {
		c.OnRead(p)
		c.noteProxiedPeer()
	}
	c.releaseBuffer()
	switch {
	case errors.Is(err, io.EOF):
		c.OnEOF()
	case err != nil:
		c.interrupted(err)
	}
}

// interrupted takes the end of a wait: because it was woken, or by an error.
func (c *conn) interrupted(err error) {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		c.OnTransportError(err)
		return
	}
	_ = c.nc.SetDeadline(time.Time{})
	c.handleRequests()
	c.CheckTimeouts(c.group.now())
}

// publish shows the sweeper when this connection wants to be woken, and what its buffers
// hold.
func (c *conn) publish() {
	due := uint32(0)
	if at, ok := c.NextTimeout(); ok {
		due = instant(at)
	}
	if c.wakeAt.Load() != due {
		c.wakeAt.Store(due)
	}
	if n := uint32(min(int64(c.BufferMemory()), math.MaxUint32)); c.buffered.Load() != n {
		c.buffered.Store(n)
	}
	if _, soon := c.ExpiresAt(); soon != c.urgent {
		c.setUrgent(soon)
	}
}

func (c *conn) setUrgent(urgent bool) {
	if c.urgent = urgent; urgent {
		c.group.urgent.Add(1)
	} else {
		c.group.urgent.Add(-1)
	}
}

// hasRequests says whether someone outside wants something.
func (c *conn) hasRequests() bool {
	if c.requests.Load() != uint32(c.handled) {
		return true
	}
	box := c.box.Load()
	return box != nil && box.HasRequests()
}

// prepareWait says that the owner is about to wait, and whether it should not.
func (c *conn) prepareWait() bool {
	c.parked.Store(true)
	return c.hasRequests()
}

// handleRequests takes the mail, and does what is asked of the connection.
func (c *conn) handleRequests() {
	if c.requests.Load()&writable != 0 {
		c.requests.And(^uint32(writable))
		c.awaitingRoom = false
		c.OnWritable()
	}
	c.takeMail()
	told := c.requests.Load()
	todo := told &^ uint32(c.handled)
	c.handled = uint8(told &^ writable) // which may have come just now
	if todo&leaving != 0 {
		c.requests.And(^uint32(leaving))
		c.handled &^= uint8(leaving)
		c.leave()
	}
	if todo&draining != 0 {
		c.StartDrain()
	}
	if todo&killing != 0 {
		c.Abort(engine.ErrServerClosed)
	}
	if todo&overBudget != 0 {
		c.Abort(engine.ErrOverBudget)
	}
	if todo&expelled != 0 {
		c.Abort(engine.ErrClosedByOperator)
	}
	if todo&slowConsumer != 0 {
		c.Abort(engine.ErrSlowConsumer)
	}
}

// request asks something of the connection. Anyone may call it.
func (c *conn) request(what uint32) {
	c.requests.Or(what)
	c.wake()
}

func (c *conn) takeMail() {
	box := c.box.Load()
	if box == nil {
		return
	}
	c.AddMissedMessages(box.TakeMissedBroadcasts())
	if !box.HasRequests() {
		return
	}
	c.updateClock()
	mail, data := box.TakeAll()
	defer func() { c.group.counters.Add(engine.Buffered, -int64(box.Recycle(mail, data))) }()
	left, rest := mail, data
	giveAll := func() {
		for len(left) > 0 {
			m, p := left[0], rest[:left[0].Size]
			left, rest = left[1:], rest[len(p):]
			c.OnRequest(m, p)
		}
	}
	defer giveAll() // what a Goexit leaves is released
	giveAll()
}

// wake ends the owner's wait. Anyone may call it.
func (c *conn) wake() {
	if c.parked.Load() && c.parked.CompareAndSwap(true, false) {
		_ = c.nc.SetDeadline(time.Unix(1, 0))
	}
}

// mailbox gives the mailbox, made when first asked for.
func (c *conn) mailbox() *engine.Mailbox {
	if box := c.box.Load(); box != nil {
		return box
	}
	l := &c.group.cfg.Limits
	c.box.CompareAndSwap(nil, &engine.Mailbox{MaxRequests: l.MaxMail, MaxBytes: l.MaxMailBytes, Small: true, Counters: &c.group.counters})
	return c.box.Load()
}

// shut shuts the sending direction. A connection that is to be reset is closed
// at once: its end, if it came first, would leave it in TIME_WAIT.
func (c *conn) shut() {
	if w, ok := c.nc.(interface{ CloseWrite() error }); ok && !c.resets() {
		// An error means that the peer has gone; reading will tell.
		_ = w.CloseWrite()
	} else {
		c.OnEOF() // there is no half of it to wait for
	}
	c.OnWriteShut()
}

// detach makes the connection another one of package net: the deadline of this one may be
// set by who wakes its owner. A goroutine that waits for room has to end first.
func (c *conn) detach() {
	if c.awaitingRoom {
		c.receive()
		return
	}
	if c.IsExporting() {
		c.giveAway()
		return
	}
	s, ok := c.nc.(interface{ File() (*os.File, error) })
	if !ok {
		c.OnDetached(nil, errors.ErrUnsupported)
		return
	}
	f, err := s.File()
	if err != nil {
		c.OnDetached(nil, err)
		return
	}
	defer f.Close()
	c.OnDetached(net.FileConn(f))
}

// resets says whether the connection is to be closed with a reset.
func (c *conn) resets() bool { return c.IsDialled() && c.group.cfg.ResetDialled }

// noMail is the mailbox of connections that have closed without one.
var noMail = func() *engine.Mailbox { b := new(engine.Mailbox); b.Close(); return b }()

// close closes the connection, finishes it, and releases mail that came too
// late.
func (c *conn) close() {
	_ = c.nc.Close()
	if c.urgent {
		c.setUrgent(false)
	}
	if box := c.box.Load(); box != nil {
		c.AddMissedMessages(box.TakeMissedBroadcasts()) // Closed may ask
	}
	defer c.closed() // whatever the handler does
	c.OnClosed()
}

// closed is the rest of close, when the handler has heard of it.
func (c *conn) closed() {
	if !c.box.CompareAndSwap(nil, noMail) {
		c.box.Load().Close()
		c.takeMail()
	}
	c.group.exit(c)
}
