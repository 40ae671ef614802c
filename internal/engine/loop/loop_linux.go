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

	"github.com/myriad-go/myriad/internal/deque"
	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sched"
	"github.com/myriad-go/myriad/internal/sock"
)

// Limits of one loop iteration. They prevent one task from starving the others.
const (
	acceptBatch       = 128
	dialBatch         = 128
	maxPendingActions = 64
	maxQueuedRequests = 1024
	maxTaskTime       = time.Millisecond // for tasks that may take long, such as draining
)

// Stages of stopping a loop, in order.
const (
	stageServing int32 = iota
	stageStopping
	stageKilling
)

// Loop is an event loop that runs on its own thread. The package comment states which goroutines may access its fields.
type Loop struct {
	engine        *loopEngine
	host          engine.Runtime
	counters      engine.Counters
	driver        Driver
	acceptor      sock.Acceptor
	conns         connTable
	buffers       engine.FreeList
	sharedBuffers engine.SharedBuffers // used instead of buffers while workers allocate buffers, too

	stopStage  int32         // the stage that the loop has reached; see requestedStopStage
	turnStart  time.Duration // when the current turn began
	timedTurns int           // turns left in which each handler call is timed

	inTurn       bool // a turn is in progress, or runtime.Goexit has cut it short
	eventsLeft   bool // the driver has unhandled events
	goroutines   *sched.Goroutines
	countDue     time.Duration // when goroutines must be counted
	lastRetained uint64        // host.RetainCalls at the last count

	tasks        []loopTask // the tasks below, in the order of a turn
	accept       acceptPauseController
	dials        dialStarter
	mailQueues   mailQueueSet // mail that was taken from the mailbox and is not delivered
	mailDelay    mailDelayTimer
	runningCalls []func() // functions taken from remoteCalls that have not run
	broadcasts   broadcastSender
	scheduler    schedulerCaller
	drainer      connDrainer
	exporter     connExporter
	importer     connImporter
	sweeper      expirySweeper
	heartbeats   heartbeatTask
	timers       timerWheel
	trimmer      bufferTrimmer
	budget       bufferBudgetEnforcer
	placement    handlerPlacer
	bulkReads    deque.Deque[engine.Ref] // connections that wait for the loop to read from them
	relayPipe    sock.SplicePipe
	spliceBuffer []byte        // for data that the destination of a relay has not accepted
	submitQueue  poolSubmitter // connections that wait for capacity in the pool
	jobs         deque.Deque[engine.LoopJob]
	acceptsJobs  bool
	jobRequests  int // requests of the jobs queued since the last NextEventBatchSize

	// pendingActions lists connections whose state was changed by an event of another connection or by the Scheduler.
	pendingActions []*engine.Conn

	// The following fields describe connections that workers have.
	busyConns        int                               // connections that are with a worker or wait for one
	deferred         map[*engine.Conn][]deferredAction // actions to run when a worker returns the connection
	deferredMail     map[*engine.Conn]*connMailQueue   // the last action in deferred, if it is mail
	missedBroadcasts map[*engine.Conn]int64            // number of broadcasts that the connection has missed
	returnBatch      []returnedConn                    // returned connections that are being resumed
	returnBatchDone  int                               // number of connections of returnBatch that were resumed
	shedConns        []*engine.Conn                    // returned connections that the pool has shed and that must wait

	// The following fields are safe for concurrent use.
	eventfd            sock.Eventfd
	connCount          atomic.Int64 // slots in use
	capacity           atomic.Int64 // number of connections that fit into the descriptor table of a shard
	mailbox            engine.Mailbox
	requestedStopStage atomic.Int32
	phase              atomic.Int32 // what the loop is doing, for the watchdog
	pendingAdoptions   atomic.Int64
	asleep             atomic.Bool
	hold               atomic.Pointer[jobHold] // hold of the goroutine that runs the loop
	hasRemoteRequests  atomic.Bool             // dialRequests, newBroadcasts or remoteCalls is not empty
	hasReturned        atomic.Bool             // returned is not empty
	mu                 sync.Mutex              // guards the fields below
	returned           []returnedConn          // connections that the pool has returned
	dialRequests       []engine.DialRequest
	newBroadcasts      []*engine.Broadcast
	remoteCalls        []func()   // functions to call on the loop
	closed             bool       // no more requests are accepted
	wakeMu             sync.Mutex // guards wakeDisabled
	wakeDisabled       bool       // the eventfd may be closed
}

