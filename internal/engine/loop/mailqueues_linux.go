package loop

import (
	"slices"
	"time"

	"github.com/myriad-go/myriad/internal/deque"
	"github.com/myriad-go/myriad/internal/engine"
)

// This file delivers mail: requests from the mailbox. The loop distributes them to a queue for each connection and
// serves the queues in turn. So everything that waits for a connection goes out in one send, and few connections hold
// an output buffer at a time. A turn delivers mail for maxTaskTime; mail that arrives meanwhile joins the queue of its
// connection. The queues have the limits of the mailbox: if they are full, mail stays in the mailbox. The memory of
// mail is counted until it is in the connection's output, which has its own count.

const (
	mailDistributedPerTurn = 16 << 10
	mailConnsPerTurn       = 256
	mailClockCheck         = 32 // messages to one connection between two looks at the clock
	// maxMailQueues limits the queues in use, so that a message to a million connections takes memory only for
	// connections that are served soon. It also limits the spare queues.
	maxMailQueues = 1 << 10
	maxSpareMail  = 16  // maximum capacity of a spare queue in messages
	maxSpareData  = 256 // maximum capacity of a spare queue in bytes
)

// mailQueueSet contains requests that the loop has taken from its mailbox but has not yet delivered.
type mailQueueSet struct {
	unsorted      []engine.QueuedRequest // mail that is not in a queue yet
	unsortedData  []byte                 // the bytes of unsorted
	nextRecipient int                    // index of the next recipient of the first unsorted request, if it has several
	batchMail     []engine.QueuedRequest // the whole batch that contains unsorted; for Mailbox.Recycle
	batchData     []byte                 // the data of that batch; for Mailbox.Recycle

	byConn map[*engine.Conn]*connMailQueue
	ready  deque.Deque[*connMailQueue] // queues with mail, the least recently served first
	spare  []*connMailQueue
	count  int // messages in queues
	bytes  int // bytes of these messages, without shared bytes
	// queueMemory is the memory of the queues. deferredMemory is the memory of mail for connections that workers have.
	// countedMemory is the part of both that the loop's counters contain.
	queueMemory, deferredMemory, countedMemory int
}

func (p *mailQueueSet) hasUndelivered() bool { return p.ready.Len() > 0 || len(p.unsorted) > 0 }

type connMailQueue struct {
	conn       *engine.Conn
	mail       []engine.QueuedRequest
	data       []byte
	delivered  int // messages at the start of mail that were delivered
	dataOffset int // bytes of the delivered messages in data
}

func (r *connMailQueue) dequeue() (m engine.QueuedRequest, data []byte) {
	m = r.mail[r.delivered]
	r.delivered++
	data = r.data[r.dataOffset : r.dataOffset+int(m.Size)]
	r.dataOffset += int(m.Size)
	return m, data
}

// enqueue appends the request m with its data. It returns the growth of the queue's memory in bytes.
func (r *connMailQueue) enqueue(m engine.QueuedRequest, data []byte) (addedMemory int) {
	before := r.memoryBytes()
	r.mail = append(r.mail, m)
	r.data = append(r.data, data...)
	return r.memoryBytes() - before
}

func (r *connMailQueue) memoryBytes() int { return cap(r.mail)*engine.QueuedRequestSize + cap(r.data) }

func (p *mailQueueSet) distributeMailWithinLimits(mailbox *engine.Mailbox) {
	if len(p.unsorted) == 0 {
		if p.count >= mailbox.MaxRequests || p.bytes >= mailbox.MaxBytes {
			return
		}
		p.batchMail, p.batchData = mailbox.TakeQueued()
		p.unsorted, p.unsortedData = p.batchMail, p.batchData
	}
	if p.byConn == nil {
		p.byConn = make(map[*engine.Conn]*connMailQueue)
	}
	for limit := mailDistributedPerTurn; limit > 0 && len(p.unsorted) > 0 && p.ready.Len() < maxMailQueues; {
		n := p.count
		if p.nextRecipient = p.unsorted[0].ForEachConn(p.nextRecipient, min(limit, maxMailQueues), p.enqueueForConn); p.nextRecipient == 0 {
			p.unsorted = p.unsorted[1:]
		}
		limit -= max(p.count-n, 1)
	}
	if len(p.unsorted) == 0 {
		p.countedMemory += mailbox.Recycle(p.batchMail, p.batchData) // the mailbox no longer counts this memory
		p.batchMail, p.batchData, p.unsortedData = nil, nil, nil
	}
}

