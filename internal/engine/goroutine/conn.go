package goroutine

import (
	"errors"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// conn is a connection that is served by its own goroutine.
type conn struct {
	engine.Conn
	engine              *goroutineEngine
	netConn             net.Conn
	io                  transport
	readBuffer          *[]byte // nil while there is no input
	handledRequests     uint8   // the bits of c.requests that were handled
	lastReadFull        bool    // the last read filled its buffer
	bulk                bool    // the last read brought more than bulkReadSize; reads are limited
	writeBlocked        bool    // the kernel has accepted no output since the last OnSent
	expiryCounted       bool    // the connection is counted in goroutineEngine.expiringConns
	proxiedPeerRecorded bool
	awaitingWritable    bool // a goroutine waits until the socket is writable

	// The following fields are safe for concurrent use.
	mailboxPtr    atomic.Pointer[engine.Mailbox]
	parked        atomic.Uint32 // one of the constants below
	requests      atomic.Uint32
	wakeAt        atomic.Uint32 // when the sweeper must wake the owner, in the unit of toSweepTime; 0 means never
	bufferedBytes atomic.Uint32 // memory of the buffers when the owner last waited
}

// Values of conn.parked. A connection is parked while its goroutine waits for events.
const (
	notParked uint32 = iota
	isParked
	isClaimed         // the sweeper owns the connection
	isClaimedAndWoken // the sweeper must wake the owner
)

func newConn(e *goroutineEngine, netConn net.Conn) (*conn, error) {
	c := &conn{engine: e, netConn: netConn}
	return c, c.initTransport()
}

// toAddrPort returns the address of a TCP peer, or the zero value for other networks.
func toAddrPort(addr net.Addr) netip.AddrPort {
	if t, ok := addr.(*net.TCPAddr); ok {
		return t.AddrPort()
	}
	return netip.AddrPort{}
}

func (e *goroutineEngine) localAddr(c *engine.Conn) netip.AddrPort {
	e.mu.Lock()
	own := e.conns.conn(c.Slot())
	e.mu.Unlock()
	return toAddrPort(own.netConn.LocalAddr())
}

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
		c.runUntilClosed(nil) // continues after a runtime.Goexit in a handler
	}()
	if open != nil {
		open(c)
	}
	for {
		switch c.AdvanceToNextAction() {
		case engine.Send:
			c.sendOutputUntilWoken()
		case engine.SendFile:
			c.sendFilePartOrLoadPiece()
		case engine.FeedHandler:
			c.MakeDeferredHandlerCalls()
		case engine.Read:
			c.tryReadAndHandle()
		case engine.DetachOrExport:
			c.detachOrFinishExport()
		case engine.ShutWrite:
			c.shutdownWriteOrAssumeEOF()
		case engine.Close:
			closed = true
			c.closeCallClosedAndUnregister()
			return
		case engine.Wait:
			switch {
			case !c.WantsWritable():
				c.handleNextInputOrMail()
			case c.awaitingWritable || c.ReadsDespiteUnsentOutput() && c.startWritableWait():
				c.handleNextInputOrMail() // neither direction waits for the other
			default:
				c.OnWritable() // the next send waits until the kernel accepts output
			}
		}
	}
}

// openConn opens the connection. dialStart is the time when dialling began, or 0 if the connection was not dialled.
// alreadyRead contains input that was read from the connection before, or is empty. openConn delivers this input.
func (c *conn) openConn(dialStart time.Duration, alreadyRead []byte) {
	c.updateClock()
	peer := toAddrPort(c.netConn.RemoteAddr())
	if dialStart != 0 {
		c.OnDialling(peer, dialStart)
	}
	c.OnOpen(peer, dialStart != 0)
	if len(alreadyRead) > 0 {
		c.OnRead(alreadyRead)
		c.recordProxiedPeerOnce()
	}
}

// updateClock updates the clock that is used for time limits. It must be called before an event that starts a time
// limit.
func (c *conn) updateClock() { c.engine.host.SetClock(c.engine.readClock()) }

func (c *conn) sendOutputUntilWoken() {
	c.publishSweepState()
	n, err := c.writeOutputUntilWoken()
	if c.writeBlocked || n < c.UnsentAndDroppedBytes() {
		c.writeBlocked = false
		c.updateClock()
	}
	c.OnSent(n)
	c.handleSendErrorOrRequests(err)
}

func (c *conn) handleSendErrorOrRequests(err error) {
	if err != nil {
		c.handleWakeOrError(err)
	} else if c.hasMailOrRequests() {
		c.handleMailAndRequests()
	}
}

func (c *conn) handleNextInputOrMail() {
	if c.hasMailOrRequests() {
		c.handleMailAndRequests()
		return
	}
	c.publishSweepState()
	if c.checkTimeoutsIfNeverWaiting() {
		return
	}
	if c.WantsInput() {
		c.handleReadResult(c.waitAndRead())
	} else if err := c.waitForMail(); err != nil {
		c.handleWakeOrError(err)
	}
}

