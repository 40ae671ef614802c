package engine

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/overload"
)

// Action is the next step that a driver must perform for a connection.
type Action uint8

const (
	Wait           Action = iota // wait for the next event
	Send                         // send Output, then call OnSent
	FeedHandler                  // call Conn.MakeDeferredHandlerCalls
	Read                         // read once without blocking and report the result; see the package comment
	SendFile                     // send NextFilePartUnlessLayered, then call OnSent; or call LoadFilePieceIntoOutput
	DetachOrExport               // end all kernel operations, then detach or export; see the package comment
	ShutWrite                    // shut the sending direction, then call MarkWriteShutAndLingerIfClosing
	Close                        // close the descriptor, then call OnClosed
)

// Conn is the state machine of a connection. It makes no system calls: drivers report events to its methods and perform
// the action that AdvanceToNextAction returns. Only the owner of a Conn (a loop, a goroutine or a worker) may use the
// Conn. Other goroutines use a Ref.
//
// Each idle connection occupies one Conn, so the size of a Conn matters. TestConnSize limits the size.
type Conn struct {
	runtime      *Runtime
	in           *Buffer    // unused input; nil if none
	out          *Buffer    // unsent output; nil if none
	extra        *connExtra // nil if all its fields would be zero
	userData     any
	refState     generationAndPosted
	refusedBytes uint32     // bytes of unused input that the handler has refused; or the slot of a local relay partner
	lastHeard    coarseTime // when the peer last sent something

	peerAddr    [16]byte
	peerPort    uint16
	driverFlags uint16 // for the driver
	state       uint32
	fd          int32 // the driver's descriptor and the listener's number; see listener.go
	slot        uint32
}

// connExtra is the optional state of a connection.
type connExtra struct {
	layer  Layer         // nil if none
	expiry time.Duration // when a dial, handshake or close times out; 0 means never
	// timer is the time of the next Timer call. deadline is the time when the connection is closed. 0 means never.
	timer, deadline time.Duration
	// layerPartialSince is the time since which the layer has buffered a partial message, or 0.
	layerPartialSince time.Duration
	layerBytes        int32 // memory of the layer, as counted in Buffered
	layerCloseSent    bool  // the layer has sent its closing message
	closedByWorker    bool  // a worker calls Closed, or has called it
	exportStage       uint8 // see export.go
	timerBucket       uint8 // for the driver; see SetTimerBucket
	*rareState              // points to noRareState unless ensureRare has replaced it
}

// rareState is the part of the optional state that connections rarely need.
type rareState struct {
	closeReason error // set together with the state bit closing
	// dialStarted is the time when dialling began. It is valid until Opened has been called.
	dialStarted   time.Duration
	remotePartner *remotePartner // the partner of a relay between two owners, or of a requested relay
	// drainReadsLeft is the number of further reads with input that may delay the close by a drain.
	drainReadsLeft int
	// retainCount is the number of Retain calls without a Release.
	retainCount           int
	independentDirections bool // see SetReadingDespiteUnsentOutput
	peerClosesFirst       bool // see CloseWaitingForPeerEOF
	onDetached            *func(nc net.Conn, unread []byte)
	pendingLayer          *pendingLayer // nil unless RequestLayerInsertion is in progress
	fileQueue             *fileQueue    // nil if empty
	directSent            int           // see Conn.directSentInEvent
	// handlerMemory is the memory that the handler reports, in bytes. handlerPartialSince is the time since which the
	// handler has buffered a partial message. See SetHandlerMemory.
	handlerMemory       int
	handlerPartialSince time.Duration
	latestQueue         []*LatestSubscription // values to send when nothing else is unsent
	droppedMessages     int64                 // messages lost because the peer is slow
	reportedMissed      int64                 // the part of droppedMessages that Missed has reported
	onlyMissedPending   bool                  // drainedPending is set for Missed, but Drained is not due
	droppedOutput       int                   // bytes of output that were dropped
	readRate            *readRate             // nil without a limit, or while the whole allowance is unused
	ticket              overload.Ticket       // of the job submitted to a worker, or zero
	critical            bool                  // see SetCritical
}

// noRareState is shared by all connections that need no rareState. It must never change.
var noRareState rareState

func (x *connExtra) isZero() bool {
	return x.layer == nil && x.expiry == 0 && x.timer == 0 && x.deadline == 0 && x.layerPartialSince == 0 && x.layerBytes == 0 &&
		!x.layerCloseSent && !x.closedByWorker && x.exportStage == 0 && x.timerBucket == 0 && x.rareState.isZero()
}

