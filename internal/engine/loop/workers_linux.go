package loop

import (
	"slices"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is how handlers get to run on workers.
//
// A connection whose handler is to be called is handed to the pool and is the
// worker's until it comes back through returned. While it is away, or waits for
// room in the pool, it is Busy: the loop and its driver look at nothing of it
// but its bits, slot and descriptor. What happens to it meanwhile is kept as
// functions and done when it is back. So the order of its events is kept, and
// nothing is lost; that it reads no more meanwhile is the driver's care.

// CallHandler has the handler called: at once, or by a worker. It says whether the
// connection is still the loop's.
func (l *Loop) CallHandler(c *engine.Conn) (here bool) {
	if !l.host.OnWorkers || c.Relayed() {
		c.Deliver()
		return true
	}
	return l.submitToPool(c)
}

// submitToPool gives a connection to the pool. One that the pool has no room for waits,
// unless its input may be shed. It says whether the connection is still the
// loop's.
func (l *Loop) submitToPool(c *engine.Conn) (here bool) {
	if l.submitQueue.closeReason == engine.ErrPoolClosed {
		return l.closeWithoutWorker(c)
	}
	c.HandedOver()
	c.SetArmed(c.Armed() | Busy)
	l.busyConns++
	rejection := l.submitInOrder(c)
	switch {
	case rejection == nil:
		return false
	case l.submitQueue.closeReason != nil:
		l.reclaimFromWorker(c)
		return l.closeWithoutWorker(c)
	case c.MayShed():
		l.reclaimFromWorker(c)
		c.Shed(rejection)
		return true
	}
	l.submitQueue.pushBack(c)
	return false
}

// reclaimFromWorker makes a busy connection the loop's again.
func (l *Loop) reclaimFromWorker(c *engine.Conn) {
	c.SetArmed(c.Armed() &^ Busy)
	l.busyConns--
	c.TakenBack()
}

// DeferUntilReturned keeps what is to be done with a busy connection when it is back.
func (l *Loop) DeferUntilReturned(c *engine.Conn, action func()) {
	l.addDeferred(c, deferredAction{do: action})
}

// deferredAction is what is to be done with a busy connection when it is back. Mail is given out also
// when it has closed: what was reserved for it is released then, and who waits hears of it.
type deferredAction struct {
	do   func()
	mail *connMailQueue // nil if it is none
}

func (l *Loop) addDeferred(c *engine.Conn, action deferredAction) {
	if l.deferred == nil {
		l.deferred = make(map[*engine.Conn][]deferredAction)
	}
	l.deferred[c] = append(l.deferred[c], action)
	delete(l.deferredMail, c) // mail that comes now comes after it
}

// deferMail keeps mail for a busy connection: in one run while nothing else comes in
// between. Bytes for one that is to be closed are dropped.
func (l *Loop) deferMail(m engine.Mail, data []byte) {
	if m.Conn.Armed()&CloseOnReturn != 0 && m.Drop() {
		return
	}
	queue := l.deferredMail[m.Conn]
	if queue == nil {
		queue = new(connMailQueue)
		l.addDeferred(m.Conn, deferredAction{queue.deliverAll, queue})
		if l.deferredMail == nil {
			l.deferredMail = make(map[*engine.Conn]*connMailQueue)
		}
		l.deferredMail[m.Conn] = queue
	}
	l.mailQueues.deferredMemory += queue.enqueue(m, data)
}

// deferredMailBytes is the memory of the mail that is kept for a busy connection.
func (l *Loop) deferredMailBytes(c *engine.Conn) (n int) {
	for _, kept := range l.deferred[c] {
		if kept.mail != nil {
			n += kept.mail.memoryBytes()
		}
	}
	return n
}

// dropDeferredMailAndClose drops what is kept to be sent, and has the connection closed when it is back.
func (l *Loop) dropDeferredMailAndClose(c *engine.Conn) {
	for _, kept := range l.deferred[c] {
		if run := kept.mail; run != nil {
			l.mailQueues.deferredMemory -= run.memoryBytes()
			run.mail, run.data = slices.Clip(slices.DeleteFunc(run.mail, engine.Mail.Drop)), nil
			l.mailQueues.deferredMemory += run.memoryBytes()
		}
	}
	l.countMailMemory()
	l.closeWhenReturned(c, engine.ErrOverBudget)
}

// closeWhenReturned has a busy connection closed when it is back.
func (l *Loop) closeWhenReturned(c *engine.Conn, reason error) {
	if c.Armed()&CloseOnReturn == 0 {
		c.SetArmed(c.Armed() | CloseOnReturn)
		l.DeferUntilReturned(c, func() { c.Abort(reason) })
	}
}

// forgetDeferred forgets what was kept for a connection that is back.
func (l *Loop) forgetDeferred(c *engine.Conn) {
	l.mailQueues.deferredMemory -= l.deferredMailBytes(c)
	delete(l.deferred, c)
	delete(l.deferredMail, c)
	l.countMailMemory()
}

// deliverAll gives a connection all of its mail, also when its handler ends the goroutine: then the
// rest is released.
func (r *connMailQueue) deliverAll() {
	defer r.deliverRemaining()
	r.deliverRemaining()
}

func (r *connMailQueue) deliverRemaining() {
	for r.delivered < len(r.mail) {
		m, data := r.dequeue()
		m.Conn.Mailed(m, data)
	}
}

// returnedConn is a connection that comes back from the pool.
type returnedConn struct {
	conn      *engine.Conn
	rejection error // why no worker has run it, nil if one has
}

// TakeBack implements engine.Loop.
func (l *Loop) TakeBack(c *engine.Conn, rejection error) {
	l.mu.Lock()
	l.returned = append(l.returned, returnedConn{c, rejection})
	l.hasReturned.Store(true)
	l.mu.Unlock()
	l.wake()
}

// resumeReturned takes the connections that were given back. What the pool has not run,
// and may not be shed, stays busy and waits.
func (l *Loop) resumeReturned() {
	if l.returnBatchDone == len(l.returnBatch) { // and no turn has been cut short
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
		} else if l.recordPoolRejection(returned.rejection); l.submitQueue.closeReason == nil && !returned.conn.MayShed() {
			l.shedConns = append(l.shedConns, returned.conn)
			continue
		}
		l.resumeConn(returned.conn, returned.rejection)
	}
	l.requeueShedAndSubmit(ran, l.shedConns, l.host.Clock())
	clear(l.shedConns)
	l.shedConns = l.shedConns[:0]
}

