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

// The bounds of one turn of a loop, so that none of its tasks starves another.
const (
	acceptBatch       = 128
	dialBatch         = 128
	maxPendingActions = 64
	maxQueuedRequests = 1024
	// maxTaskTime is how long a turn does what may take long: reading from bulk
	// connections, and draining.
	maxTaskTime = time.Millisecond
)

// What a loop is told, growing.
const (
	stageServing int32 = iota
	stageStopping
	stageKilling
)

// Loop is one thread of an event-driven model. See the package comment for who
// may touch what.
type Loop struct {
	engine        *loopEngine
	host          engine.Host
	counters      engine.Counters
	driver        Driver
	acceptor      sock.Acceptor
	conns         connTable
	buffers       engine.FreeList
	sharedBuffers engine.SharedBuffers // instead, where workers use them too

	stopStage  int32         // how far the loop has come with wanted
	turnStart  time.Duration // the turn
	timedTurns int           // turns that are to be looked at closely

	inTurn       bool   // a turn is under way, or a handler's Goexit has cut one short
	eventsLeft   bool   // the driver has events left that it has not handled
	singleCPU    bool   // there is one processor
	lastRetained uint64 // the host's Retained when the loop has last yielded

	tasks        []loopTask // those below, in the order of a turn
	accept       acceptState
	dials        dialQueue
	mailQueues   mailQueueSet // mail that has been taken and not given out
	runningCalls []func()     // chores that have been taken and not done
	broadcasts   broadcastSender
	pacer        pacer
	drainer      connDrainer
	exporter     connExporter
	importer     connImporter
	sweeper      connSweeper
	trimmer      bufferTrimmer
	budget       bufferBudget
	placement    handlerPlacement
	bulkReads    deque[engine.Ref] // connections that wait to be read from
	relayPipe    sock.Pipe         // for relays
	spliceBuffer []byte            // what was in it and was not taken
	submitQueue  poolSubmitQueue   // connections, for room in the pool

	// pendingActions are connections to which the events of others, or Pace, have done
	// something, and that are to be settled.
	pendingActions []*engine.Conn

	// Of connections that are with workers:
	busyConns        int                               // how many are, or wait for one
	deferred         map[*engine.Conn][]deferredAction // what is to be done when a worker gives it back
	deferredMail     map[*engine.Conn]*connMailQueue   // the mail that is last among it
	missedBroadcasts map[*engine.Conn]int64            // broadcasts that those had no room for
	returnBatch      []returnedConn                    // what is being taken back,
	returnBatchDone  int                               // of which so many have been
	shedConns        []*engine.Conn                    // of that, what the pool has shed and must wait

	// For everyone:
	eventfd           sock.Eventfd
	connCount         atomic.Int64 // slots of the slab
	capacity          atomic.Int64 // of a shard: how many its table has room for
	mailbox           engine.Mailbox
	requestedStage    atomic.Int32
	phase             atomic.Int32 // for the watch
	pendingAdoptions  atomic.Int64 // connections that are to be adopted
	asleep            atomic.Bool
	hasRemoteRequests atomic.Bool         // orders or chores are not empty
	hasReturned       atomic.Bool         // returned is not empty
	mu                sync.Mutex          // guards what follows
	returned          []returnedConn      // from the pool
	dialRequests      []engine.Dial       // dials that the loop has not taken yet
	newBroadcasts     []*engine.Broadcast // that the loop has not taken yet
	remoteCalls       []func()            // what other loops ask of it; few, see listeners_linux.go
	closed            bool                // nobody may leave anything any more
	wakeMu            sync.Mutex          // guards what follows
	wakeDisabled      bool                // nobody may wake the loop any more
}