func (x *rareState) isZero() bool {
	return x.closeReason == nil && x.dialStarted == 0 && x.remotePartner == nil && x.drainReadsLeft == 0 && x.retainCount == 0 &&
		!x.independentDirections && !x.peerClosesFirst && x.onDetached == nil && x.pendingLayer == nil && x.fileQueue == nil && x.directSent == 0 &&
		x.handlerMemory == 0 && x.handlerPartialSince == 0 && len(x.latestQueue) == 0 && x.droppedMessages == 0 && x.droppedOutput == 0 &&
		x.readRate == nil && x.ticket == (overload.Ticket{}) && !x.critical
}

// Bind sets the connection's runtime, its slot and the generation of its first use. It must be called once, before
// other goroutines use the connection. The generation must differ from all generations of an earlier Conn in the same
// slot.
func (c *Conn) Bind(rt *Runtime, slot, generation uint32) {
	c.runtime, c.slot = rt, slot
	rt.setInactiveOverloadIfNil()
	c.refState.v.Store(uint64(generation) << 32)
}

// Slot returns the connection's index among the connections of its owner.
func (c *Conn) Slot() uint32 { return c.slot }

// Generation returns the connection's current generation number. The number changes when the connection begins to
// close. A Ref with another generation number is no longer valid.
func (c *Conn) Generation() uint32 { return c.refState.generation() }

func (c *Conn) FD() int32 {
	if c.fd < 0 {
		return c.fd
	}
	return c.fd & (MaxFD - 1)
}

// SetFD stores the driver's descriptor of the connection. The descriptor must be less than MaxFD. SetFD also clears the
// listener's number, because one field stores both numbers.
func (c *Conn) SetFD(fd int32) { c.fd = fd }

func (c *Conn) DriverFlags() uint16 { return c.driverFlags }

// SetDriverFlags stores flags for the driver, for example the events for which the driver watches the descriptor.
func (c *Conn) SetDriverFlags(flags uint16) { c.driverFlags = flags }

// OnDialling records that a dial has begun. peer is the peer's address, or the zero value for a unix socket. started is
// the time when the dial began, on the clock of MonotonicNow.
func (c *Conn) OnDialling(peer netip.AddrPort, started time.Duration) {
	c.SetPeerAddr(peer)
	c.ensureRare().dialStarted = started
}

// DialStartedAt returns the time when dialling began, on the clock of MonotonicNow. The result is valid until the
// handler's Opened has returned.
func (c *Conn) DialStartedAt() time.Duration {
	if c.extra == nil {
		return 0
	}
	return c.extra.dialStarted
}

// OnOpen records that the connection is established. If the connection has a first layer, OnOpen starts this layer.
// Otherwise, it calls the handler's Opened. If workers run the handlers, it schedules the call of Opened instead.
func (c *Conn) OnOpen(peer netip.AddrPort, isDialled bool) {
	c.state = c.state&ownHandler | open | neverHeard
	switch {
	case isDialled:
		c.state |= dialled
		c.runtime.Counters.Add(Dialled, 1)
		started := c.DialStartedAt()
		c.ensureExtra().reset()
		c.ensureRare().dialStarted = started
	case !c.runtime.isFromProxy(c.Listener(), peer):
		c.state |= sourceCounted
	}
	c.runtime.Counters.Add(Open, 1)
	c.SetPeerAddr(peer)
	c.refusedBytes, c.lastHeard = 0, c.runtime.coarseNow()
	if l := c.newFirstLayer(); l != nil {
		c.startFirstLayer(l)
		return
	}
	c.callOpenedOrMarkOpenPending()
	c.startPendingLayerAndUpdatePause()
}

func (c *Conn) callOpenedOrMarkOpenPending() {
	if !c.is(dialled) {
		c.runtime.Counters.Add(Accepted, 1)
	}
	if c.runtime.OnWorkers {
		c.state |= openPending
	} else {
		c.callOpened()
	}
}

func (c *Conn) SetPeerAddr(peer netip.AddrPort) {
	c.peerAddr, c.peerPort = peer.Addr().As16(), peer.Port()
}

func (c *Conn) IsClosing() bool { return c.is(closing | failed) }

func (c *Conn) IsDraining() bool { return c.is(draining) }

// IsOpen reports whether the connection is between OnOpen and OnClosed.
func (c *Conn) IsOpen() bool { return c.is(open) }

func (c *Conn) ensureExtra() *connExtra {
	if c.extra == nil {
		c.extra = extraPool.Get().(*connExtra)
	}
	return c.extra
}

func (c *Conn) ensureRare() *rareState {
	x := c.ensureExtra()
	if x.rareState == &noRareState {
		x.rareState = rarePool.Get().(*rareState)
	}
	return x.rareState
}

