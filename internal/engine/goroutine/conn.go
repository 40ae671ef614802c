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
	engine              *goroutineEngine
	netConn             net.Conn
	io                  transport
	readBuffer          *[]byte // what it reads into
	handledRequests     uint8   // what it has done of orders
	lastReadFull        bool    // the last read filled its buffer
	bulk                bool    // and brought more than heavyRead: reads in turn
	writeBlocked        bool    // for output to be taken, since the last Sent
	expiryCounted       bool    // it is counted in group.urgent
	proxiedPeerRecorded bool    // a proxy has told whose it is
	awaitingWritable    bool    // a goroutine waits for room in its place

	// For everyone:
	mailboxPtr    atomic.Pointer[engine.Mailbox]
	parked        atomic.Bool
	requests      atomic.Uint32
	wakeAt        atomic.Uint32 // when it wants to be woken, as instant has it; 0 for never
	bufferedBytes atomic.Uint32 // bytes of memory that its buffers hold, while it waits
}

func newConn(e *goroutineEngine, netConn net.Conn) (*conn, error) {
	c := &conn{engine: e, netConn: netConn}
	return c, c.initTransport()
}

// toAddrPort reads an address of package net; the zero value if it has no port.
func toAddrPort(addr net.Addr) netip.AddrPort {
	if t, ok := addr.(*net.TCPAddr); ok {
		return t.AddrPort()
	}
	return netip.AddrPort{}
}

// localAddr is Host.LocalAddr.
func (e *goroutineEngine) localAddr(c *engine.Conn) netip.AddrPort {
	e.mu.Lock()
	own := e.conns.conn(c.Slot())
	e.mu.Unlock()
	return toAddrPort(own.netConn.LocalAddr())
}

// runUntilClosed is the connection's life. Where a handler calls runtime.Goexit, the connection has failed, and
// is closed in the deferred function.
func (c *conn) runUntilClosed(open func(c *conn)) {
	closed := false
	defer func() {
		if closed {
			return
		}
		if v := recover(); v != nil {
			panic(v)
		}
		c.releaseReadBuffer()
		c.runUntilClosed(nil)
	}()
	if open != nil {
		open(c)
	}
	for {
		switch c.NextAction() {
		case engine.Send:
			c.sendOutput()
		case engine.SendFile:
			c.sendFile()
		case engine.FeedHandler:
			c.FeedHandler()
		case engine.Read:
			c.readAvailable()
		case engine.DetachOrExport:
			c.detachConn()
		case engine.ShutWrite:
			c.shutdownWrite()
		case engine.Close:
			closed = true
			c.closeConn()
			return
		case engine.Wait:
			switch {
			case !c.WantsWritable():
				c.receiveInputOrMail()
			case c.awaitingWritable || c.HasIndependentDirections() && c.startWritableWait():
				c.receiveInputOrMail() // neither direction waits for the other
			default:
				c.OnWritable() // the next Send waits for it
			}
		}
	}
}

// openConn opens it. It was dialled at a time, or accepted, and something may have been read
// from it already.
func (c *conn) openConn(dialStart time.Duration, received []byte) {
	c.updateClock()
	peer := toAddrPort(c.netConn.RemoteAddr())
	if dialStart != 0 {
		c.OnDialling(peer, dialStart)
	}
	c.OnOpen(peer, dialStart != 0)
	if len(received) > 0 {
		c.OnRead(received)
		c.recordProxiedPeer()
	}
}

// updateClock sets the clock, before something that is timed begins by it.
func (c *conn) updateClock() { c.engine.host.SetClock(c.engine.readClock()) }

// sendOutput sends the output, and waits until the kernel has taken it.
func (c *conn) sendOutput() {
	c.publishSweepState()
	n, err := c.writeOutput()
	if c.writeBlocked || n < c.UnsentBytes() {
		c.writeBlocked = false
		c.updateClock()
	}
	c.OnSent(n)
	c.handleSendResult(err)
}

// handleSendResult takes the end of a write: an error, or what has come meanwhile.
func (c *conn) handleSendResult(err error) {
	if err != nil {
		c.handleWaitError(err)
	} else if c.hasRequests() {
		c.handleRequests()
	}
}

