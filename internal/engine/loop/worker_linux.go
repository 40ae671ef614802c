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

// Deliver has the handler called: at once, or by a worker. It says whether the
// connection is still the loop's.
func (l *Loop) Deliver(c *engine.Conn) (here bool) {
	if !l.host.OnWorkers || c.IsRelayed() {
		c.FeedHandler()
		return true
	}
	return l.handOver(c)
}

// handOver gives a connection to the pool. One that the pool has no room for waits,
// unless its input may be shed. It says whether the connection is still the
// loop's.
func (l *Loop) handOver(c *engine.Conn) (here bool) {
	if l.waiting.end == engine.ErrPoolClosed {
		return l.closeUnserved(c)
	}
	c.OnSubmittedToWorker()
	c.SetDriverFlags(c.DriverFlags() | Busy)
	l.busy++
	why := l.submit(c)
	switch {
	case why == nil:
		return false
	case l.waiting.end != nil:
		l.reclaim(c)
		return l.closeUnserved(c)
	case c.CanShed():
		l.reclaim(c)
		c.ShedInput(why)
		return true
	}
	l.waiting.pushBack(c)
	return false
}

// reclaim makes a busy connection the loop's again.
func (l *Loop) reclaim(c *engine.Conn) {
	c.SetDriverFlags(c.DriverFlags() &^ Busy)
	l.busy--
	c.OnReturnedFromWorker()
}

// Later keeps what is to be done with a busy connection when it is back.
func (l *Loop) Later(c *engine.Conn, do func()) { l.keep(c, later{do: do}) }

// later is what is to be done with a busy connection when it is back. Mail is given out also
// when it has closed: what was reserved for it is released then, and who waits hears of it.
type later struct {
	do   func()
	mail *mailRun // nil if it is none
}

func (l *Loop) keep(c *engine.Conn, what later) {
	if l.later == nil {
		l.later = make(map[*engine.Conn][]later)
	}
	l.later[c] = append(l.later[c], what)
	delete(l.runs, c) // mail that comes now comes after it
}

// queueMail keeps mail for a busy connection: in one run while nothing else comes in
// between. Bytes for one that is to be closed are dropped.
func (l *Loop) queueMail(m engine.QueuedRequest, data []byte) {
	if m.Conn.DriverFlags()&NoRoom != 0 && m.DropIfBytes() {
		return
	}
	run := l.runs[m.Conn]
	if run == nil {
		run = new(mailRun)
		l.keep(m.Conn, later{run.deliver, run})
		if l.runs == nil {
			l.runs = make(map[*engine.Conn]*mailRun)
		}
		l.runs[m.Conn] = run
	}
	l.post.busy += run.put(m, data)
}

// queued is the memory of the mail that is kept for a busy connection.
func (l *Loop) queued(c *engine.Conn) (n int) {
	for _, kept := range l.later[c] {
		if kept.mail != nil {
			n += kept.mail.memory()
		}
	}
	return n
}

// dropQueued drops what is kept to be sent, and has the connection closed when it is back.
func (l *Loop) dropQueued(c *engine.Conn) {
	for _, kept := range l.later[c] {
		if run := kept.mail; run != nil {
			l.post.busy -= run.memory()
			run.mail, run.data = slices.Clip(slices.DeleteFunc(run.mail, engine.QueuedRequest.DropIfBytes)), nil
			l.post.busy += run.memory()
		}
	}
	l.countMail()
	l.closeBusy(c, engine.ErrOverBudget)
}

// closeBusy has a busy connection closed when it is back.
func (l *Loop) closeBusy(c *engine.Conn, why error) {
	if c.DriverFlags()&NoRoom == 0 {
		c.SetDriverFlags(c.DriverFlags() | NoRoom)
		l.Later(c, func() { c.Abort(why) })
	}
}

// forgetLater forgets what was kept for a connection that is back.
func (l *Loop) forgetLater(c *engine.Conn) {
	l.post.busy -= l.queued(c)
	delete(l.later, c)
	delete(l.runs, c)
	l.countMail()
}

// deliver gives a connection all of its mail, also when its handler ends the goroutine: then the
// rest is released.
func (r *mailRun) deliver() {
	defer r.giveAll()
	r.giveAll()
}

func (r *mailRun) giveAll() {
	for r.given < len(r.mail) {
		m, data := r.next()
		m.Conn.OnRequest(m, data)
	}
}

// back is a connection that comes back from the pool.
type back struct {
	conn *engine.Conn
	why  error // why no worker has run it, nil if one has
}

// ReturnFromWorker implements engine.Loop.
func (l *Loop) ReturnFromWorker(c *engine.Conn, why error) {
	l.mu.Lock()
	l.returned = append(l.returned, back{c, why})
	l.hasReturned.Store(true)
	l.mu.Unlock()
	l.wake()
}

// takeBack takes the connections that were given back. What the pool has not run,
// and may not be shed, stays busy and waits.
func (l *Loop) takeBack() {
	if l.tookBack == len(l.takingBack) { // and no turn has been cut short
		if !l.hasReturned.Load() {
			return
		}
		l.mu.Lock()
		l.returned, l.takingBack, l.tookBack = l.takingBack[:0], l.returned, 0
		l.hasReturned.Store(false)
		l.mu.Unlock()
	}
	ran := 0
	for l.tookBack < len(l.takingBack) {
		b := l.takingBack[l.tookBack]
		l.takingBack[l.tookBack] = back{}
		l.tookBack++
		if b.why == nil {
			ran++
		} else if l.refused(b.why); l.waiting.end == nil && !b.conn.CanShed() {
			l.shed = append(l.shed, b.conn)
			continue
		}
		l.resume(b.conn, b.why)
	}
	l.offerAfterReturn(ran, l.shed, l.host.Clock())
	clear(l.shed)
	l.shed = l.shed[:0]
}

// resume goes on with a connection that is back: with its input, if that is shed, and
// with what has come meanwhile. All of that is done also when a handler ends the goroutine: the
// connection has failed then, so that no handler is called any more.
func (l *Loop) resume(c *engine.Conn, why error) {
	l.reclaim(c)
	c.AddMissedMessages(l.missed[c])
	delete(l.missed, c)
	kept := l.later[c]
	if c.IsClosedDeferred() {
		if why != nil {
			c.UndeferClosed()
		}
		kept = slices.DeleteFunc(kept, func(k later) bool { return k.mail == nil })
		defer l.free(c)
		defer l.forgetLater(c)
		defer doAll(&kept)
		c.OnClosed()
		return
	}
	settled := false
	defer func() {
		if !settled {
			doAll(&kept)
			l.forgetLater(c)
		}
	}()
	switch {
	case why == nil:
	case l.waiting.end != nil:
		c.CloseWith(l.waiting.end)
	default:
		c.ShedInput(why)
	}
	doAll(&kept)
	l.forgetLater(c)
	settled = true
	l.driver.Settle(c)
}

func doAll(kept *[]later) {
	for len(*kept) > 0 {
		do := (*kept)[0].do
		*kept = (*kept)[1:]
		do()
	}
}