func newLoop(e *loopEngine, index int, eventfd sock.Eventfd) *Loop {
	l := &Loop{engine: e, eventfd: eventfd}
	l.accept.loop, l.broadcasts.loop, l.drainer.loop, l.sweeper.loop, l.budget.loop, l.placement.loop = l, l, l, l, l, l
	l.exporter.loop, l.importer.loop, l.dials.loop, l.submitQueue.loop = l, l, l, l
	l.tasks = l.orderedTasks()
	l.mailbox.Max, l.mailbox.MaxBytes = e.cfg.Limits.Mailbox(e.cfg.Loops)
	l.mailbox.Counters = &l.counters
	l.buffers.SetMax(&e.cfg.Limits, e.cfg.Loops)
	l.host.SetUp(&e.cfg, e.admission)
	l.host.Buffers, l.host.Poster, l.host.Counters, l.host.Shared = &l.buffers, l, &l.counters, &e.sharedCounters
	l.host.Entrances = e.listenerStats
	l.host.Index, l.host.Loop = index, l
	l.host.LocalAddr, l.host.Direct = localAddr, sendDirect
	l.singleCPU = runtime.GOMAXPROCS(0) == 1
	l.host.NoDetach, l.host.NoFiles = e.cfg.Shard > 0, e.cfg.Shard > 0
	l.sweeper.period = l.host.SweepPeriod()
	if e.cfg.Auto {
		l.host.Times = &l.placement.workerTimes
	}
	if e.cfg.Pool != nil {
		l.placement.callHandlersOnWorkers()
	}
	l.trimmer.buffers = &l.buffers
	if l.pacer = (pacer{loop: l, nextAt: never}); e.cfg.Pace != nil {
		l.pacer.nextAt, l.pacer.nudge = 0, l.nudgeConn
	}
	l.conns.host = &l.host
	l.capacity.Store(int64(e.cfg.Shard))
	return l
}

// Log is where a driver writes what an operator has to know.
func (l *Loop) Log() *slog.Logger { return l.host.Log }

// sendDirect is Host.Direct. What is wrong with the connection the next send tells.
func sendDirect(c *engine.Conn, first []byte, rest [][]byte) int {
	return sock.SendAll(c.FD(), first, rest)
}

// Eventfd ends a wait when it is signalled. Drivers watch it, and clear it.
func (l *Loop) Eventfd() sock.Eventfd { return l.eventfd }

// Conn implements engine.Loop.
func (l *Loop) Conn(slot uint32) *engine.Conn { return l.conns.conn(slot) }

// HasConn implements engine.Loop.
func (l *Loop) HasConn(c *engine.Conn) bool { return c.Armed()&Busy == 0 }

// UseBlockingSockets makes accepted and dialled descriptors blocking ones.
func (l *Loop) UseBlockingSockets() { l.acceptor.Blocking = true }

// runOnThread runs the loop on a thread of its own.
func (l *Loop) runOnThread(started chan<- error) {
	if l.engine.cfg.Shard > 0 {
		sock.OwnThread(func() { l.runWithPrivateFDTable(started) })
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := l.runUntilStopped(started); err != nil {
		for i, fd := range l.engine.listenerFDs {
			if l.engine.homeLoop(i) == l.host.Index {
				sock.Close(fd)
			}
		}
	}
}

// runWithPrivateFDTable gives the thread a descriptor table first.
func (l *Loop) runWithPrivateFDTable(started chan<- error) {
	keptFDs := make(map[int32]bool)
	for _, fd := range l.engine.listenerFDs {
		keptFDs[fd] = true
	}
	release, err := sock.PrivateTable(keptFDs)
	if err != nil {
		l.closeUnstarted()
		started <- err
		return
	}
	defer release()
	_ = l.runUntilStopped(started) // the thread's end closes the listeners
}

// runUntilStopped turns until the loop is told to stop and the last connection is
// finished. It first says how opening the driver went.
func (l *Loop) runUntilStopped(started chan<- error) error {
	thread := unix.Gettid()
	loopsByThread.Store(thread, l)
	defer loopsByThread.Delete(thread)
	if err := l.driver.Open(); err != nil {
		l.closeUnstarted()
		started <- err
		return err
	}
	for i, fd := range l.engine.listenerFDs {
		if l.engine.homeLoop(i) == l.host.Index {
			l.startAcceptingFrom(fd)
		}
	}
	started <- nil
	if l.pacer.nudge != nil {
		defer sock.SharpTimers()()
	}
	defer func() { engine.Outlive(l.failQueuedDials) }()
	engine.Outlive(func() {
		for !l.isFinished() {
			l.runTurn()
		}
		l.closeRemaining()
	})
	return nil
}

// closeUnstarted ends a loop that could not begin.
func (l *Loop) closeUnstarted() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.disableWakeups()
}