func newLoop(e *loopEngine, index int, eventfd sock.Eventfd) *Loop {
	l := &Loop{engine: e, eventfd: eventfd}
	l.accept.loop, l.broadcasts.loop, l.drainer.loop, l.sweeper.loop, l.budget.loop, l.placement.loop = l, l, l, l, l, l
	l.exporter.loop, l.importer.loop, l.dials.loop, l.submitQueue.loop, l.timers.loop, l.mailDelay.loop, l.heartbeats.loop = l, l, l, l, l, l, l
	l.tasks = l.orderedTasks()
	l.mailbox.MaxRequests, l.mailbox.MaxBytes = e.cfg.Limits.SingleMailboxLimits(e.cfg.Loops)
	l.mailbox.Counters = &l.counters
	l.mailbox.EnableOutputDelay(&e.cfg)
	l.buffers.LimitToShare(&e.cfg.Limits, e.cfg.Loops)
	l.host.Configure(&e.cfg, e.admission)
	l.host.Buffers, l.host.Poster, l.host.Counters, l.host.Shared = &l.buffers, l, &l.counters, &e.sharedCounters
	l.host.ListenerCounters = e.listenerStats
	l.host.Index, l.host.Loop = index, l
	l.host.LocalAddr, l.host.SendDirect = localAddr, sendDirect
	l.goroutines = sched.NewGoroutines()
	l.host.NoDetach, l.host.NoFiles = e.cfg.MaxConnsPerShard > 0, e.cfg.MaxConnsPerShard > 0
	l.heartbeats.sweep.EnableFor(&l.host)
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

func sendDirect(c *engine.Conn, first []byte, rest [][]byte) int {
	return sock.SendBuffers(c.FD(), first, rest)
}

// Eventfd returns the eventfd that wakes the loop. The driver must watch and clear this eventfd.
func (l *Loop) Eventfd() sock.Eventfd { return l.eventfd }

func (l *Loop) Conn(slot uint32) *engine.Conn { return l.conns.conn(slot) }

func (l *Loop) OwnsConn(c *engine.Conn) bool { return c.DriverFlags()&Busy == 0 }

func (l *Loop) UseBlockingSockets() { l.acceptor.Blocking = true }

// runOnThread starts the loop and runs it on its own thread. It sends the result of the start, nil or an error, to
// startResult. It returns when the loop has stopped or another goroutine continues the loop.
func (l *Loop) runOnThread(startResult chan<- error) {
	if l.engine.cfg.MaxConnsPerShard > 0 {
		sock.RunOnNewThread(func() { l.runWithPrivateFDTable(startResult) })
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := l.openAndRunUntilLastConnClosed(startResult); err != nil {
		for i, fd := range l.engine.listenerFDs {
			if l.engine.homeLoopOfListener(i) == l.host.Index {
				sock.Close(fd)
			}
		}
	}
}

func (l *Loop) runWithPrivateFDTable(startResult chan<- error) {
	keptFDs := make(map[int32]bool)
	for _, fd := range l.engine.listenerFDs {
		keptFDs[fd] = true
	}
	release, err := sock.UnshareDescriptorTable(keptFDs)
	if err != nil {
		l.markUnstartedLoopClosed()
		startResult <- err
		return
	}
	defer release()
	_ = l.openAndRunUntilLastConnClosed(startResult) // the end of the thread closes the listeners
}

func (l *Loop) openAndRunUntilLastConnClosed(startResult chan<- error) error {
	if err := l.driver.Open(); err != nil {
		l.markUnstartedLoopClosed()
		startResult <- err
		return err
	}
	for i, fd := range l.engine.listenerFDs {
		if l.engine.homeLoopOfListener(i) == l.host.Index {
			l.startAcceptingFrom(fd)
		}
	}
	startResult <- nil
	l.runUntilFinishedOrLost(l.newHold())
	return nil
}

func (l *Loop) runUntilFinishedOrLost(h *jobHold) {
	h.thread = unix.Gettid()
	loopsByThread.Store(h.thread, l)
	defer loopsByThread.Delete(h.thread)
	l.hold.Store(h)
	if l.scheduler.nudge != nil {
		defer sock.SetThreadPreciseTimers()()
	}
	defer func() {
		if !h.ended {
			engine.RerunAfterGoexitThenExit(l.failQueuedDials)
		}
	}()
	engine.RerunAfterGoexitThenExit(func() {
		for !h.ended && !l.isFinished() {
			l.runTurn()
			l.runQueuedJobsWithinTimeSlice(h)
		}
		if !h.ended {
			l.deliverRemainingAndCloseLoop()
		}
	})
}

func (l *Loop) markUnstartedLoopClosed() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.disableWakeupsPermanently()
}

func (l *Loop) isFinished() bool {
	return l.stopStage >= stageStopping && !l.inTurn && l.conns.used == 0 && l.exporter.onDone == nil && !l.hasRemoteRequests.Load() && len(l.dials.requests) == 0
}

// runTurn runs one iteration of the loop, after a wait if there is nothing to do.
func (l *Loop) runTurn() {
	// After a runtime.Goexit in a handler, the next call does the remaining work. So no remaining work may exist only
	// in local variables during a handler call.
	cutShort := l.inTurn
	l.inTurn = true
	l.recordLastTurnAndStartNext()
	if !l.handleEvents() && !cutShort && l.isIdle() && !l.spinHandlingEvents() && !l.yieldWhileProcessorsAreBusy() {
		l.blockUntilWork()
		l.handleEvents()
	}
	l.resumeConnsReturnedByPool()
	l.deliverMailWithinTimeLimit()
	l.phase.Store(phaseTasks)
	l.applyRequestedStopStage()
	l.dequeueRequestsAndRunCalls()
	l.runDueTasks()
	if cutShort {
		l.importer.receiveWaitingConns() // confirms connections that were received in the turn that was cut short
	}
	l.conns.makeReleasedReusable()
	l.exporter.freeEmptyConnChunksAfterManyExportsOrAtEnd()
	l.inTurn = false
}

func (l *Loop) isIdle() bool {
	return !l.mailQueues.hasUndelivered() && l.jobs.Len() == 0 && l.nextTaskDueTimeOrNever() > l.host.Clock()
}

func (l *Loop) recordLastTurnAndStartNext() {
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
		l.extendDeadlinesOfNonBusyConns(now, took, (*engine.Conn).ExtendTimeouts)
	}
	switch slow := l.host.Limits.SlowHandlerTime; {
	case slow > 0 && took >= slow:
		l.timedTurns, l.host.TimeAllCalls = timedTurnsAfterSlow, true
	case l.timedTurns > 0:
		l.timedTurns--
		l.host.TimeAllCalls = l.timedTurns > 0
	}
}