// receiveInputOrMail waits for input or mail, and reads once. A connection that wants no
// input, because its peer has ended while it greets or its handshake has enough,
// waits for mail alone.
func (c *conn) receiveInputOrMail() {
	if c.hasRequests() {
		c.handleRequests()
		return
	}
	c.publishSweepState()
	if c.expireIfDue() {
		return
	}
	if c.WantsInput() {
		c.handleReadResult(c.waitAndRead())
	} else if err := c.waitForMail(); err != nil {
		c.handleWaitError(err)
	}
}

// expireIfDue does what is due for a connection that never waits, because it always has
// input or waits for its turn or memory: the sweeper can't wake it. It says whether
// something was.
func (c *conn) expireIfDue() bool {
	due := c.wakeAt.Load()
	if due == 0 || !c.bulk && !c.engine.exceedsBudget(c.engine.largeReadBytes.Load()) {
		return false
	}
	now := c.engine.readClock()
	return int32(toSweepTime(now)-due) > 0 && c.CheckTimeouts(now)
}

// readAvailable reads once without waiting.
func (c *conn) readAvailable() {
	received, err := c.tryRead()
	drained := err == nil && (len(received) == 0 || !c.lastReadFull)
	c.handleReadResult(received, err)
	if drained {
		c.OnReadEmpty()
	}
}

// handleReadResult gives the core what a read has brought.
func (c *conn) handleReadResult(received []byte, err error) {
	if len(received) > 0 {
		c.OnRead(received)
		c.recordProxiedPeer()
	}
	c.releaseReadBuffer()
	switch {
	case errors.Is(err, io.EOF):
		c.OnEOF()
	case err != nil:
		c.handleWaitError(err)
	}
}

// handleWaitError takes the end of a wait: because it was woken, or by an error.
func (c *conn) handleWaitError(err error) {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		c.OnTransportError(err)
		return
	}
	_ = c.netConn.SetDeadline(time.Time{})
	c.handleRequests()
	c.CheckTimeouts(c.engine.readClock())
}

// publishSweepState shows the sweeper when this connection wants to be woken, and what its buffers
// hold.
func (c *conn) publishSweepState() {
	due := uint32(0)
	if at, ok := c.NextTimeout(); ok {
		due = toSweepTime(at)
	}
	if c.wakeAt.Load() != due {
		c.wakeAt.Store(due)
	}
	if n := uint32(min(int64(c.BufferMemory()), math.MaxUint32)); c.bufferedBytes.Load() != n {
		c.bufferedBytes.Store(n)
	}
	if _, soon := c.ExpiresAt(); soon != c.expiryCounted {
		c.setExpiryCounted(soon)
	}
}

func (c *conn) setExpiryCounted(counted bool) {
	if c.expiryCounted = counted; counted {
		c.engine.expiringConns.Add(1)
	} else {
		c.engine.expiringConns.Add(-1)
	}
}

// hasRequests says whether someone outside wants something.
func (c *conn) hasRequests() bool {
	if c.requests.Load() != uint32(c.handledRequests) {
		return true
	}
	box := c.mailboxPtr.Load()
	return box != nil && box.HasRequests()
}

// parkOrFindRequests says that the owner is about to wait, and whether it should not.
func (c *conn) parkOrFindRequests() bool {
	c.parked.Store(true)
	return c.hasRequests()
}

// handleRequests takes the mail, and does what is asked of the connection.
func (c *conn) handleRequests() {
	if c.requests.Load()&requestWritable != 0 {
		c.requests.And(^uint32(requestWritable))
		c.awaitingWritable = false
		c.OnWritable()
	}
	c.deliverMail()
	requested := c.requests.Load()
	todo := requested &^ uint32(c.handledRequests)
	c.handledRequests = uint8(requested &^ requestWritable) // which may have come just now
	if todo&requestExport != 0 {
		c.requests.And(^uint32(requestExport))
		c.handledRequests &^= uint8(requestExport)
		c.startExport()
	}
	if todo&requestDrain != 0 {
		c.StartDrain()
	}
	if todo&requestKill != 0 {
		c.Abort(engine.ErrServerClosed)
	}
	if todo&requestOverBudget != 0 {
		c.Abort(engine.ErrOverBudget)
	}
	if todo&requestExpel != 0 {
		c.Abort(engine.ErrClosedByOperator)
	}
	if todo&requestSlowConsumer != 0 {
		c.Abort(engine.ErrSlowConsumer)
	}
}