func (l *Loop) isFinished() bool {
	return l.stopStage >= stageStopping && !l.inTurn && l.conns.used == 0 && l.exporter.onDone == nil && !l.hasRemoteRequests.Load() && len(l.dials.requests) == 0
}

// runTurn handles the events that are there, waits if there are none, and runs each duty
// once, in order. A busy loop never waits.
//
// A handler's runtime.Goexit cuts a turn short. The next one goes on with what is left: no work
// that others wait for is in variables alone while a handler is called.
func (l *Loop) runTurn() {
	cutShort := l.inTurn
	l.inTurn = true
	l.startTurn()
	if !l.handleEvents() && !cutShort && l.isIdle() && !l.spinForEvents() {
		if !l.yieldToGoroutines() {
			l.waitForEvents()
		}
		l.handleEvents()
	}
	l.resumeReturned()
	l.deliverMail()
	l.phase.Store(phaseTasks)
	l.applyRequestedStage()
	l.takeRemoteRequests()
	l.runTasks()
	if cutShort {
		l.importer.receiveConns() // which confirms what has come
	}
	l.conns.recycleReleased()
	l.exporter.freeExportedMemory()
	l.inTurn = false
}

// isIdle reports whether nothing is left over from the last turn.
func (l *Loop) isIdle() bool {
	return !l.mailQueues.hasUndelivered() && l.nextTaskDue() > l.host.Clock()
}

// startTurn sets the clock, and sees how long the last turn took.
func (l *Loop) startTurn() {
	now := engine.Since()
	l.finishTurn(now)
	l.turnStart = now
	l.host.SetClock(now)
	l.phase.Store(phaseEvents)
}

func (l *Loop) finishTurn(now time.Duration) {
	if l.turnStart == 0 {
		return
	}
	took := now - l.turnStart
	l.counters.Turn(took)
	if took >= engine.MinSlice {
		l.extendDeadlines(now, took, (*engine.Conn).ExtendTimes)
	}
	switch slow := l.host.Limits.HandlerTime; {
	case slow > 0 && took >= slow:
		l.timedTurns, l.host.Timing = timedTurnsAfterSlow, true
	case l.timedTurns > 0:
		l.timedTurns--
		l.host.Timing = l.timedTurns > 0
	}
}

// extendDeadlines moves the peers' limits of time on by a time in which nobody has read.
func (l *Loop) extendDeadlines(now, by time.Duration, extend func(*engine.Conn, time.Duration)) {
	l.host.SetClock(now)
	l.ForEachConn(func(c *engine.Conn) {
		if c.Armed()&Busy == 0 {
			extend(c, by)
		}
	})
}

// timedTurnsAfterSlow is for how many turns each call of a handler is timed when a turn
// has taken as long as none of them should: a handler that does it again is then
// found by name.
const timedTurnsAfterSlow = 10_000

// handleEvents handles the events that are there, and sees how long that takes where
// it matters.
func (l *Loop) handleEvents() bool {
	if l.engine.cfg.Auto && !l.host.OnWorkers {
		return l.placement.handleEventsTimed()
	}
	return l.handleDriverEvents()
}

// handleDriverEvents handles the events that are there, and reads from bulk connections unless
// buffers hold too much already.
func (l *Loop) handleDriverEvents() bool {
	handled, left := l.driver.HandleEvents()
	l.eventsLeft = left
	l.performPendingActions()
	if l.bulkReads.n == 0 || l.budget.exceeded {
		return handled
	}
	l.readBulkConns()
	return true
}

