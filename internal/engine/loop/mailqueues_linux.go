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
	// mailDistributedPerTurn is the most mail that a turn puts into queues, mailConnsPerTurn the most
	// connections that it gives theirs, and mailClockCheck how much mail one gets
	// without a look at the clock.
	mailDistributedPerTurn = 16 << 10
	mailConnsPerTurn       = 256
	mailClockCheck         = 32
	// maxMailQueues is from how many queues on no more mail is put into any: a message to a
	// million takes memory for those whose turn is near. As many empty ones are kept,
	// each with room for maxSpareMail pieces of mail and maxSpareData bytes at the most.
	maxMailQueues = 1 << 10
	maxSpareMail  = 16
	maxSpareData  = 256
)

// mailQueueSet is mail that has been taken and not given out.
type mailQueueSet struct {
	unsorted      []engine.Mail // what is not in a queue yet, the last to be taken
	unsortedData  []byte        // and its bytes
	nextRecipient int           // whose turn it is, where the first is for many
	batchMail     []engine.Mail // the room of both
	batchData     []byte

	byConn map[*engine.Conn]*connMailQueue
	ready  deque[*connMailQueue] // those that have some, the longest ago first
	spare  []*connMailQueue
	count  int // how much mail is in queues,
	bytes  int // and its bytes that are not shared
	// queueMemory is the memory of the queues, busy that of the mail for connections that are with
	// workers, and counted how much of both the loop's counters have.
	queueMemory, deferredMemory, countedMemory int
}

// hasUndelivered says whether there is mail to give out.
func (p *mailQueueSet) hasUndelivered() bool { return p.ready.n > 0 || len(p.unsorted) > 0 }

// connMailQueue is mail for one connection.
type connMailQueue struct {
	conn       *engine.Conn
	mail       []engine.Mail
	data       []byte
	delivered  int // pieces of mail that were delivered
	dataOffset int // their bytes in data
}

// dequeue takes the next piece of mail, which is given out now.
func (r *connMailQueue) dequeue() (m engine.Mail, data []byte) {
	m = r.mail[r.delivered]
	r.delivered++
	data = r.data[r.dataOffset : r.dataOffset+int(m.Size)]
	r.dataOffset += int(m.Size)
	return m, data
}

// enqueue appends mail. It gives how much more memory the run takes then.
func (r *connMailQueue) enqueue(m engine.Mail, data []byte) (addedBytes int) {
	before := r.memoryBytes()
	r.mail = append(r.mail, m)
	r.data = append(r.data, data...)
	return r.memoryBytes() - before
}

func (r *connMailQueue) memoryBytes() int { return cap(r.mail)*engine.MailSize + cap(r.data) }

// distributeMail puts some mail into queues.
func (p *mailQueueSet) distributeMail(mailbox *engine.Mailbox) {
	if len(p.unsorted) == 0 {
		if p.count >= mailbox.Max || p.bytes >= mailbox.MaxBytes {
			return
		}
		p.batchMail, p.batchData = mailbox.Take()
		p.unsorted, p.unsortedData = p.batchMail, p.batchData
	}
	if p.byConn == nil {
		p.byConn = make(map[*engine.Conn]*connMailQueue)
	}
	for limit := mailDistributedPerTurn; limit > 0 && len(p.unsorted) > 0 && p.ready.n < maxMailQueues; {
		n := p.count
		if p.nextRecipient = p.unsorted[0].Some(p.nextRecipient, min(limit, maxMailQueues), p.enqueue); p.nextRecipient == 0 {
			p.unsorted = p.unsorted[1:]
		}
		limit -= max(p.count-n, 1)
	}
	if len(p.unsorted) == 0 {
		p.countedMemory += mailbox.Done(p.batchMail, p.batchData) // and is held no more
		p.batchMail, p.batchData, p.unsortedData = nil, nil, nil
	}
}