func (l *Loop) extendDeadlinesOfNonBusyConns(now, duration time.Duration, extend func(*engine.Conn, time.Duration)) {
	l.host.SetClock(now)
	l.ForEachConn(func(c *engine.Conn) {
		if c.DriverFlags()&Busy == 0 {
			extend(c, duration)
		}
	})
}

// timedTurnsAfterSlow is the number of iterations after a slow iteration in which the loop measures the duration of
// every handler call.
const timedTurnsAfterSlow = 10_000

func (l *Loop) handleEvents() (handledAny bool) {
	if l.engine.cfg.AutoWorkers && !l.host.OnWorkers {
		return l.placement.handleEventsAndMoveIfSlow()
	}
	return l.handleEventsAndReadBulk()
}

func (l *Loop) handleEventsAndReadBulk() (handledAny bool) {
	handled, left := l.driver.HandleEvents()
	l.eventsLeft = left
	l.performPendingActions()
	if l.bulkReads.Len() == 0 || l.budget.exceeded {
		return handled
	}
	l.readQueuedBulkConns()
	return true
}

// spinHandlingEvents polls for work without blocking, for at most Config.Spin.
func (l *Loop) spinHandlingEvents() (foundWork bool) {
	spinTime := l.engine.cfg.Spin
	if spinTime == 0 {
		return false
	}
	for end := engine.MonotonicNow() + spinTime; engine.MonotonicNow() < end; {
		if l.handleEvents() || l.hasRemoteWork() {
			return true
		}
		l.host.SetClock(engine.MonotonicNow())
		if l.nextTaskDueTimeOrNever() <= l.host.Clock() {
			return true
		}
	}
	return false
}