// spinForEvents looks for events for a while, if that is wanted, and says whether there
// was something to do.
func (l *Loop) spinForEvents() bool {
	spinTime := l.engine.cfg.Spin
	if spinTime == 0 {
		return false
	}
	for end := engine.Since() + spinTime; engine.Since() < end; {
		if l.handleEvents() || l.hasRemoteWork() {
			return true
		}
		l.host.SetClock(engine.Since())
		if l.nextTaskDue() <= l.host.Clock() {
			return true
		}
	}
	return false
}

// hasRemoteWork reports whether other goroutines have left work for the loop.
func (l *Loop) hasRemoteWork() bool {
	return l.mailbox.Waiting() || l.hasRemoteRequests.Load() || l.hasReturned.Load() || l.requestedStage.Load() > l.stopStage
}

// waitForEvents waits for events, unless there is something else to do.
func (l *Loop) waitForEvents() {
	l.asleep.Store(true)
	defer l.asleep.Store(false)
	if l.hasRemoteWork() {
		return
	}
	now := engine.Since()
	l.finishTurn(now)
	limit := time.Duration(-1) // without a limit
	if next := l.nextTaskDue(); next != never {
		limit = max(next-now, 0)
	}
	l.driver.WaitForEvents(limit)
	l.startTurnAfterWait(now, limit)
}

// startTurnAfterWait begins a turn after a wait.
func (l *Loop) startTurnAfterWait(waitStart, waitLimit time.Duration) {
	l.turnStart = engine.Since()
	l.host.SetClock(l.turnStart)
	if late := l.turnStart - waitStart - waitLimit; waitLimit >= 0 && late >= engine.MinSlice {
		l.extendDeadlines(l.turnStart, late, (*engine.Conn).ProcessStopped) // or had no CPU
	}
}

// yieldToGoroutines waits instead, where there is one processor, until those goroutines have had it that
// this turn has given something to do, and says whether there were any. While the thread
// sleeps in the kernel they would get it only when Go's monitor finds that out, 20 µs to 10 ms
// later, and then each answer would have to end that sleep.
func (l *Loop) yieldToGoroutines() bool {
	retained := l.host.Retained.Load()
	if !l.singleCPU || l.lastRetained == retained {
		return false
	}
	l.lastRetained = retained
	now := engine.Since()
	l.finishTurn(now)
	runtime.Gosched()
	l.startTurnAfterWait(now, 0)
	return true
}

// TrackFastSweep counts one more or, with -1, one less reason to sweep the slab.
func (l *Loop) TrackFastSweep(delta int) {
	if l.sweeper.fastSweepReasons += delta; delta > 0 && l.sweeper.fastSweepReasons == delta {
		l.sweeper.nextAt = min(l.sweeper.nextAt, l.host.Clock()+engine.MinSlice) // sooner than it was
	}
}

// TrackExpiry sees to it that a connection that has a Due is expired. Drivers call it
// when the connection waits.
func (l *Loop) TrackExpiry(c *engine.Conn) {
	switch _, due := c.Due(); {
	case due && c.Armed()&Expiring == 0:
		c.SetArmed(c.Armed() | Expiring)
		l.TrackFastSweep(1)
	case !due:
		l.untrackExpiry(c)
	}
}

// untrackExpiry undoes TrackExpiry.
func (l *Loop) untrackExpiry(c *engine.Conn) {
	if c.Armed()&Expiring != 0 {
		c.SetArmed(c.Armed() &^ Expiring)
		l.TrackFastSweep(-1)
	}
}