// enqueue puts mail into the queue of its connection.
func (p *mailQueueSet) enqueue(m engine.Mail) {
	queue := p.byConn[m.Conn]
	if queue == nil {
		if n := len(p.spare) - 1; n >= 0 {
			queue, p.spare[n] = p.spare[n], nil // it may grow, and then it does not come back
			p.spare = p.spare[:n]
		} else {
			queue = new(connMailQueue)
		}
		queue.conn = m.Conn
		p.queueMemory += queue.memoryBytes()
		p.byConn[m.Conn] = queue
		p.ready.pushBack(queue)
	}
	p.queueMemory += queue.enqueue(m, p.unsortedData[:m.Size])
	p.unsortedData = p.unsortedData[m.Size:]
	p.count++
	p.bytes += int(m.Size)
}

// dequeueConn gives the mail of the connection whose turn it is.
func (p *mailQueueSet) dequeueConn() *connMailQueue {
	queue := p.ready.front()
	p.ready.popFront()
	return queue
}

// requeueOrRelease has mail that is left wait for another turn.
func (p *mailQueueSet) requeueOrRelease(queue *connMailQueue) {
	queue.mail, queue.delivered = slices.Delete(queue.mail, 0, queue.delivered), 0
	if len(queue.mail) == 0 || queue.dataOffset > len(queue.data)/2 { // so that one that is never empty does not creep
		queue.data, queue.dataOffset = queue.data[:copy(queue.data, queue.data[queue.dataOffset:])], 0
	}
	if len(queue.mail) > 0 {
		p.ready.pushBack(queue)
		return
	}
	delete(p.byConn, queue.conn)
	queue.conn = nil
	p.queueMemory -= queue.memoryBytes()
	if len(p.spare) < maxMailQueues && cap(queue.mail) <= maxSpareMail && cap(queue.data) <= maxSpareData {
		p.spare = append(p.spare, queue)
	}
	if p.ready.n == 0 && len(p.ready.ring) > 4*maxMailQueues {
		p.ready, p.byConn = deque[*connMailQueue]{}, nil
	}
}

// hasMail reports whether there is mail to give out.
func (l *Loop) hasMail() bool { return l.mailQueues.hasUndelivered() || l.mailbox.Waiting() }

// countMailMemory counts the memory of mail that is not given out.
func (l *Loop) countMailMemory() {
	p := &l.mailQueues
	if n := p.queueMemory + p.deferredMemory - p.countedMemory; n != 0 {
		l.counters.Add(engine.Buffered, int64(n))
		p.countedMemory += n
	}
}

// deliverMail gives mail to connections, and settles each after its own, until the slice
// is over.
func (l *Loop) deliverMail() {
	p := &l.mailQueues
	if !l.hasMail() {
		return
	}
	l.phase.Store(phaseMail)
	defer l.countMailMemory()
	if len(p.unsorted) > 0 || l.mailbox.Waiting() {
		p.distributeMail(&l.mailbox)
	}
	end := engine.Since() + maxTaskTime
	for n := 0; n < mailConnsPerTurn && p.ready.n > 0; n++ {
		queue := p.dequeueConn()
		c := queue.conn
		over := l.deliverConnMail(queue, end)
		if c.FD() >= 0 && c.Armed()&Busy == 0 && c.IsOpen() {
			l.driver.PerformActions(c)
		}
		if over || engine.Since() >= end {
			return
		}
	}
}

// deliverConnMail gives a connection its mail, now or when it is back, up to a time. It says
// whether that has come.
func (l *Loop) deliverConnMail(queue *connMailQueue, deadline time.Duration) (over bool) {
	defer l.mailQueues.requeueOrRelease(queue) // also when the handler ends the goroutine
	for c := queue.conn; queue.delivered < len(queue.mail) && !over; {
		m, data := queue.dequeue()
		l.mailQueues.count--
		l.mailQueues.bytes -= int(m.Size)
		if c.Armed()&Busy == 0 || m.Late() {
			c.Mailed(m, data)
		} else {
			l.deferMail(m, data)
		}
		over = queue.delivered%mailClockCheck == 0 && engine.Since() >= deadline
	}
	return over
}