func (c *Conn) hasRare() bool { return c.extra != nil && c.extra.rareState != &noRareState }

func (x *connExtra) reset() {
	x.recycleRare()
	*x = connExtra{rareState: &noRareState}
}

func (x *connExtra) recycleRare() {
	if x.rareState != &noRareState {
		*x.rareState = rareState{}
		rarePool.Put(x.rareState)
		x.rareState = &noRareState
	}
}

var (
	extraPool = sync.Pool{New: func() any { return &connExtra{rareState: &noRareState} }}
	rarePool  = sync.Pool{New: func() any { return new(rareState) }}
)

// Output returns the next bytes to send. Further output may follow after these bytes have been sent. The slice is valid
// until the connection's next event.
func (c *Conn) Output() []byte { return c.out.Bytes() }

// OnSendStarted records that the kernel has begun to read the bytes of Output asynchronously. The engine does not move
// these bytes in memory until OnSent is called.
func (c *Conn) OnSendStarted() {
	c.out.inKernel = true
	c.state |= blocked
}

// StartWriteTimerIfStopped starts the write timeout. Drivers call it when the kernel accepts no output.
func (c *Conn) StartWriteTimerIfStopped(now time.Duration) {
	if c.out == nil {
		c.fileQueueOrNil().startProgressTimerIfStopped(now)
	} else if c.out.progressGoal == 0 {
		c.out.progressGoal, c.out.waitingSince = c.out.Len(), now
	}
}

// OnSent records that the kernel has accepted sentBytes bytes. These are the first bytes of Output or, after the action
// SendFile, the next bytes of the first queued file.
func (c *Conn) OnSent(sentBytes int) {
	c.runtime.Counters.Add(Writes, 1)
	c.runtime.Counters.Add(BytesOut, int64(sentBytes))
	if c.out == nil {
		c.advanceFileOrMarkBlocked(sentBytes)
		return
	}
	all := sentBytes == len(c.Output())
	left, _ := c.discardSentAndReleasePosted(sentBytes)
	switch {
	case left == 0:
		c.state &^= blocked
		c.freeSentOutputAndAdvanceFiles()
	case all:
		c.state &^= blocked
		first := c.out
		c.out = first.promoteNextPiece()
		c.runtime.freeCountedBuffer(first)
		c.out.countSentAndRestartTimerAtGoal(sentBytes, c.runtime.Clock())
	default:
		c.state |= blocked
		c.out.countSentAndRestartTimerAtGoal(sentBytes, c.runtime.Clock())
	}
	c.resumeAndScheduleDrainedIfLow()
}

// OnWritable records that the kernel accepts output again.
func (c *Conn) OnWritable() { c.state &^= blocked }

// MarkWriteShutAndLingerIfClosing records that the sending direction was shut down. If c is closing, the peer then has
// the time Limits.Linger to send EOF. After this time, c is closed anyway.
func (c *Conn) MarkWriteShutAndLingerIfClosing() {
	c.state |= shut
	if c.is(closing) {
		c.extra.expiry = c.runtime.Now() + c.runtime.Limits.Linger
	}
}

// HandleOrDeferForPendingLayer handles a request from the mailbox. While a new layer is being inserted, it only stores
// the request, which is then handled after the insertion. data contains the request's bytes and is valid only during
// the call.
func (c *Conn) HandleOrDeferForPendingLayer(req QueuedRequest, data []byte) {
	if req.shared != nil {
		data = req.shared.Bytes
	}
	if !req.IsStale() && c.deferIfLayerPendingOrCloseIfFull(req, data) {
		return
	}
	c.handleRequest(req, data)
	req.releaseShared()
}

func (c *Conn) handleRequest(req QueuedRequest, data []byte) {
	stale := req.IsStale() // if stale, nothing else of the connection may be accessed
	if len(data) == 0 {
		c.releasePostedAndWakeIfLow(emptyRequestSize)
	}
	if stale || !c.is(open) {
		c.releasePostedAndWakeIfLow(len(data))
		if req.shared != nil && req.shared.OnLost != nil {
			req.shared.OnLost()
		}
		return
	}
	switch req.Kind {
	case RequestSend:
		if c.is(relayed) {
			c.lastHeard = c.runtime.coarseNow()
		}
		if c.isSendClosed() {
			c.releasePostedAndWakeIfLow(len(data))
			c.runtime.Counters.Add(Dropped, 1)
		} else if c.writeThroughLayerOrBehindFile(data); c.lastOutput() != nil {
			c.lastOutput().postedBytes += len(data)
		} else {
			c.releasePostedAndWakeIfLow(len(data))
		}
	case RequestBroadcast:
		c.releasePostedAndWakeIfLow(len(data))
		if c.acceptsBroadcasts() {
			_, _ = c.Write(data) // an error was counted, or closes the connection
			c.startPendingLayerAndUpdatePause()
		}
	case RequestLatest:
		c.queueLatestOrCountDropIfSendClosed(req.shared.latest)
	case RequestResumeLayer:
		c.continueLayerHandshake()
		c.startPendingLayerAndUpdatePause()
	case RequestClose:
		c.CloseWith(nil)
	case RequestNudge:
		c.callNudged()
		c.startPendingLayerAndUpdatePause()
	case RequestDo:
		if !c.is(handshaking | openPending | closing | failed) {
			c.callHandler(req.shared.Do)
			c.startPendingLayerAndUpdatePause()
		} else if req.shared.OnLost != nil {
			req.shared.OnLost()
		}
	}
}