// resumeConn goes on with a connection that is back: with its input, if that is shed, and
// with what has come meanwhile. All of that is done also when a handler ends the goroutine: the
// connection has failed then, so that no handler is called any more.
func (l *Loop) resumeConn(c *engine.Conn, rejection error) {
	l.reclaimFromWorker(c)
	c.Miss(l.missedBroadcasts[c])
	delete(l.missedBroadcasts, c)
	kept := l.deferred[c]
	if c.ClosedDeferred() {
		if rejection != nil {
			c.UndeferClosed()
		}
		kept = slices.DeleteFunc(kept, func(k deferredAction) bool { return k.mail == nil })
		defer l.freeConn(c)
		defer l.forgetDeferred(c)
		defer runDeferred(&kept)
		c.Finish()
		return
	}
	settled := false
	defer func() {
		if !settled {
			runDeferred(&kept)
			l.forgetDeferred(c)
		}
	}()
	switch {
	case rejection == nil:
	case l.submitQueue.closeReason != nil:
		c.CloseWith(l.submitQueue.closeReason)
	default:
		c.Shed(rejection)
	}
	runDeferred(&kept)
	l.forgetDeferred(c)
	settled = true
	l.driver.PerformActions(c)
}

func runDeferred(actions *[]deferredAction) {
	for len(*actions) > 0 {
		run := (*actions)[0].do
		*actions = (*actions)[1:]
		run()
	}
}