// requestAndWake asks something of the connection. Anyone may call it.
func (c *conn) requestAndWake(request uint32) {
	c.requests.Or(request)
	c.wake()
}

func (c *conn) deliverMail() {
	box := c.mailboxPtr.Load()
	if box == nil {
		return
	}
	c.AddMissed(box.TakeMissedBroadcasts())
	if !box.HasRequests() {
		return
	}
	c.updateClock()
	mail, data := box.TakeAll()
	defer func() { c.engine.counters.Add(engine.Buffered, -int64(box.Recycle(mail, data))) }()
	left, rest := mail, data
	deliverRemaining := func() {
		for len(left) > 0 {
			m, p := left[0], rest[:left[0].Size]
			left, rest = left[1:], rest[len(p):]
			c.OnRequest(m, p)
		}
	}
	defer deliverRemaining() // what a Goexit leaves is released
	deliverRemaining()
}

// wake ends the owner's wait. Anyone may call it.
func (c *conn) wake() {
	if c.parked.Load() && c.parked.CompareAndSwap(true, false) {
		_ = c.netConn.SetDeadline(time.Unix(1, 0))
	}
}

// mailbox gives the mailbox, made when first asked for.
func (c *conn) mailbox() *engine.Mailbox {
	if box := c.mailboxPtr.Load(); box != nil {
		return box
	}
	l := &c.engine.cfg.Limits
	c.mailboxPtr.CompareAndSwap(nil, &engine.Mailbox{MaxRequests: l.MaxMail, MaxBytes: l.MaxMailBytes, Small: true, Counters: &c.engine.counters})
	return c.mailboxPtr.Load()
}

// shutdownWrite shuts the sending direction. A connection that is to be reset is closed
// at once: its end, if it came first, would leave it in TIME_WAIT.
func (c *conn) shutdownWrite() {
	if w, ok := c.netConn.(interface{ CloseWrite() error }); ok && !c.closesWithReset() {
		// An error means that the peer has gone; reading will tell.
		_ = w.CloseWrite()
	} else {
		c.OnEOF() // there is no half of it to wait for
	}
	c.OnWriteShut()
}

// detachConn makes the connection another one of package net: the deadline of this one may be
// set by who wakes its owner. A goroutine that waits for room has to end first.
func (c *conn) detachConn() {
	if c.awaitingWritable {
		c.receiveInputOrMail()
		return
	}
	if c.IsExporting() {
		c.finishExport()
		return
	}
	s, ok := c.netConn.(interface{ File() (*os.File, error) })
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

// closesWithReset says whether the connection is to be closed with a reset.
func (c *conn) closesWithReset() bool { return c.IsDialled() && c.engine.cfg.ResetDialled }

// closedMailbox is the mailbox of connections that have closed without one.
var closedMailbox = func() *engine.Mailbox { b := new(engine.Mailbox); b.Close(); return b }()

// closeConn closes the connection, finishes it, and releases mail that came too
// late.
func (c *conn) closeConn() {
	_ = c.netConn.Close()
	if c.expiryCounted {
		c.setExpiryCounted(false)
	}
	if box := c.mailboxPtr.Load(); box != nil {
		c.AddMissed(box.TakeMissedBroadcasts()) // Closed may ask
	}
	defer c.releaseClosed() // whatever the handler does
	c.OnClosed()
}

// releaseClosed is the rest of close, when the handler has heard of it.
func (c *conn) releaseClosed() {
	if !c.mailboxPtr.CompareAndSwap(nil, closedMailbox) {
		c.mailboxPtr.Load().Close()
		c.deliverMail()
	}
	c.engine.unregisterConn(c)
}