// WantsInput reports whether the driver should read from the connection.
func (c *Conn) WantsInput() bool {
	switch {
	case c.is(peerEOF|failed) || c.isExporting():
		return false
	case c.is(closing):
		return c.is(shut) || c.extra.peerClosesFirst && !c.hasOutput()
	case c.is(handshaking) && c.extra.layer.InputFull():
		return false
	}
	return !c.is(inputHeld|openPending) && !c.updateAndReportInputPaused() && !c.isReadRateExceeded()
}

func (c *Conn) WantsWritable() bool { return c.is(blocked) && !c.is(failed) && !c.isExporting() }

func (c *Conn) AdvanceToNextAction() Action {
	switch {
	case c.is(failed):
		return Close
	case c.isExporting():
		return c.nextExportAction()
	case c.canWriteLatest():
		c.writeSomeLatestValues()
		return c.AdvanceToNextAction()
	case c.hasOutput() && !c.is(blocked):
		if c.out == nil {
			return SendFile
		}
		return Send
	case c.hasOutput() && (c.is(closing) || c.pauseReadingAtHighWater()):
		return Wait
	case c.is(closing):
		return c.advanceClosing()
	case c.is(handshaking):
		return c.actionDuringHandshake()
	case c.is(openPending | drainedPending | drainingPending):
		return FeedHandler
	case c.isDetaching() && !c.hasOutput() && c.refState.postedBytes() == 0:
		return DetachOrExport
	case c.is(inputHeld), c.is(peerEOF) && !c.is(eofDelivered), c.is(relayed) && c.in != nil:
		if c.is(readPaused|yielded) || c.isMessageRateExceeded() {
			return Wait
		}
		return FeedHandler
	case c.is(finalReadPending) && c.WantsInput():
		return Read
	case c.hasOutput():
		return Wait
	case c.is(closingWrite) && !c.is(shut) && c.refState.postedBytes() == 0:
		return c.advanceCloseWrite()
	case c.handlerOrRelayDelaysClose():
		return Wait
	case c.is(peerEOF) && c.closeIfNothingPosted(io.EOF):
		return c.advanceClosing()
	case c.is(draining) && !c.is(relayed) && !c.isReadRateExceeded() && c.in == nil && c.partialMessageSince() == 0 && c.closeIfNothingPosted(ErrServerClosed):
		return c.advanceClosing()
	}
	return Wait
}

func (c *Conn) actionDuringHandshake() Action {
	if c.is(finalReadPending) && c.WantsInput() {
		return Read
	}
	if c.out == nil && c.is(draining) && c.closeIfNothingPosted(ErrServerClosed) {
		return c.advanceClosing()
	}
	return Wait
}

// InHandshake reports whether the connection is in the handshake that precedes the call of Opened.
func (c *Conn) InHandshake() bool { return c.is(handshaking) && !c.hasPendingLayer() }

// DiscardBuffers frees the unused input and, if alsoOutput is set, the unsent output. The caller must not set
// alsoOutput while the kernel reads the output.
func (c *Conn) DiscardBuffers(alsoOutput bool) {
	if c.dropInput(); alsoOutput {
		c.dropOutput()
	}
}

func (c *Conn) dropInput() {
	if c.in != nil {
		c.runtime.freeCountedBuffer(c.in)
		if c.in = nil; !c.is(relayed) {
			c.refusedBytes = 0
		}
	}
}

func (c *Conn) dropOutput() {
	if n := c.UnsentAndDroppedBytes(); n > 0 {
		c.ensureRare().droppedOutput = n
	}
	if c.out != nil {
		c.freeOutputAndReleasePostedBytes(c.out)
		c.out = nil
	}
	c.discardFileQueue()
}