// checkTimeoutsIfNeverWaiting checks the timeouts of a connection that may always have input. The goroutine of such a
// connection may never wait, and the sweeper can wake only a waiting goroutine.
func (c *conn) checkTimeoutsIfNeverWaiting() (acted bool) {
	due := c.wakeAt.Load()
	if due == 0 || !c.bulk && !c.engine.buffersExceedBudget(c.engine.largeReadBytes.Load()) {
		return false
	}
	now := c.engine.readClock()
	return int32(toSweepTime(now)-due) > 0 && c.CheckTimeouts(now)
}

func (c *conn) tryReadAndHandle() {
	received, err := c.tryRead()
	drained := err == nil && (len(received) == 0 || !c.lastReadFull)
	c.handleReadResult(received, err)
	if drained {
		c.CloseIfTimedOutAfterEmptyRead()
	}
}

func (c *conn) handleReadResult(received []byte, err error) {
	if len(received) > 0 {
		c.OnRead(received)
		c.recordProxiedPeerOnce()
	}
	c.releaseReadBuffer()
	switch {
	case errors.Is(err, io.EOF):
		c.OnEOF()
	case err != nil:
		c.handleWakeOrError(err)
	}
}

func (c *conn) handleWakeOrError(err error) {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		c.OnTransportError(err)
		return
	}
	_ = c.netConn.SetDeadline(time.Time{})
	c.handleMailAndRequests()
	c.CheckTimeouts(c.engine.readClock())
}

// publishSweepState publishes the connection's next timeout and buffer size for the sweeper. If a timer is due soon, it
// also sets a deadline for the goroutine's next wait.
func (c *conn) publishSweepState() {
	due := uint32(0)
	if at, ok := c.NextTimeout(); ok {
		due = toSweepTime(at)
	}
	if at, ok := c.NextTimerOrDeadline(); ok {
		due = c.setWaitDeadlineIfWithinTimerLead(at, due)
	}
	if c.wakeAt.Load() != due {
		c.wakeAt.Store(due)
	}
	if n := uint32(min(int64(c.BufferMemory()), math.MaxUint32)); c.bufferedBytes.Load() != n {
		c.bufferedBytes.Store(n)
	}
	if _, soon := c.NextTimerDeadlineOrExpiry(); soon != c.expiryCounted {
		c.addOrRemoveExpiringCount(soon)
	}
}

// timerLead is how long before a timer the sweeper wakes the connection's goroutine. The goroutine then waits for the
// timer itself, with a deadline.
const timerLead = 2 * engine.FastSweepPeriod

// setWaitDeadlineIfWithinTimerLead prepares the goroutine's next wait for a timer that is due at the given time. If
// that time is within timerLead, it sets a deadline for the wait. Otherwise, the sweeper must wake the goroutine later.
// wakeAt is the time when the sweeper must wake the goroutine, for this timer or another timeout. otherWakeAt is the
// time of the connection's next timeout.
func (c *conn) setWaitDeadlineIfWithinTimerLead(timerAt time.Duration, otherWakeAt uint32) (wakeAt uint32) {
	left := timerAt - c.engine.readClock()
	if left > timerLead {
		return min(otherWakeAt, toSweepTime(timerAt-timerLead))
	}
	_ = c.netConn.SetDeadline(time.Now().Add(max(left, time.Millisecond)))
	return otherWakeAt
}

func (c *conn) addOrRemoveExpiringCount(counted bool) {
	if c.expiryCounted = counted; counted {
		c.engine.expiringConns.Add(1)
	} else {
		c.engine.expiringConns.Add(-1)
	}
}

func (c *conn) hasMailOrRequests() bool {
	if c.requests.Load() != uint32(c.handledRequests) {
		return true
	}
	box := c.mailboxPtr.Load()
	return box != nil && box.HasRequests()
}

// parkOrFindRequests prepares the connection's goroutine for a wait, so that other goroutines wake it for new mail. If
// mail or requests have already arrived, hasWork is true, and the goroutine must handle them instead of waiting.
func (c *conn) parkOrFindRequests() (hasWork bool) {
	c.parked.Store(isParked)
	return c.hasMailOrRequests()
}

func (c *conn) markNotParked() {
	for c.parked.Load() != notParked && !c.parked.CompareAndSwap(isParked, notParked) {
		runtime.Gosched()
	}
}