// countInterval is the normal minimum time between two counts of goroutines. If the loop has passed work to a
// goroutine, the next count does not wait for this time.
const countInterval = 100 * time.Microsecond

// yieldWhileProcessorsAreBusy lets other goroutines run as long as some of them wait for a processor. The loop calls
// yieldWhileProcessorsAreBusy before it blocks in a system call. Without this call, the blocked loop would keep its
// processor for 20 µs to 10 ms, until Go's monitor takes the processor away. foundWork reports whether the loop now has
// work.
func (l *Loop) yieldWhileProcessorsAreBusy() (foundWork bool) {
	for l.areProcessorsBusy() {
		now := engine.MonotonicNow()
		l.recordTurnAndExtendDeadlines(now)
		runtime.Gosched()
		l.countDue = 0
		l.startTurnAndExtendDeadlines(now, 0)
		if l.handleEvents() || l.hasRemoteWork() || l.nextTaskDueTimeOrNever() <= l.host.Clock() {
			return true
		}
	}
	return false
}

func (l *Loop) areProcessorsBusy() bool {
	retained, now := l.host.RetainCalls.Load(), l.host.Clock()
	if now < l.countDue && retained == l.lastRetained {
		return false
	}
	l.countDue, l.lastRetained = now+countInterval, retained
	runnable, running := l.goroutines.Count()
	return runnable > 0 && running >= runtime.GOMAXPROCS(0)
}

func (l *Loop) hasRemoteWork() bool {
	return l.mailbox.HasRequests() || l.hasRemoteRequests.Load() || l.hasReturned.Load() || l.requestedStopStage.Load() > l.stopStage
}

func (l *Loop) blockUntilWork() {
	l.asleep.Store(true)
	defer l.asleep.Store(false)
	if l.hasRemoteWork() {
		return
	}
	now := engine.MonotonicNow()
	l.recordTurnAndExtendDeadlines(now)
	limit := time.Duration(-1) // no limit
	if next := l.nextTaskDueTimeOrNever(); next != never {
		limit = max(next-now, 0)
	}
	l.driver.WaitForEvents(limit)
	l.startTurnAndExtendDeadlines(now, limit)
}

// startTurnAndExtendDeadlines starts a loop iteration after a wait. The wait began at waitStart and should have taken
// at most waitLimit. A negative waitLimit means no limit. If the wait took much longer, the process was suspended. In
// this case, startTurnAndExtendDeadlines extends the time limits of all connections by the delay.
func (l *Loop) startTurnAndExtendDeadlines(waitStart, waitLimit time.Duration) {
	l.turnStart = engine.MonotonicNow()
	l.host.SetClock(l.turnStart)
	if late := l.turnStart - waitStart - waitLimit; waitLimit >= 0 && late >= engine.MinSliceInterval {
		l.extendDeadlinesOfNonBusyConns(l.turnStart, late, (*engine.Conn).ExtendTimeLimitsAfterSuspend)
	}
}

// AdjustFastSweepReasons adds delta to the number of conditions that require frequent timeout checks. While the number
// is 0, timeout checks are less frequent.
func (l *Loop) AdjustFastSweepReasons(delta int) {
	if l.sweeper.fastSweepReasons += delta; delta > 0 && l.sweeper.fastSweepReasons == delta {
		l.sweeper.nextAt = min(l.sweeper.nextAt, l.host.Clock()+engine.MinSliceInterval)
	}
}

