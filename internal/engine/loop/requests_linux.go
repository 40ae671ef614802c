package loop

import (
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file handles requests of other goroutines to a loop, and dials.

func (l *Loop) Post(c *engine.Conn, gen uint32, request engine.Request) error {
	err := l.mailbox.Put(c, gen, request)
	if l.mailbox.MustWakeOwnerAfterPut(err) {
		l.wake()
	}
	return err
}

func (l *Loop) PostToChunk(to *engine.GroupChunk, message *engine.Shared) engine.PostOutcomes {
	t := l.mailbox.PutSharedForEachOpenInChunk(to, message)
	if t.SentCount() > 0 && l.mailbox.MustWakeOwnerAfterPut(nil) {
		l.wake()
	}
	return t
}

func (l *Loop) requestStopStage(stage int32) {
	for current := l.requestedStopStage.Load(); current < stage; current = l.requestedStopStage.Load() {
		l.requestedStopStage.CompareAndSwap(current, stage)
	}
	l.wake()
}

func (l *Loop) enqueueDialAndWake(request engine.DialRequest) error {
	if err := l.enqueueDialWithoutWake(request); err != nil {
		return err
	}
	l.wake()
	return nil
}

func (l *Loop) enqueueDialWithoutWake(request engine.DialRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed || l.requestedStopStage.Load() >= stageStopping:
		return engine.ErrClosed
	case len(l.dialRequests) >= maxQueuedRequests:
		return engine.ErrFull
	}
	l.dialRequests = append(l.dialRequests, request)
	l.hasRemoteRequests.Store(true)
	return nil
}

// enqueueCallAndWake queues a function for the loop to call. It returns false if the loop has ended.
func (l *Loop) enqueueCallAndWake(call func()) (queued bool) {
	l.mu.Lock()
	if queued = !l.closed; queued {
		l.remoteCalls = append(l.remoteCalls, call)
		l.hasRemoteRequests.Store(true)
	}
	l.mu.Unlock()
	l.wake()
	return queued
}

// wake wakes the loop if it is waiting for events. It may be called after the loop has ended.
func (l *Loop) wake() {
	if !l.asleep.Load() || !l.asleep.CompareAndSwap(true, false) {
		return
	}
	l.wakeMu.Lock()
	defer l.wakeMu.Unlock()
	if !l.wakeDisabled {
		l.eventfd.Signal()
	}
}

func (l *Loop) disableWakeupsPermanently() {
	l.wakeMu.Lock()
	defer l.wakeMu.Unlock()
	l.wakeDisabled = true
}

func (l *Loop) PerformActionsLater(c *engine.Conn) {
	if n := len(l.pendingActions); n == 0 || l.pendingActions[n-1] != c {
		l.pendingActions = append(l.pendingActions, c)
	}
}

func (l *Loop) performPendingActions() {
	for i := 0; i < len(l.pendingActions); i++ {
		if c := l.pendingActions[i]; c.FD() >= 0 && c.DriverFlags()&(Busy|Connecting) == 0 && c.IsOpen() {
			l.driver.PerformActions(c)
		}
	}
	clear(l.pendingActions)
	l.pendingActions = l.pendingActions[:0]
}

// ForEachConn calls visit for every connection, including those that are being dialled.
func (l *Loop) ForEachConn(visit func(*engine.Conn)) {
	l.conns.forEachConnInUse(0, l.conns.slotCount, visit)
}

// AbortConnOrFailDial aborts an open connection or makes a dial fail. If a worker uses the connection, the connection
// is aborted when the worker returns it.
func (l *Loop) AbortConnOrFailDial(c *engine.Conn, reason error) {
	switch {
	case c.DriverFlags()&Connecting != 0:
		l.failDial(c, reason)
	case c.DriverFlags()&Busy != 0:
		l.DeferUntilWorkerReturns(c, func() { c.Abort(reason) })
	case c.IsOpen():
		c.Abort(reason)
		l.PerformActionsLater(c)
	}
}

func (l *Loop) dequeueRequestsAndRunCalls() {
	if l.hasRemoteRequests.Load() {
		l.mu.Lock()
		l.dials.requests = append(l.dials.requests, l.dialRequests...)
		for _, c := range l.newBroadcasts {
			l.broadcasts.add(c)
		}
		clear(l.newBroadcasts)
		l.runningCalls = append(l.runningCalls, l.remoteCalls...)
		l.dialRequests, l.newBroadcasts, l.remoteCalls = l.dialRequests[:0], l.newBroadcasts[:0], nil
		l.hasRemoteRequests.Store(false)
		l.mu.Unlock()
	}
	for len(l.runningCalls) > 0 {
		do := l.runningCalls[0]
		l.runningCalls = l.runningCalls[1:]
		do()
	}
	l.runningCalls = nil
}