func (c *conn) handleMailAndRequests() {
	if c.requests.Load()&requestWritable != 0 {
		c.requests.And(^uint32(requestWritable))
		c.awaitingWritable = false
		c.OnWritable()
	}
	c.deliverMail()
	requested := c.requests.Load()
	todo := requested &^ uint32(c.handledRequests)
	c.handledRequests = uint8(requested &^ requestWritable) // requestWritable may have been set just now
	if todo&requestHeartbeat != 0 {
		c.requests.And(^uint32(requestHeartbeat))
		c.handledRequests &^= uint8(requestHeartbeat)
		c.SendHeartbeatOrScheduleClose()
	}
	if todo&requestExport != 0 {
		c.requests.And(^uint32(requestExport))
		c.handledRequests &^= uint8(requestExport)
		c.startExportOrDecline()
	}
	if todo&requestDrain != 0 {
		c.BeginShutdownDrain()
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

// requestAndWake sets requestBits in c.requests and wakes the goroutine of c. It is safe for concurrent use.
func (c *conn) requestAndWake(requestBits uint32) {
	c.requests.Or(requestBits)
	c.wake()
}

func (c *conn) deliverMail() {
	box := c.mailboxPtr.Load()
	if box == nil {
		return
	}
	c.AddDroppedAndScheduleMissed(box.TakeMissedBroadcastCount())
	if !box.HasRequests() {
		return
	}
	c.updateClock()
	mail, data := box.TakeQueued()
	defer func() { c.engine.counters.Add(engine.Buffered, -int64(box.Recycle(mail, data))) }()
	left, rest := mail, data
	deliverRemaining := func() {
		for len(left) > 0 {
			m, p := left[0], rest[:left[0].Size]
			left, rest = left[1:], rest[len(p):]
			c.HandleOrDeferForPendingLayer(m, p)
		}
	}
	defer deliverRemaining() // also after a runtime.Goexit
	deliverRemaining()
}

func (c *conn) wake() {
	for {
		switch state := c.parked.Load(); {
		case state == isParked && c.parked.CompareAndSwap(isParked, notParked):
			_ = c.netConn.SetDeadline(time.Unix(1, 0))
			return
		case state == isClaimed && c.parked.CompareAndSwap(isClaimed, isClaimedAndWoken), state == notParked, state == isClaimedAndWoken:
			return
		}
	}
}

// claim makes the sweeper the owner of c if the goroutine of c is waiting. If claim succeeds, the sweeper must call
// releaseClaim.
func (c *conn) claim() (claimed bool) { return c.parked.CompareAndSwap(isParked, isClaimed) }

func (c *conn) releaseClaim(wakeOwner bool) {
	if wakeOwner || !c.parked.CompareAndSwap(isClaimed, isParked) {
		c.parked.Store(notParked)
		_ = c.netConn.SetDeadline(time.Unix(1, 0))
	}
}

func (c *conn) getOrCreateMailbox() *engine.Mailbox {
	if box := c.mailboxPtr.Load(); box != nil {
		return box
	}
	l := &c.engine.cfg.Limits
	c.mailboxPtr.CompareAndSwap(nil, &engine.Mailbox{MaxRequests: l.MaxMail, MaxBytes: l.MaxMailBytes, Small: true, Counters: &c.engine.counters})
	return c.mailboxPtr.Load()
}

// shutdownWriteOrAssumeEOF shuts down the sending direction. Some connections cannot be shut down in one direction, or
// must be closed with a reset. For these, it acts as if the peer had sent EOF.
func (c *conn) shutdownWriteOrAssumeEOF() {
	if w, ok := c.netConn.(interface{ CloseWrite() error }); ok && !c.closesWithReset() {
		// An error means that the peer has closed the connection. The next read reports the error.
		_ = w.CloseWrite()
	} else {
		c.OnEOF() // the connection cannot be half-closed
	}
	c.MarkWriteShutAndLingerIfClosing()
}

func (c *conn) detachOrFinishExport() {
	if c.awaitingWritable {
		c.handleNextInputOrMail()
		return
	}
	if c.IsExporting() {
		c.exportOrStayOpen()
		return
	}
	s, ok := c.netConn.(interface{ File() (*os.File, error) })
	if !ok {
		c.CompleteDetachOrAbort(nil, errors.ErrUnsupported)
		return
	}
	f, err := s.File()
	if err != nil {
		c.CompleteDetachOrAbort(nil, err)
		return
	}
	defer f.Close()
	c.CompleteDetachOrAbort(net.FileConn(f))
}

func (c *conn) closesWithReset() bool { return c.IsDialled() && c.engine.cfg.ResetDialled }

// closedMailbox is the mailbox of all closed connections that had no mailbox before. It rejects all requests.
var closedMailbox = func() *engine.Mailbox { b := new(engine.Mailbox); b.RejectFurtherPosts(); return b }()

func (c *conn) closeCallClosedAndUnregister() {
	_ = c.netConn.Close()
	if c.expiryCounted {
		c.addOrRemoveExpiringCount(false)
	}
	if box := c.mailboxPtr.Load(); box != nil {
		c.AddDroppedAndScheduleMissed(box.TakeMissedBroadcastCount()) // the handler's Closed may ask for the count
	}
	defer c.closeMailboxAndUnregister() // even if the handler calls runtime.Goexit
	c.OnClosed()
}

func (c *conn) closeMailboxAndUnregister() {
	if !c.mailboxPtr.CompareAndSwap(nil, closedMailbox) {
		c.mailboxPtr.Load().RejectFurtherPosts()
		c.deliverMail()
	}
	c.engine.unregisterAndReleaseAdmission(c)
}