// UpdateExpiryTracking schedules the checks of c's timer, deadline and expiry time. If c has none of these,
// UpdateExpiryTracking ends the checks. Drivers call UpdateExpiryTracking when c begins to wait for events.
func (l *Loop) UpdateExpiryTracking(c *engine.Conn) {
	if _, due := c.NextTimerDeadlineOrExpiry(); !due {
		l.untrackExpiry(c)
		return
	}
	if c.DriverFlags()&Expiring == 0 {
		c.SetDriverFlags(c.DriverFlags() | Expiring)
		l.sweeper.adjustExpiringCount(c.Slot(), 1)
	}
	l.timers.addTimerIfSoon(c)
}

func (l *Loop) untrackExpiry(c *engine.Conn) {
	if c.DriverFlags()&Expiring != 0 {
		c.SetDriverFlags(c.DriverFlags() &^ Expiring)
		l.sweeper.adjustExpiringCount(c.Slot(), -1)
	}
}

// ReceiveOnceAndDeliver receives once into buf without blocking, and passes the n received bytes to c.
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

// SendNextFilePart sends the next part of a file on c with the function sendfile. If c has a layer such as TLS, or if
// sendfile fails, SendNextFilePart reads the part of the file into c's output buffer instead.
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

// ClosesWithReset reports whether to close c with a TCP reset. This is the case for dialled connections if
// Config.ResetDialled is set.
func (l *Loop) ClosesWithReset(c *engine.Conn) bool {
	return c.IsDialled() && l.engine.cfg.ResetDialled
}

// ShutdownWriteOrActAsEOF shuts down the sending direction of c. If ClosesWithReset(c) is true, ShutdownWriteOrActAsEOF
// does not shut down the socket, because a FIN would leave the socket in TIME_WAIT. Instead, it makes c act as if the
// peer had sent EOF.
func (l *Loop) ShutdownWriteOrActAsEOF(c *engine.Conn) {
	if l.ClosesWithReset(c) {
		c.OnEOF()
	} else {
		// An error means that the peer has closed the connection. The next read reports the error.
		_ = sock.ShutdownWrite(c.FD())
	}
	c.MarkWriteShutAndLingerIfClosing()
}

// CloseConn closes the socket of an open connection, calls the handler's Closed method, and frees the slot of c. If
// handlers run on workers, a worker calls Closed. No operation of c may be in progress.
func (l *Loop) CloseConn(c *engine.Conn) {
	l.untrackExpiry(c)
	sock.Close(c.FD())
	if l.host.OnWorkers && !c.InHandshake() {
		c.FreeBuffersAndDeferClosed()
		c.SetDriverFlags(c.DriverFlags() | ClosePending)
		l.submitOrQueueOrShed(c)
		return
	}
	l.callClosedAndFree(c)
}

func (l *Loop) callClosedAndFree(c *engine.Conn) {
	defer l.freeSlotAndResumeAccepting(c)
	c.OnClosed()
}

// CloseUnopened closes the socket of a connection that was never opened, such as a failed dial, and frees its slot.
func (l *Loop) CloseUnopened(c *engine.Conn) {
	l.untrackExpiry(c)
	sock.Close(c.FD())
	l.freeSlotAndResumeAccepting(c)
}

// MarkReadyIfExportingElseDetach marks c as ready for export if c is being exported. Otherwise, it converts c to a
// net.Conn, which uses a duplicate of the descriptor. The driver must not watch c, and no operation of c may be in
// progress.
func (l *Loop) MarkReadyIfExportingElseDetach(c *engine.Conn) {
	if c.IsExporting() {
		l.exporter.markReadyOrCancelExport(c)
	} else {
		c.CompleteDetachOrAbort(sock.NewNetConnFromDup(c.FD()))
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

func (l *Loop) deliverRemainingAndCloseLoop() {
	l.mailbox.RejectFurtherPosts()
	for l.hasMail() {
		l.deliverMailWithinTimeLimit()
	}
	l.mu.Lock()
	l.closed = true
	l.dials.requests = l.dialRequests // queued since the last turn
	for _, c := range l.broadcasts.active {
		c.MarkOneOwnerDone()
	}
	for _, c := range l.newBroadcasts {
		c.MarkOneOwnerDone()
	}
	calls := l.remoteCalls
	l.mu.Unlock()
	l.disableWakeupsPermanently()
	for _, do := range calls { // queued since the last turn
		do()
	}
	l.driver.Close()
	l.relayPipe.Close()
}