type dialStarter struct {
	loop     *Loop
	requests []engine.DialRequest // taken by the loop and not started
}

func (q *dialStarter) runIfDue(time.Duration) {
	for limit := dialBatch; limit > 0 && len(q.requests) > 0; limit-- {
		if request := q.takeOneDialOfFirstRequest(); !q.loop.startDelegateOrFailDial(request) {
			q.requests = slices.Insert(q.requests, 0, request)
			return
		}
	}
}

func (q *dialStarter) nextDue() (at time.Duration, ok bool) { return 0, len(q.requests) > 0 }

func (q *dialStarter) takeOneDialOfFirstRequest() engine.DialRequest {
	d := q.requests[0]
	if d.Count == 1 {
		q.requests = q.requests[1:]
	} else {
		q.requests[0].Count--
	}
	d.Count = 1
	return d
}

func (l *Loop) failQueuedDials() {
	for len(l.dials.requests) > 0 {
		l.host.NotifyDialFailed(l.dials.takeOneDialOfFirstRequest().Handler, engine.ErrClosed)
	}
}

// startDelegateOrFailDial starts one dial. If this loop is full, it passes the dial to another loop. If the other
// loop's request queue is full, needsNoRetry is false, and the caller must try again.
func (l *Loop) startDelegateOrFailDial(request engine.DialRequest) (needsNoRetry bool) {
	if l.requestedStopStage.Load() >= stageStopping {
		l.host.NotifyDialFailed(request.Handler, engine.ErrClosed)
		return true
	}
	if l.isFull() {
		return l.delegateOrFailDial(request)
	}
	if !l.engine.admission.AcquireConn() {
		l.host.NotifyDialFailed(request.Handler, engine.ErrFull)
		return true
	}
	start := engine.MonotonicNow()
	fd, err := l.startConnect(request)
	if err == nil && fd >= engine.MaxFD {
		sock.Close(fd)
		err = syscall.EMFILE
	}
	if err != nil {
		l.engine.admission.ReleaseConn()
		if errors.Is(err, syscall.EMFILE) && l.lowerCapacityToUsed() {
			return l.delegateOrFailDial(request)
		}
		l.host.NotifyDialFailed(request.Handler, err)
		return true
	}
	c := l.acquireConnForFD(fd)
	c.SetDriverFlags(Connecting)
	c.OnDialling(request.Target, start)
	if request.Handler != nil {
		c.SetConnHandler(request.Handler)
	}
	if request.Timeout > 0 {
		c.SetDialTimeout(start + request.Timeout)
	}
	if errno := l.driver.WatchForInputOrConnect(c); errno != 0 {
		l.failDial(c, errno)
	} else {
		l.UpdateExpiryTracking(c)
	}
	return true
}

// shutdownTimedOutDial shuts down the socket of a dial that has timed out. The driver then notices the end of the dial
// and calls FinishDial.
func (l *Loop) shutdownTimedOutDial(c *engine.Conn) {
	c.SetDriverFlags(c.DriverFlags() | DialTimedOut)
	sock.Shutdown(c.FD())
}

func (l *Loop) startConnect(request engine.DialRequest) (int32, error) {
	options := l.engine.cfg.SocketOptions(true)
	if request.Path != "" {
		return sock.StartDialUnix(request.Path, options)
	}
	return sock.StartDial(request.Target, request.Source, options)
}

// FinishDial ends a dial. It opens the connection or, if the socket has an error, reports the failure.
func (l *Loop) FinishDial(c *engine.Conn) {
	errno := sock.TakeSocketError(c.FD())
	if c.DriverFlags()&DialTimedOut != 0 {
		errno = syscall.ETIMEDOUT
	}
	if errno == 0 {
		c.SetDriverFlags(c.DriverFlags() &^ Connecting)
		errno = l.driver.WatchEstablished(c)
	}
	if errno != 0 {
		l.failDial(c, errno)
		return
	}
	c.OnOpen(c.Peer(), true)
	l.driver.PerformActions(c)
}

func (l *Loop) failDial(c *engine.Conn, err error) {
	if c.DriverFlags()&DialTimedOut != 0 {
		err = engine.ErrDialTimeout
	}
	c.SetDriverFlags(c.DriverFlags() &^ Connecting)
	owned := c.ResetFailedDial()
	l.driver.DropUnopened(c)
	l.host.NotifyDialFailed(owned, err)
}