func (p *mailQueueSet) enqueueForConn(m engine.QueuedRequest) {
	queue := p.byConn[m.Conn]
	if queue == nil {
		if n := len(p.spare) - 1; n >= 0 {
			queue, p.spare[n] = p.spare[n], nil // p.spare must not keep the queue, which may grow too large
			p.spare = p.spare[:n]
		} else {
			queue = new(connMailQueue)
		}
		queue.conn = m.Conn
		p.queueMemory += queue.memoryBytes()
		p.byConn[m.Conn] = queue
		p.ready.PushBack(queue)
	}
	p.queueMemory += queue.enqueue(m, p.unsortedData[:m.Size])
	p.unsortedData = p.unsortedData[m.Size:]
	p.count++
	p.bytes += int(m.Size)
}

func (p *mailQueueSet) dequeueReadyConnQueue() *connMailQueue {
	queue := p.ready.PopFront()
	return queue
}

func (p *mailQueueSet) requeueOrRelease(queue *connMailQueue) {
	queue.mail, queue.delivered = slices.Delete(queue.mail, 0, queue.delivered), 0
	if len(queue.mail) == 0 || queue.dataOffset > len(queue.data)/2 { // so that a queue that is never empty does not grow
		queue.data, queue.dataOffset = queue.data[:copy(queue.data, queue.data[queue.dataOffset:])], 0
	}
	if len(queue.mail) > 0 {
		p.ready.PushBack(queue)
		return
	}
	delete(p.byConn, queue.conn)
	queue.conn = nil
	p.queueMemory -= queue.memoryBytes()
	if len(p.spare) < maxMailQueues && cap(queue.mail) <= maxSpareMail && cap(queue.data) <= maxSpareData {
		p.spare = append(p.spare, queue)
	}
	if p.ready.Len() == 0 && p.ready.Cap() > 4*maxMailQueues {
		p.ready, p.byConn = deque.Deque[*connMailQueue]{}, nil
	}
}

// mailDelayTimer is the task that makes the mailbox release output after the delay Config.WriteDelay.
type mailDelayTimer struct{ loop *Loop }

func (t *mailDelayTimer) nextDue() (at time.Duration, ok bool) {
	return t.loop.mailbox.EnsureDelayEnd(&t.loop.host)
}

func (t *mailDelayTimer) runIfDue(now time.Duration) {
	if at, ok := t.nextDue(); ok && (now >= at || !t.loop.delaysWrites()) {
		t.loop.mailbox.ReleaseDelayed()
	}
}

func (l *Loop) delaysWrites() bool {
	return l.host.WriteDelay > 0 && l.stopStage == stageServing && l.exporter.onDone == nil
}

func (l *Loop) hasMail() bool { return l.mailQueues.hasUndelivered() || l.mailbox.HasRequests() }

func (l *Loop) updateMailMemoryCounter() {
	p := &l.mailQueues
	if n := p.queueMemory + p.deferredMemory - p.countedMemory; n != 0 {
		l.counters.Add(engine.Buffered, int64(n))
		p.countedMemory += n
	}
}

func (l *Loop) deliverMailWithinTimeLimit() {
	p := &l.mailQueues
	if !l.hasMail() {
		return
	}
	l.phase.Store(phaseMail)
	defer l.updateMailMemoryCounter()
	if len(p.unsorted) > 0 || l.mailbox.HasRequests() {
		p.distributeMailWithinLimits(&l.mailbox)
	}
	end := engine.MonotonicNow() + maxTaskTime
	for n := 0; n < mailConnsPerTurn && p.ready.Len() > 0; n++ {
		queue := p.dequeueReadyConnQueue()
		c := queue.conn
		timedOut := l.deliverOrDeferConnMail(queue, end)
		if c.FD() >= 0 && c.DriverFlags()&Busy == 0 && c.IsOpen() {
			l.driver.PerformActions(c)
		}
		if timedOut || engine.MonotonicNow() >= end {
			return
		}
	}
}

func (l *Loop) deliverOrDeferConnMail(queue *connMailQueue, deadline time.Duration) (timedOut bool) {
	defer l.mailQueues.requeueOrRelease(queue) // also after a runtime.Goexit
	for c := queue.conn; queue.delivered < len(queue.mail) && !timedOut; {
		m, data := queue.dequeue()
		l.mailQueues.count--
		l.mailQueues.bytes -= int(m.Size)
		if c.DriverFlags()&Busy == 0 || m.IsStale() {
			c.HandleOrDeferForPendingLayer(m, data)
		} else {
			l.deferMailUntilWorkerReturns(m, data)
		}
		timedOut = queue.delivered%mailClockCheck == 0 && engine.MonotonicNow() >= deadline
	}
	return timedOut
}