// ReceiveOnce receives once from a connection, without waiting, and says how many bytes have
// come.
func (l *Loop) ReceiveOnce(c *engine.Conn, buf []byte) (n int) {
	n, errno := sock.Recv(c.FD(), buf)
	switch {
	case errno == 0 && n > 0:
		c.Arrived(buf[:n])
		l.QueueIfBulk(c, n)
		if n < len(buf) {
			c.Empty()
		}
		return n
	case errno == 0:
		c.PeerClosed()
	case errno == syscall.EAGAIN:
		c.Empty()
	default:
		c.Failed(errno)
	}
	return 0
}

// SendFile has the kernel send a file by a call, as far as it can. At its end, and whatever
// is wrong, it is read instead: that tells, or the next send does.
func (l *Loop) SendFile(c *engine.Conn, sendfile func(fd int32, f *os.File, offset int64, n int) (int, syscall.Errno)) {
	f, offset, n := c.File()
	if f == nil {
		c.Load()
		return
	}
	switch n, errno := sendfile(c.FD(), f, offset, n); {
	case errno == 0 && n > 0:
		c.Sent(n)
	case errno == syscall.EAGAIN:
		c.Sent(0)
	default:
		c.Load()
	}
}

// ClosesWithReset says whether the connection is to be closed with a reset.
func (l *Loop) ClosesWithReset(c *engine.Conn) bool { return c.Outbound() && l.engine.cfg.Reset }

// ShutdownWrite shuts the sending direction. A connection that is to be reset is closed
// at once: its end, if it came first, would leave it in TIME_WAIT.
func (l *Loop) ShutdownWrite(c *engine.Conn) {
	if l.ClosesWithReset(c) {
		c.PeerClosed()
	} else {
		// An error means that the peer has gone; reading will tell.
		_ = sock.ShutWrite(c.FD())
	}
	c.ShutDone()
}

// CloseConn closes the descriptor of an open connection, finishes it, and frees
// its slot, with workers when one of them has called Closed. Nothing of it may
// be under way.
func (l *Loop) CloseConn(c *engine.Conn) {
	l.untrackExpiry(c)
	sock.Close(c.FD())
	if l.host.OnWorkers && !c.Greets() {
		c.DeferClosed()
		c.SetArmed(c.Armed() | ClosePending)
		l.submitToPool(c)
		return
	}
	l.callClosedAndFree(c)
}

// callClosedAndFree calls Closed, and frees the slot whatever that does.
func (l *Loop) callClosedAndFree(c *engine.Conn) {
	defer l.freeConn(c)
	c.Finish()
}

// CloseUnopened closes the descriptor of a dial that has failed, and frees its slot.
func (l *Loop) CloseUnopened(c *engine.Conn) {
	l.untrackExpiry(c)
	sock.Close(c.FD())
	l.freeConn(c)
}

// DetachConn makes a connection one of package net, which has a descriptor of its own for it.
// Nothing of it may be under way, or watched.
func (l *Loop) DetachConn(c *engine.Conn) {
	if c.Leaving() {
		l.exporter.handleQuiescentConn(c)
	} else {
		c.Detached(sock.NetConn(c.FD()))
	}
}

func (l *Loop) freeConn(c *engine.Conn) {
	c.SetArmed(0)
	l.conns.releaseConn(c)
	l.connCount.Add(-1)
	l.engine.admission.Release()
	if l.accept.outOfResources {
		l.accept.resumeAt = 0
	}
	if l.accept.delegated {
		l.reclaimListeners()
	}
}

// closeRemaining closes what the loop still holds. Mail that came too late is taken, so
// that its reservations are released.
func (l *Loop) closeRemaining() {
	l.mailbox.Close()
	for l.hasMail() {
		l.deliverMail()
	}
	l.mu.Lock()
	l.closed = true
	l.dials.requests = l.dialRequests // that came between the last look and now
	for _, c := range l.broadcasts.active {
		c.Done()
	}
	for _, c := range l.newBroadcasts {
		c.Done()
	}
	calls := l.remoteCalls
	l.mu.Unlock()
	l.disableWakeups()
	for _, do := range calls { // that came between the last look and now
		do()
	}
	l.driver.Close()
	l.relayPipe.Close()
}
