package loop

import (
	"slices"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file calls handlers on workers.
//
// A connection that needs a handler call is submitted to the pool. A worker owns the connection until the worker adds
// it to Loop.returned. While the connection is with a worker or waits for the pool, it is Busy. The loop and its driver
// may access only the driver flags, slot and descriptor of a Busy connection. They defer its events, in order, until
// the connection returns. The driver does not read from it.

// CallHandlerOrSubmit calls the handler of c. If handlers run on workers, it submits c to the worker pool instead,
// unless c is part of a relay. stillOwned reports whether the loop still owns c.
func (l *Loop) CallHandlerOrSubmit(c *engine.Conn) (stillOwned bool) {
	if !l.host.OnWorkers || c.IsRelayed() {
		c.MakeDeferredHandlerCalls()
		return true
	}
	return l.submitOrQueueOrShed(c)
}

func (l *Loop) submitOrQueueOrShed(c *engine.Conn) (stillOwned bool) {
	if l.submitQueue.closeReason == engine.ErrPoolClosed {
		return l.closeWithoutWorker(c)
	}
	if c.CanShed() && !c.TryAdmitToWorker() {
		c.CallShedHandler(engine.ErrOverloaded)
		return true
	}
	c.RecordSubmittedTime()
	c.SetDriverFlags(c.DriverFlags() | Busy)
	l.busyConns++
	rejection := l.submitBehindWaitingConns(c)
	switch {
	case rejection == nil:
		return false
	case l.submitQueue.closeReason != nil:
		l.reclaimFromWorker(c)
		return l.closeWithoutWorker(c)
	case c.CanShed():
		l.reclaimFromWorker(c)
		c.CallShedHandler(rejection)
		return true
	}
	l.submitQueue.PushBack(c)
	return false
}

func (l *Loop) reclaimFromWorker(c *engine.Conn) {
	c.SetDriverFlags(c.DriverFlags() &^ Busy)
	l.busyConns--
	c.ExcludeWorkerTimeFromTimeouts()
	c.AbandonTicket()
}

// DeferUntilWorkerReturns defers an action on c until the worker that is using c has returned c to the loop.
func (l *Loop) DeferUntilWorkerReturns(c *engine.Conn, action func()) {
	l.addDeferredAction(c, deferredAction{do: action})
}

// deferredAction is an action to run when a worker returns a connection.
type deferredAction struct {
	do   func()
	mail *connMailQueue // nil if the action is not mail
}

func (l *Loop) addDeferredAction(c *engine.Conn, action deferredAction) {
	if l.deferred == nil {
		l.deferred = make(map[*engine.Conn][]deferredAction)
	}
	l.deferred[c] = append(l.deferred[c], action)
	delete(l.deferredMail, c) // later mail must not overtake the action
}

func (l *Loop) deferMailUntilWorkerReturns(m engine.QueuedRequest, data []byte) {
	if m.Conn.DriverFlags()&CloseOnReturn != 0 && m.DropIfSendOrBroadcast() {
		return
	}
	queue := l.deferredMail[m.Conn]
	if queue == nil {
		queue = new(connMailQueue)
		l.addDeferredAction(m.Conn, deferredAction{queue.deliverAllDespiteGoexit, queue})
		if l.deferredMail == nil {
			l.deferredMail = make(map[*engine.Conn]*connMailQueue)
		}
		l.deferredMail[m.Conn] = queue
	}
	l.mailQueues.deferredMemory += queue.enqueue(m, data)
}

func (l *Loop) deferredMailMemory(c *engine.Conn) (n int) {
	for _, action := range l.deferred[c] {
		if action.mail != nil {
			n += action.mail.memoryBytes()
		}
	}
	return n
}

func (l *Loop) dropDeferredOutputAndAbortOnReturn(c *engine.Conn) {
	for _, action := range l.deferred[c] {
		if run := action.mail; run != nil {
			l.mailQueues.deferredMemory -= run.memoryBytes()
			run.mail, run.data = slices.Clip(slices.DeleteFunc(run.mail, engine.QueuedRequest.DropIfSendOrBroadcast)), nil
			l.mailQueues.deferredMemory += run.memoryBytes()
		}
	}
	l.updateMailMemoryCounter()
	l.abortWhenWorkerReturns(c, engine.ErrOverBudget)
}

func (l *Loop) abortWhenWorkerReturns(c *engine.Conn, reason error) {
	if c.DriverFlags()&CloseOnReturn == 0 {
		c.SetDriverFlags(c.DriverFlags() | CloseOnReturn)
		l.DeferUntilWorkerReturns(c, func() { c.Abort(reason) })
	}
}

func (l *Loop) discardDeferredActions(c *engine.Conn) {
	l.mailQueues.deferredMemory -= l.deferredMailMemory(c)
	delete(l.deferred, c)
	delete(l.deferredMail, c)
	l.updateMailMemoryCounter()
}

func (r *connMailQueue) deliverAllDespiteGoexit() {
	defer r.deliverRemaining()
	r.deliverRemaining()
}

func (r *connMailQueue) deliverRemaining() {
	for r.delivered < len(r.mail) {
		m, data := r.dequeue()
		m.Conn.HandleOrDeferForPendingLayer(m, data)
	}
}

type returnedConn struct {
	conn      *engine.Conn
	rejection error // why no worker has run conn; nil if a worker has run it
}

func (l *Loop) ReturnFromWorker(c *engine.Conn, rejection error) {
	l.mu.Lock()
	l.returned = append(l.returned, returnedConn{c, rejection})
	l.hasReturned.Store(true)
	l.mu.Unlock()
	l.wake()
}

func (l *Loop) resumeConnsReturnedByPool() {
	if l.returnBatchDone == len(l.returnBatch) { // the last batch was not cut short
		if !l.hasReturned.Load() {
			return
		}
		l.mu.Lock()
		l.returned, l.returnBatch, l.returnBatchDone = l.returnBatch[:0], l.returned, 0
		l.hasReturned.Store(false)
		l.mu.Unlock()
	}
	ran := 0
	for l.returnBatchDone < len(l.returnBatch) {
		returned := l.returnBatch[l.returnBatchDone]
		l.returnBatch[l.returnBatchDone] = returnedConn{}
		l.returnBatchDone++
		if returned.rejection == nil {
			ran++
		} else if l.saveRejectionCheckPoolClosed(returned.rejection); l.submitQueue.closeReason == nil && !returned.conn.CanShed() {
			l.shedConns = append(l.shedConns, returned.conn)
			continue
		}
		l.resumeReturnedConn(returned.conn, returned.rejection)
	}
	l.requeueShedAndSubmitWaiting(ran, l.shedConns, l.host.Clock())
	clear(l.shedConns)
	l.shedConns = l.shedConns[:0]
}

// resumeReturnedConn resumes a connection that the worker pool has returned. If a worker has run c, rejection is nil.
// Otherwise, rejection is the reason why the pool rejected c.
func (l *Loop) resumeReturnedConn(c *engine.Conn, rejection error) {
	l.reclaimFromWorker(c)
	c.AddDroppedAndScheduleMissed(l.missedBroadcasts[c])
	delete(l.missedBroadcasts, c)
	actions := l.deferred[c]
	if c.IsClosedDeferred() {
		if rejection != nil {
			c.UndeferClosed()
		}
		// Only mail is still delivered, because the senders of mail may be waiting.
		actions = slices.DeleteFunc(actions, func(k deferredAction) bool { return k.mail == nil })
		defer l.freeSlotAndResumeAccepting(c)
		defer l.discardDeferredActions(c)
		defer runDeferredActions(&actions)
		c.OnClosed()
		return
	}
	settled := false
	defer func() {
		if !settled {
			runDeferredActions(&actions)
			l.discardDeferredActions(c)
		}
	}()
	switch {
	case rejection == nil:
	case l.submitQueue.closeReason != nil:
		c.CloseWith(l.submitQueue.closeReason)
	default:
		c.CallShedHandler(rejection)
	}
	runDeferredActions(&actions)
	l.discardDeferredActions(c)
	settled = true
	l.driver.PerformActions(c)
}

func runDeferredActions(actions *[]deferredAction) {
	for len(*actions) > 0 {
		run := (*actions)[0].do
		*actions = (*actions)[1:]
		run()
	}
}
