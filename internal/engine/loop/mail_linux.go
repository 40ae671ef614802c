package loop

import (
	"slices"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is how mail gets to its connections. The loop takes what waits in the
// mailbox and puts it into a queue for each connection; the connections take turns. So
// all mail that has come for one goes out in one send, and few hold an output buffer at
// a time. A turn of the loop does a slice of it, and what comes meanwhile joins what
// its connection is still to get. The queues have the bounds of the mailbox: when they
// hold as much, no more is taken and mail waits there. The memory of all of it is counted
// until it is in the outputs of its connections, which are counted themselves.

const (
	// sortBatch is the most mail that a turn puts into queues, mailBatch the most
	// connections that it gives theirs, and mailLook how much mail one gets
	// without a look at the clock.
	sortBatch = 16 << 10
	mailBatch = 256
	mailLook  = 32
	// maxRuns is from how many queues on no more mail is put into any: a message to a
	// million takes memory for those whose turn is near. As many empty ones are kept,
	// each with room for keepMail pieces of mail and keepData bytes at the most.
	maxRuns  = 1 << 10
	keepMail = 16
	keepData = 256
)

// post is mail that has been taken and not given out.
type post struct {
	mail []engine.QueuedRequest // what is not in a queue yet, the last to be taken
	data []byte                 // and its bytes
	to   int                    // whose turn it is, where the first is for many
	all  []engine.QueuedRequest // the room of both
	room []byte

	runs  map[*engine.Conn]*mailRun
	turns deque[*mailRun] // those that have some, the longest ago first
	spare []*mailRun
	n     int // how much mail is in queues,
	bytes int // and its bytes that are not shared
	// held is the memory of the queues, busy that of the mail for connections that are with
	// workers, and counted how much of both the loop's counters have.
	held, busy, counted int
}

// left says whether there is mail to give out.
func (p *post) left() bool { return p.turns.n > 0 || len(p.mail) > 0 }

// mailRun is mail for one connection.
type mailRun struct {
	conn  *engine.Conn
	mail  []engine.QueuedRequest
	data  []byte
	given int // pieces of mail that were delivered
	at    int // their bytes in data
}

// next takes the next piece of mail, which is given out now.
func (r *mailRun) next() (m engine.QueuedRequest, data []byte) {
	m = r.mail[r.given]
	r.given++
	data = r.data[r.at : r.at+int(m.Size)]
	r.at += int(m.Size)
	return m, data
}

// put appends mail. It gives how much more memory the run takes then.
func (r *mailRun) put(m engine.QueuedRequest, data []byte) (more int) {
	before := r.memory()
	r.mail = append(r.mail, m)
	r.data = append(r.data, data...)
	return r.memory() - before
}

func (r *mailRun) memory() int { return cap(r.mail)*engine.QueuedRequestSize + cap(r.data) }

// sort puts some mail into queues.
func (p *post) sort(b *engine.Mailbox) {
	if len(p.mail) == 0 {
		if p.n >= b.MaxRequests || p.bytes >= b.MaxBytes {
			return
		}
		p.all, p.room = b.TakeAll()
		p.mail, p.data = p.all, p.room
	}
	if p.runs == nil {
		p.runs = make(map[*engine.Conn]*mailRun)
	}
	for room := sortBatch; room > 0 && len(p.mail) > 0 && p.turns.n < maxRuns; {
		n := p.n
		if p.to = p.mail[0].ForEachConn(p.to, min(room, maxRuns), p.queue); p.to == 0 {
			p.mail = p.mail[1:]
		}
		room -= max(p.n-n, 1)
	}
	if len(p.mail) == 0 {
		p.counted += b.Recycle(p.all, p.room) // and is held no more
		p.all, p.room, p.data = nil, nil, nil
	}
}

// queue puts mail into the queue of its connection.
func (p *post) queue(m engine.QueuedRequest) {
	run := p.runs[m.Conn]
	if run == nil {
		if n := len(p.spare) - 1; n >= 0 {
			run, p.spare[n] = p.spare[n], nil // it may grow, and then it does not come back
			p.spare = p.spare[:n]
		} else {
			run = new(mailRun)
		}
		run.conn = m.Conn
		p.held += run.memory()
		p.runs[m.Conn] = run
		p.turns.pushBack(run)
	}
	p.held += run.put(m, p.data[:m.Size])
	p.data = p.data[m.Size:]
	p.n++
	p.bytes += int(m.Size)
}

// next gives the mail of the connection whose turn it is.
func (p *post) next() *mailRun {
	run := p.turns.front()
	p.turns.popFront()
	return run
}

// again has mail that is left wait for another turn.
func (p *post) again(run *mailRun) {
	run.mail, run.given = slices.Delete(run.mail, 0, run.given), 0
	if len(run.mail) == 0 || run.at > len(run.data)/2 { // so that one that is never empty does not creep
		run.data, run.at = run.data[:copy(run.data, run.data[run.at:])], 0
	}
	if len(run.mail) > 0 {
		p.turns.pushBack(run)
		return
	}
	delete(p.runs, run.conn)
	run.conn = nil
	p.held -= run.memory()
	if len(p.spare) < maxRuns && cap(run.mail) <= keepMail && cap(run.data) <= keepData {
		p.spare = append(p.spare, run)
	}
	if p.turns.n == 0 && len(p.turns.ring) > 4*maxRuns {
		p.turns, p.runs = deque[*mailRun]{}, nil
	}
}

// hasMail reports whether there is mail to give out.
func (l *Loop) hasMail() bool { return l.post.left() || l.box.HasRequests() }

// countMail counts the memory of mail that is not given out.
func (l *Loop) countMail() {
	p := &l.post
	if n := p.held + p.busy - p.counted; n != 0 {
		l.counters.Add(engine.Buffered, int64(n))
		p.counted += n
	}
}

// takeMail gives mail to connections, and settles each after its own, until the slice
// is over.
func (l *Loop) takeMail() {
	p := &l.post
	if !l.hasMail() {
		return
	}
	l.doing.Store(mail)
	defer l.countMail()
	if len(p.mail) > 0 || l.box.HasRequests() {
		p.sort(&l.box)
	}
	end := engine.MonotonicNow() + slice
	for n := 0; n < mailBatch && p.turns.n > 0; n++ {
		run := p.next()
		c := run.conn
		over := l.deliver(run, end)
		if c.FD() >= 0 && c.DriverFlags()&Busy == 0 && c.IsOpen() {
			l.driver.Settle(c)
		}
		if over || engine.MonotonicNow() >= end {
			return
		}
	}
}

// deliver gives a connection its mail, now or when it is back, up to a time. It says
// whether that has come.
func (l *Loop) deliver(run *mailRun, end time.Duration) (over bool) {
	defer l.post.again(run) // also when the handler ends the goroutine
	for c := run.conn; run.given < len(run.mail) && !over; {
		m, data := run.next()
		l.post.n--
		l.post.bytes -= int(m.Size)
		if c.DriverFlags()&Busy == 0 || m.IsStale() {
			c.OnRequest(m, data)
		} else {
			l.queueMail(m, data)
		}
		over = run.given%mailLook == 0 && engine.MonotonicNow() >= end
	}
	return over
}
