package loop

import "github.com/myriad-go/myriad/internal/engine"

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
	if !l.host.Away {
		c.Deliver()
		return true
	}
	l.handOver(c)
	return false
}

// handOver gives a connection to the pool, or lets it wait for room there.
func (l *Loop) handOver(c *engine.Conn) {
	c.HandedOver()
	c.SetArmed(c.Armed() | Busy)
	l.busy++
	if len(l.waiting) > 0 || !l.group.cfg.Pool.TrySubmit(c) {
		l.waiting = append(l.waiting, c)
	}
}

// handOverWaiting gives the pool what has waited for room, in order.
func (l *Loop) handOverWaiting() {
	n := 0
	for n < len(l.waiting) && l.group.cfg.Pool.TrySubmit(l.waiting[n]) {
		n++
	}
	l.waiting = l.waiting[:copy(l.waiting, l.waiting[n:])]
}

// Later keeps what is to be done with a busy connection when it is back.
func (l *Loop) Later(c *engine.Conn, do func()) {
	if l.later == nil {
		l.later = make(map[*engine.Conn][]func())
	}
	l.later[c] = append(l.later[c], do)
	delete(l.runs, c) // mail that comes now comes after it
}

// mailRun is mail that came for a busy connection, with nothing else in between.
type mailRun struct {
	mail []engine.Mail
	data []byte
}

// mailLater keeps mail for a busy connection.
func (l *Loop) mailLater(m engine.Mail, data []byte) {
	run := l.runs[m.Conn]
	if run == nil {
		run = new(mailRun)
		l.Later(m.Conn, run.deliver)
		if l.runs == nil {
			l.runs = make(map[*engine.Conn]*mailRun)
		}
		l.runs[m.Conn] = run
	}
	run.mail = append(run.mail, m)
	run.data = append(run.data, data...)
}

func (r *mailRun) deliver() {
	rest := r.data
	for _, m := range r.mail {
		m.Conn.Mailed(m, rest[:m.Size])
		rest = rest[m.Size:]
	}
}

// giveBack is called by workers.
func (l *Loop) giveBack(c *engine.Conn) {
	l.mu.Lock()
	l.returned = append(l.returned, c)
	l.back.Store(true)
	l.mu.Unlock()
	l.rouse()
}

// takeBack takes the connections that workers have given back.
func (l *Loop) takeBack() {
	l.mu.Lock()
	l.returned, l.hands = l.hands[:0], l.returned
	l.back.Store(false)
	l.mu.Unlock()
	for _, c := range l.hands {
		c.SetArmed(c.Armed() &^ Busy)
		l.busy--
		c.TakenBack()
		if c.Parted() {
			delete(l.later, c) // it is closed: all that came late is void
			delete(l.runs, c)
			c.Finish()
			l.free(c)
			continue
		}
		for _, do := range l.later[c] {
			do()
		}
		delete(l.later, c)
		delete(l.runs, c)
		l.driver.Settle(c)
	}
	clear(l.hands)
	if len(l.waiting) > 0 {
		l.handOverWaiting()
	}
}
