package loop

import (
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// These limits for one turn of a loop prevent one task from starving the others.
const (
	acceptBatch       = 128
	dialBatch         = 128
	maxPendingActions = 64
	maxQueuedRequests = 1024
	// maxTaskTime limits tasks that may take long, such as reading from bulk connections and draining.
	maxTaskTime = time.Millisecond
)

// The stages of stopping, in order.
const (
	stageServing int32 = iota
	stageStopping
	stageKilling
)

// Loop is one thread of an event-driven model. The package comment defines which goroutine may access which field.
type Loop struct {
	engine        *loopEngine
	host          engine.Runtime
	counters      engine.Counters
	driver        Driver
	acceptor      sock.Acceptor
	conns         connTable
	buffers       engine.FreeList
	sharedBuffers engine.SharedBuffers // replaces buffers while workers use them, too

	stopStage  int32         // the stage that the loop has reached; see requestedStopStage
	turnStart  time.Duration // when the current turn began
	timedTurns int           // turns left in which each handler call is timed

	inTurn       bool   // a turn is in progress, or runtime.Goexit has cut it short
	eventsLeft   bool   // the driver has unhandled events
	singleCPU    bool   // GOMAXPROCS is 1
	lastRetained uint64 // host.RetainCalls at the last yield

	tasks        []loopTask // the tasks below, in the order of a turn
	accept       acceptPauseController
	dials        dialStarter
	mailQueues   mailQueueSet // mail that was taken from the mailbox and is not delivered
	runningCalls []func()     // remote calls that were taken and have not run
	broadcasts   broadcastSender
	scheduler    schedulerCaller
	drainer      connDrainer
	exporter     connExporter
	importer     connImporter
	sweeper      expirySweeper
	trimmer      bufferTrimmer
	budget       bufferBudgetEnforcer
	placement    handlerPlacer
	bulkReads    deque[engine.Ref] // connections that wait for the loop to read from them
	relayPipe    sock.SplicePipe
	spliceBuffer []byte        // for data that the destination of a relay has not accepted
	submitQueue  poolSubmitter // connections that wait for capacity in the pool

	// pendingActions are connections whose state was changed by events of other connections or by the Scheduler.
	pendingActions []*engine.Conn

	// The following fields describe connections that workers have.
	busyConns        int                               // connections that are with a worker or wait for one
	deferred         map[*engine.Conn][]deferredAction // actions to run when a worker returns the connection
	deferredMail     map[*engine.Conn]*connMailQueue   // the last of those actions, if it is mail
	missedBroadcasts map[*engine.Conn]int64            // broadcasts for which the connection had no capacity
	returnBatch      []returnedConn                    // returned connections that are being resumed
	returnBatchDone  int                               // how many of them have been
	shedConns        []*engine.Conn                    // those that the pool has shed and that must wait

	// The following fields are safe for concurrent use.
	eventfd            sock.Eventfd
	connCount          atomic.Int64 // slots in use
	capacity           atomic.Int64 // of a shard: how many connections fit into its descriptor table
	mailbox            engine.Mailbox
	requestedStopStage atomic.Int32
	phase              atomic.Int32 // what the loop is doing, for the watchdog
	pendingAdoptions   atomic.Int64
	asleep             atomic.Bool
	hasRemoteRequests  atomic.Bool    // dialRequests, newBroadcasts or remoteCalls is not empty
	hasReturned        atomic.Bool    // returned is not empty
	mu                 sync.Mutex     // guards the fields below
	returned           []returnedConn // connections that the pool has returned
	dialRequests       []engine.DialRequest
	newBroadcasts      []*engine.Broadcast
	remoteCalls        []func()   // functions to call on the loop; few, see listeners_linux.go
	closed             bool       // no more requests are accepted
	wakeMu             sync.Mutex // guards wakeDisabled
	wakeDisabled       bool       // the eventfd may be closed
}

func newLoop(e *loopEngine, index int, eventfd sock.Eventfd) *Loop {
	l := &Loop{engine: e, eventfd: eventfd}
	l.accept.loop, l.broadcasts.loop, l.drainer.loop, l.sweeper.loop, l.budget.loop, l.placement.loop = l, l, l, l, l, l
	l.exporter.loop, l.importer.loop, l.dials.loop, l.submitQueue.loop = l, l, l, l
	l.tasks = l.orderedTasks()
	l.mailbox.MaxRequests, l.mailbox.MaxBytes = e.cfg.Limits.SingleMailboxLimits(e.cfg.Loops)
	l.mailbox.Counters = &l.counters
	l.buffers.LimitToShare(&e.cfg.Limits, e.cfg.Loops)
	l.host.Configure(&e.cfg, e.admission)
	l.host.Buffers, l.host.Poster, l.host.Counters, l.host.Shared = &l.buffers, l, &l.counters, &e.sharedCounters
	l.host.ListenerCounters = e.listenerStats
	l.host.Index, l.host.Loop = index, l
	l.host.LocalAddr, l.host.SendDirect = localAddr, sendDirect
	l.singleCPU = runtime.GOMAXPROCS(0) == 1
	l.host.NoDetach, l.host.NoFiles = e.cfg.MaxConnsPerShard > 0, e.cfg.MaxConnsPerShard > 0
	l.sweeper.period = l.host.SweepPeriod()
	if e.cfg.AutoWorkers {
		l.host.HandlerTimes = &l.placement.workerTimes
	}
	if e.cfg.Pool != nil {
		l.placement.switchToWorkers()
	}
	l.trimmer.buffers = &l.buffers
	if l.scheduler = (schedulerCaller{loop: l, nextAt: never}); e.cfg.Scheduler != nil {
		l.scheduler.nextAt, l.scheduler.nudge = 0, l.nudgeNowOrByMail
	}
	l.conns.host = &l.host
	l.capacity.Store(int64(e.cfg.MaxConnsPerShard))
	return l
}

func (l *Loop) Log() *slog.Logger { return l.host.Log }

// sendDirect implements Runtime.SendDirect. Errors surface on the next send.
func sendDirect(c *engine.Conn, first []byte, rest [][]byte) int {
	return sock.SendBuffers(c.FD(), first, rest)
}

// Eventfd returns the eventfd that ends the loop's wait. The driver watches and clears it.
func (l *Loop) Eventfd() sock.Eventfd { return l.eventfd }

func (l *Loop) Conn(slot uint32) *engine.Conn { return l.conns.conn(slot) }

func (l *Loop) OwnsConn(c *engine.Conn) bool { return c.DriverFlags()&Busy == 0 }

func (l *Loop) UseBlockingSockets() { l.acceptor.Blocking = true }

// runOnThread runs the loop on a separate thread until it has stopped. It sends the result of the start to startResult.
func (l *Loop) runOnThread(startResult chan<- error) {
	if l.engine.cfg.MaxConnsPerShard > 0 {
		sock.RunOnNewThread(func() { l.runWithPrivateFDTable(startResult) })
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := l.openAndRunUntilLastConnClosed(startResult); err != nil {
		for i, fd := range l.engine.listenerFDs {
			if l.engine.homeLoop(i) == l.host.Index {
				sock.Close(fd)
			}
		}
	}
}

// runWithPrivateFDTable gives the thread its own descriptor table and then runs the loop.
func (l *Loop) runWithPrivateFDTable(startResult chan<- error) {
	keptFDs := make(map[int32]bool)
	for _, fd := range l.engine.listenerFDs {
		keptFDs[fd] = true
	}
	release, err := sock.UnshareDescriptorTable(keptFDs)
	if err != nil {
		l.markClosedUnstarted()
		startResult <- err
		return
	}
	defer release()
	_ = l.openAndRunUntilLastConnClosed(startResult) // the end of the thread closes the listeners
}

// openAndRunUntilLastConnClosed opens the driver and sends the result to startResult. It then runs turns until the loop
// is stopped and its last connection has closed.
func (l *Loop) openAndRunUntilLastConnClosed(startResult chan<- error) error {
	thread := unix.Gettid()
	loopsByThread.Store(thread, l)
	defer loopsByThread.Delete(thread)
	if err := l.driver.Open(); err != nil {
		l.markClosedUnstarted()
		startResult <- err
		return err
	}
	for i, fd := range l.engine.listenerFDs {
		if l.engine.homeLoop(i) == l.host.Index {
			l.startAcceptingFrom(fd)
		}
	}
	startResult <- nil
	if l.scheduler.nudge != nil {
		defer sock.SetThreadPreciseTimers()()
	}
	defer func() { engine.RerunAfterGoexitThenExit(l.failQueuedDials) }()
	engine.RerunAfterGoexitThenExit(func() {
		for !l.isFinished() {
			l.runTurn()
		}
		l.deliverRemainingAndCloseLoop()
	})
	return nil
}

func (l *Loop) markClosedUnstarted() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.disableWakeups()
}

func (l *Loop) isFinished() bool {
	return l.stopStage >= stageStopping && !l.inTurn && l.conns.used == 0 && l.exporter.onDone == nil && !l.hasRemoteRequests.Load() && len(l.dials.requests) == 0
}

// runTurn handles pending events and then runs each task once. Without events or other work, it first waits.
//
// If a handler calls runtime.Goexit, the turn ends early, and the next turn does the remaining work. Therefore, during
// a handler call, no remaining work may exist only in local variables.
func (l *Loop) runTurn() {
	cutShort := l.inTurn
	l.inTurn = true
	l.recordLastAndStartTurn()
	if !l.handleEvents() && !cutShort && l.isIdle() && !l.spinForWork() {
		if !l.yieldIfSingleCPUHasWork() {
			l.blockUntilWork()
		}
		l.handleEvents()
	}
	l.resumeConnsReturnedByPool()
	l.deliverMail()
	l.phase.Store(phaseTasks)
	l.applyRequestedStopStage()
	l.takeRequestsAndRunCalls()
	l.runTasks()
	if cutShort {
		l.importer.receiveWaitingConns() // confirms what was received
	}
	l.conns.makeReleasedReusable()
	l.exporter.freeChunksAfterManyExports()
	l.inTurn = false
}

func (l *Loop) isIdle() bool {
	return !l.mailQueues.hasUndelivered() && l.nextTaskDue() > l.host.Clock()
}

func (l *Loop) recordLastAndStartTurn() {
	now := engine.MonotonicNow()
	l.recordTurnAndExtendDeadlines(now)
	l.turnStart = now
	l.host.SetClock(now)
	l.phase.Store(phaseEvents)
}

func (l *Loop) recordTurnAndExtendDeadlines(now time.Duration) {
	if l.turnStart == 0 {
		return
	}
	took := now - l.turnStart
	l.counters.CountLoopTurn(took)
	if took >= engine.MinSliceInterval {
		l.extendDeadlinesUnlessBusy(now, took, (*engine.Conn).ExtendTimeouts)
	}
	switch slow := l.host.Limits.SlowHandlerTime; {
	case slow > 0 && took >= slow:
		l.timedTurns, l.host.TimeAllCalls = timedTurnsAfterSlow, true
	case l.timedTurns > 0:
		l.timedTurns--
		l.host.TimeAllCalls = l.timedTurns > 0
	}
}

// extendDeadlinesUnlessBusy extends time limits by a duration in which the loop has not read. It skips Busy
// connections.
func (l *Loop) extendDeadlinesUnlessBusy(now, duration time.Duration, extend func(*engine.Conn, time.Duration)) {
	l.host.SetClock(now)
	l.ForEachConn(func(c *engine.Conn) {
		if c.DriverFlags()&Busy == 0 {
			extend(c, duration)
		}
	})
}

// After a slow turn, each handler call of the next timedTurnsAfterSlow turns is timed.
const timedTurnsAfterSlow = 10_000

func (l *Loop) handleEvents() (handledAny bool) {
	if l.engine.cfg.AutoWorkers && !l.host.OnWorkers {
		return l.placement.handleEventsAndMoveIfSlow()
	}
	return l.handleEventsAndReadBulk()
}

// handleEventsAndReadBulk handles pending events and reports whether there were any. It also reads from bulk
// connections, unless the buffers of all loops exceed their limit.
func (l *Loop) handleEventsAndReadBulk() (handledAny bool) {
	handled, left := l.driver.HandleEvents()
	l.eventsLeft = left
	l.performPendingActions()
	if l.bulkReads.n == 0 || l.budget.exceeded {
		return handled
	}
	l.readQueuedBulkConns()
	return true
}

// spinForWork polls for work without blocking, for at most Config.Spin. It reports whether it found work.
func (l *Loop) spinForWork() (foundWork bool) {
	spinTime := l.engine.cfg.Spin
	if spinTime == 0 {
		return false
	}
	for end := engine.MonotonicNow() + spinTime; engine.MonotonicNow() < end; {
		if l.handleEvents() || l.hasRemoteWork() {
			return true
		}
		l.host.SetClock(engine.MonotonicNow())
		if l.nextTaskDue() <= l.host.Clock() {
			return true
		}
	}
	return false
}

func (l *Loop) hasRemoteWork() bool {
	return l.mailbox.HasRequests() || l.hasRemoteRequests.Load() || l.hasReturned.Load() || l.requestedStopStage.Load() > l.stopStage
}

// blockUntilWork blocks until there are events or remote work, or a task is due.
func (l *Loop) blockUntilWork() {
	l.asleep.Store(true)
	defer l.asleep.Store(false)
	if l.hasRemoteWork() {
		return
	}
	now := engine.MonotonicNow()
	l.recordTurnAndExtendDeadlines(now)
	limit := time.Duration(-1) // no limit
	if next := l.nextTaskDue(); next != never {
		limit = max(next-now, 0)
	}
	l.driver.WaitForEvents(limit)
	l.startTurnAndExtendDeadlines(now, limit)
}

// startTurnAndExtendDeadlines starts a turn after a wait. If the wait was longer than its limit, the process was
// stopped or had no CPU; the peers' time limits are then extended.
func (l *Loop) startTurnAndExtendDeadlines(waitStart, waitLimit time.Duration) {
	l.turnStart = engine.MonotonicNow()
	l.host.SetClock(l.turnStart)
	if late := l.turnStart - waitStart - waitLimit; waitLimit >= 0 && late >= engine.MinSliceInterval {
		l.extendDeadlinesUnlessBusy(l.turnStart, late, (*engine.Conn).ExtendAfterSuspend)
	}
}

// If there is only one CPU, yieldIfSingleCPUHasWork lets goroutines run that received work in this turn. The thread
// would otherwise block in the kernel, and these goroutines would run only later, when Go's monitor has noticed.
func (l *Loop) yieldIfSingleCPUHasWork() (yielded bool) {
	retained := l.host.RetainCalls.Load()
	if !l.singleCPU || l.lastRetained == retained {
		return false
	}
	l.lastRetained = retained
	now := engine.MonotonicNow()
	l.recordTurnAndExtendDeadlines(now)
	runtime.Gosched()
	l.startTurnAndExtendDeadlines(now, 0)
	return true
}

// AdjustFastSweepReasons adds delta to the number of reasons for fast sweeps. Without reasons, sweeps are slow.
func (l *Loop) AdjustFastSweepReasons(delta int) {
	if l.sweeper.fastSweepReasons += delta; delta > 0 && l.sweeper.fastSweepReasons == delta {
		l.sweeper.nextAt = min(l.sweeper.nextAt, l.host.Clock()+engine.MinSliceInterval)
	}
}

// UpdateExpiryTracking schedules c for expiry if c has a deadline. Drivers call it when c begins to wait for events.
func (l *Loop) UpdateExpiryTracking(c *engine.Conn) {
	switch _, due := c.NextExpiryTimerOrDeadline(); {
	case due && c.DriverFlags()&Expiring == 0:
		c.SetDriverFlags(c.DriverFlags() | Expiring)
		l.AdjustFastSweepReasons(1)
	case !due:
		l.untrackExpiry(c)
	}
}

func (l *Loop) untrackExpiry(c *engine.Conn) {
	if c.DriverFlags()&Expiring != 0 {
		c.SetDriverFlags(c.DriverFlags() &^ Expiring)
		l.AdjustFastSweepReasons(-1)
	}
}

// ReceiveOnceAndDeliver receives once into buf without blocking, and passes the bytes to c. n is the number of bytes.
func (l *Loop) ReceiveOnceAndDeliver(c *engine.Conn, buf []byte) (n int) {
	n, errno := sock.Recv(c.FD(), buf)
	switch {
	case errno == 0 && n > 0:
		c.OnRead(buf[:n])
		l.QueueIfBulk(c, n)
		if n < len(buf) {
			c.CloseIfTimedOutAfterEmptyRead()
		}
		return n
	case errno == 0:
		c.OnEOF()
	case errno == syscall.EAGAIN:
		c.CloseIfTimedOutAfterEmptyRead()
	default:
		c.OnTransportError(errno)
	}
	return 0
}

// SendNextFilePart sends the next part of c's file with sendfile. If sendfile fails, SendNextFilePart reads a
// piece of the file into the output instead. This read or the next send then reports the error.
func (l *Loop) SendNextFilePart(c *engine.Conn, sendfile func(fd int32, f *os.File, offset int64, n int) (int, syscall.Errno)) {
	f, offset, n := c.NextFilePartUnlessLayered()
	if f == nil {
		c.LoadFilePieceIntoOutput()
		return
	}
	switch n, errno := sendfile(c.FD(), f, offset, n); {
	case errno == 0 && n > 0:
		c.OnSent(n)
	case errno == syscall.EAGAIN:
		c.OnSent(0)
	default:
		c.LoadFilePieceIntoOutput()
	}
}

// ClosesWithReset reports whether c must be closed with a reset: c is dialled and Config.ResetDialled is set.
func (l *Loop) ClosesWithReset(c *engine.Conn) bool {
	return c.IsDialled() && l.engine.cfg.ResetDialled
}

// ShutdownWriteUnlessReset shuts down the sending direction of c. If c is to be closed with a reset, it acts as if the
// peer had sent EOF instead, because a FIN before the reset would leave the socket in TIME_WAIT.
func (l *Loop) ShutdownWriteUnlessReset(c *engine.Conn) {
	if l.ClosesWithReset(c) {
		c.OnEOF()
	} else {
		// An error means that the peer has closed the connection. The next read reports the error.
		_ = sock.ShutdownWrite(c.FD())
	}
	c.MarkWriteShutAndStartLinger()
}

// CloseConn closes the descriptor of an open connection, calls Closed and frees the slot. If handlers run on workers, a
// worker calls Closed. No operation of c may be in progress.
func (l *Loop) CloseConn(c *engine.Conn) {
	l.untrackExpiry(c)
	sock.Close(c.FD())
	if l.host.OnWorkers && !c.InHandshake() {
		c.FreeBuffersAndDeferClosed()
		c.SetDriverFlags(c.DriverFlags() | ClosePending)
		l.submitShedOrQueue(c)
		return
	}
	l.callClosedAndFree(c)
}

// callClosedAndFree calls Closed and frees the slot, even if the handler calls runtime.Goexit.
func (l *Loop) callClosedAndFree(c *engine.Conn) {
	defer l.freeSlotAndResumeAccepting(c)
	c.OnClosed()
}

// CloseUnopened closes the descriptor of a connection that was not opened, such as a failed dial, and frees the slot.
func (l *Loop) CloseUnopened(c *engine.Conn) {
	l.untrackExpiry(c)
	sock.Close(c.FD())
	l.freeSlotAndResumeAccepting(c)
}

// DetachOrMarkExportReady turns c into a net.Conn with a separate descriptor or, if c is being exported, marks c as
// ready. No operation of c may be in progress, and c must not be watched.
func (l *Loop) DetachOrMarkExportReady(c *engine.Conn) {
	if c.IsExporting() {
		l.exporter.markReadyOrCancelExport(c)
	} else {
		c.OnDetached(sock.NewNetConnFromDup(c.FD()))
	}
}

func (l *Loop) freeSlotAndResumeAccepting(c *engine.Conn) {
	c.SetDriverFlags(0)
	l.conns.releaseForLaterReuse(c)
	l.connCount.Add(-1)
	l.engine.admission.ReleaseConn()
	if l.accept.outOfResources {
		l.accept.resumeAt = 0
	}
	if l.accept.delegated {
		l.reclaimListenersIfSpace()
	}
}

// deliverRemainingAndCloseLoop delivers the remaining requests, whose bytes still count as posted. It then releases the
// loop's resources.
func (l *Loop) deliverRemainingAndCloseLoop() {
	l.mailbox.Close()
	for l.hasMail() {
		l.deliverMail()
	}
	l.mu.Lock()
	l.closed = true
	l.dials.requests = l.dialRequests // queued since the last turn
	for _, c := range l.broadcasts.active {
		c.MarkOwnerDone()
	}
	for _, c := range l.newBroadcasts {
		c.MarkOwnerDone()
	}
	calls := l.remoteCalls
	l.mu.Unlock()
	l.disableWakeups()
	for _, do := range calls { // queued since the last turn
		do()
	}
	l.driver.Close()
	l.relayPipe.Close()
}
