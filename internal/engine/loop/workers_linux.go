package loop

import (
	"slices"

	"github.com/myriad-go/myriad/internal/engine"
)

// Calling handlers on workers.
//
// A connection whose handler must be called is submitted to the pool and belongs to the worker until it
// returns through Loop.returned. Meanwhile, or while it waits for the pool, it is Busy: the loop and its
// driver access only its bits, slot and descriptor. Events of the connection are deferred until it returns,
// in order. The driver makes sure that it is not read from.

// CallHandlerOrSubmit calls the handler, or submits c to the pool if handlers run on workers. It reports whether c
// still belongs to the loop.
func (l *Loop) CallHandlerOrSubmit(c *engine.Conn) (stillOwned bool) {
	if !l.host.OnWorkers || c.IsRelayed() {
		c.MakeDueHandlerCalls()
		return true
	}
	return l.submitToPool(c)
}

// submitToPool submits c to the pool. If the pool is full, c waits, unless its input may be shed. It reports
// whether c still belongs to the loop.
func (l *Loop) submitToPool(c *engine.Conn) (stillOwned bool) {
	if l.submitQueue.closeReason == engine.ErrPoolClosed {
		return l.closeWithoutWorker(c)
	}
	c.RecordSubmittedTime()
	c.SetDriverFlags(c.DriverFlags() | Busy)
	l.busyConns++
	rejection := l.submitAfterWaiting(c)
	switch {
	case rejection == nil:
		return false
	case l.submitQueue.closeReason != nil:
		l.reclaimFromWorker(c)
		return l.closeWithoutWorker(c)
	case c.CanShed():
		l.reclaimFromWorker(c)
		c.ShedInput(rejection)
		return true
	}
	l.submitQueue.pushBack(c)
	return false
}

func (l *Loop) reclaimFromWorker(c *engine.Conn) {
	c.SetDriverFlags(c.DriverFlags() &^ Busy)
	l.busyConns--
	c.ExcludeWorkerTimeFromTimeouts()
}

// DeferUntilWorkerReturns runs action when a busy connection returns.
func (l *Loop) DeferUntilWorkerReturns(c *engine.Conn, action func()) {
	l.addDeferredAction(c, deferredAction{do: action})
}

// deferredAction runs when a busy connection returns. Mail is delivered even if the connection has closed:
// that releases what was reserved for it and tells those that wait.
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

// deferMailUntilWorkerReturns keeps mail for a busy connection, in one queue unless another action was deferred in between.
// Bytes for a connection that will be closed are dropped.
func (l *Loop) deferMailUntilWorkerReturns(m engine.QueuedRequest, data []byte) {
	if m.Conn.DriverFlags()&CloseOnReturn != 0 && m.DropIfCarriesBytes() {
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

// deferredMailBytes returns the memory of mail that is kept for a busy connection.
func (l *Loop) deferredMailBytes(c *engine.Conn) (n int) {
	for _, action := range l.deferred[c] {
		if action.mail != nil {
			n += action.mail.memoryBytes()
		}
	}
	return n
}

// dropDeferredMailAndClose drops output that is kept for a busy connection and closes it when it returns.
func (l *Loop) dropDeferredMailAndClose(c *engine.Conn) {
	for _, action := range l.deferred[c] {
		if run := action.mail; run != nil {
			l.mailQueues.deferredMemory -= run.memoryBytes()
			run.mail, run.data = slices.Clip(slices.DeleteFunc(run.mail, engine.QueuedRequest.DropIfCarriesBytes)), nil
			l.mailQueues.deferredMemory += run.memoryBytes()
		}
	}
	l.updateMailMemoryCounter()
	l.abortWhenWorkerReturns(c, engine.ErrOverBudget)
}

// abortWhenWorkerReturns closes a busy connection when it returns.
func (l *Loop) abortWhenWorkerReturns(c *engine.Conn, reason error) {
	if c.DriverFlags()&CloseOnReturn == 0 {
		c.SetDriverFlags(c.DriverFlags() | CloseOnReturn)
		l.DeferUntilWorkerReturns(c, func() { c.Abort(reason) })
	}
}

func (l *Loop) discardDeferred(c *engine.Conn) {
	l.mailQueues.deferredMemory -= l.deferredMailBytes(c)
	delete(l.deferred, c)
	delete(l.deferredMail, c)
	l.updateMailMemoryCounter()
}

// deliverAllDespiteGoexit delivers all mail. If a handler calls runtime.Goexit, the rest is released.
func (r *connMailQueue) deliverAllDespiteGoexit() {
	defer r.deliverRemaining()
	r.deliverRemaining()
}

func (r *connMailQueue) deliverRemaining() {
	for r.delivered < len(r.mail) {
		m, data := r.dequeue()
		m.Conn.HandleOrDeferRequest(m, data)
	}
}

// returnedConn is a connection that the pool has returned.
type returnedConn struct {
	conn      *engine.Conn
	rejection error // why no worker has run it; nil if one has
}

// ReturnFromWorker implements engine.Loop.
func (l *Loop) ReturnFromWorker(c *engine.Conn, rejection error) {
	l.mu.Lock()
	l.returned = append(l.returned, returnedConn{c, rejection})
	l.hasReturned.Store(true)
	l.mu.Unlock()
	l.wake()
}

// resumeConnsReturnedByPool resumes the connections that the pool has returned. Those that have not run, and may not be
// shed, stay busy and wait.
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
		} else if l.recordPoolRejection(returned.rejection); l.submitQueue.closeReason == nil && !returned.conn.CanShed() {
			l.shedConns = append(l.shedConns, returned.conn)
			continue
		}
		l.resumeReturnedConn(returned.conn, returned.rejection)
	}
	l.requeueShedAndSubmitWaiting(ran, l.shedConns, l.host.Clock())
	clear(l.shedConns)
	l.shedConns = l.shedConns[:0]
}

// resumeReturnedConn resumes a returned connection: it sheds its input if rejection is not nil, and runs its deferred
// actions. That happens even if a handler calls runtime.Goexit: the connection has failed then, and no
// handler is called any more.
func (l *Loop) resumeReturnedConn(c *engine.Conn, rejection error) {
	l.reclaimFromWorker(c)
	c.AddMissedMessages(l.missedBroadcasts[c])
	delete(l.missedBroadcasts, c)
	actions := l.deferred[c]
	if c.IsClosedDeferred() {
		if rejection != nil {
			c.UndeferClosed()
		}
		actions = slices.DeleteFunc(actions, func(k deferredAction) bool { return k.mail == nil })
		defer l.freeConnSlot(c)
		defer l.discardDeferred(c)
		defer runDeferredActions(&actions)
		c.OnClosed()
		return
	}
	settled := false
	defer func() {
		if !settled {
			runDeferredActions(&actions)
			l.discardDeferred(c)
		}
	}()
	switch {
	case rejection == nil:
	case l.submitQueue.closeReason != nil:
		c.CloseWith(l.submitQueue.closeReason)
	default:
		c.ShedInput(rejection)
	}
	runDeferredActions(&actions)
	l.discardDeferred(c)
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
