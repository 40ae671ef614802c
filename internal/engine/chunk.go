package engine

import (
	"slices"
	"sync/atomic"
)

// This file sends a message to many connections by one request per chunk. Consecutive messages to a set share requests.

// GroupChunk contains connections of a connSet that have one owner. It must not change after its first message.
type GroupChunk struct {
	connList
	set     *connSet
	version uint64 // of the set, when the chunk was made
	// lastIndex and lastRun are the index and the run of the last request for this chunk; see Mailbox.batchRun. The
	// lock of the owner's mailbox guards them.
	lastIndex int
	lastRun   uint64
}

// ChunkPoster is a Poster that can post a message to all connections of a chunk by one request.
type ChunkPoster interface {
	PostToChunk(to *GroupChunk, s *Shared) PostOutcomes
}

// PostOutcomes counts the results of posting a message to several connections.
type PostOutcomes struct {
	sent, full int
	closed     []Ref // connections that have begun to close
	slow       []Ref // of those counted as full, connections whose own output limit is exceeded
}

func (t *PostOutcomes) SentCount() int { return t.sent }

func (t *PostOutcomes) recordPostResult(r Ref, messageSize int, postErr error) {
	switch postErr {
	case nil:
		t.sent++
	case ErrClosed:
		t.closed = append(t.closed, r)
	case errRemoved:
	default:
		if most := r.c.runtime.Limits.MaxUnsent; messageSize <= most && messageSize > most-r.c.refState.postedBytes() {
			t.slow = append(t.slow, r)
		}
		t.full++
	}
}

// requestDropOrAbortForSlowConns posts a call of countDropOrAbortAsSlow to each slow connection. If a mailbox has no
// space for this request, a later message posts it again.
func (t *PostOutcomes) requestDropOrAbortForSlowConns() {
	for _, r := range t.slow {
		_ = r.post(Request{Kind: RequestDo, Shared: &Shared{Do: (*Conn).countDropOrAbortAsSlow}, canDelay: true})
	}
}

// countDropOrAbortAsSlow handles a message to several connections that exceeds the output limit of c. If
// Runtime.DropMessages is true, it counts the message as dropped. Otherwise it aborts c.
func (c *Conn) countDropOrAbortAsSlow() {
	if c.runtime.DropMessages {
		c.countDroppedMessage()
		c.scheduleMissedIfLow() // the output may have been sent
	} else {
		c.abortWith(ErrSlowConsumer)
	}
}

// broadcastShared posts a message to each connection of the chunk that has not been removed from the group.
func (m *GroupChunk) broadcastShared(s *Shared) (t PostOutcomes) {
	rt := m.refs[0].c.runtime
	if p, ok := rt.Poster.(ChunkPoster); ok && len(s.Bytes) > 0 && len(s.Bytes) <= rt.Limits.MaxUnsent {
		return p.PostToChunk(m, s)
	}
	for _, r := range m.refs {
		t.recordPostResult(r, len(s.Bytes), r.post(Request{Kind: RequestSend, Shared: s, removed: &m.set.removed}))
	}
	return t
}

// messageBatch is a request to send messages to the connections of a chunk. It contains either messages of at most
// maxPieceSize bytes in total, or a single longer message.
type messageBatch struct {
	chunk    *GroupChunk
	messages []batchMessage
	size     int
	joined   *Shared // all messages concatenated; set on delivery
	// holders is the number of undelivered requests of the batch, plus one while these requests are being created.
	holders atomic.Int32
}

// batchMessage is a message for the connections of a chunk, except those whose indexes are in excluded.
type batchMessage struct {
	*Shared
	excluded []int
}

// PutSharedForEachOpenInChunk queues a message of 1 to MaxUnsent bytes for the connections of a chunk of this mailbox's
// owner.
func (b *Mailbox) PutSharedForEachOpenInChunk(chunk *GroupChunk, s *Shared) (t PostOutcomes) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		t.closed = chunk.refs
		return t
	}
	size, left := len(s.Bytes), chunk.set.removed.nonEmpty.Load()
	added := b.bytesCountedForLimit(s, size)
	hasSpace := b.numRequests < b.MaxRequests && (added == 0 || b.bytes == 0 || added <= b.MaxBytes-b.bytes)
	var without []int
	for i, r := range chunk.refs {
		err := ErrFull
		switch {
		case r.IsClosed():
			err = ErrClosed
		case left && chunk.set.removed.has(r):
			err = errRemoved
		case hasSpace:
			err = r.c.refState.reservePostedBytes(r.generation, size, r.c.runtime.Limits.MaxUnsent)
		}
		if err != nil {
			without = append(without, i)
			t.recordPostResult(r, size, err)
			continue
		}
		t.sent++
	}
	if t.sent > 0 {
		b.numRequests++ // counts as a single request
		b.bytes += added
		b.lastShared = s
		s.addHolderAndCountMemory()
		b.findOrQueueBatch(chunk, size).addMessage(batchMessage{s, without})
		if b.maxDelayedBytes > 0 {
			b.delayOrReleaseQueuedOutput(true, size)
		}
	}
	return t
}

// findOrQueueBatch returns the batch for a message to the chunk. Other requests of the same run may be queued behind
// the batch. Because these are for other chunks, each connection still gets its messages in order.
func (b *Mailbox) findOrQueueBatch(chunk *GroupChunk, messageSize int) *messageBatch {
	if b.batchSet != chunk.set {
		b.stopMergingIntoBatches()
		b.batchSet = chunk.set
	}
	if chunk.lastRun == b.batchRun {
		if last := b.queue[chunk.lastIndex].batch; last.size+messageSize <= maxPieceSize {
			return last
		}
	}
	m := &messageBatch{chunk: chunk}
	m.holders.Store(1)
	chunk.lastIndex, chunk.lastRun = len(b.queue), b.batchRun
	b.markNonEmptyAndGrowIfNeeded(0)
	b.queue = append(b.queue, QueuedRequest{batch: m})
	return m
}

// stopMergingIntoBatches ends the current run, so that no more messages are added to queued batches.
func (b *Mailbox) stopMergingIntoBatches() {
	b.batchRun++
	b.batchSet = nil
}

func (m *messageBatch) addMessage(p batchMessage) {
	m.messages = append(m.messages, p)
	m.size += len(p.Bytes)
}

// ForEachConn calls deliver with each connection's request, for at most maxConns connections, beginning with number
// firstIndex. It returns the number of the next connection, or 0 after the last.
func (m QueuedRequest) ForEachConn(firstIndex, maxConns int, deliver func(QueuedRequest)) (nextIndexOrZero int) {
	if m.Conn != nil {
		deliver(m)
		return 0
	}
	if m.batch.joined == nil {
		m.batch.concatenateMessages()
	}
	refs := m.batch.chunk.refs
	end := min(len(refs), firstIndex+maxConns)
	for i, r := range refs[firstIndex:end] {
		m.batch.deliverNonExcludedMessages(firstIndex+i, QueuedRequest{Conn: r.c, batch: m.batch, gen: r.generation, Kind: RequestSend}, deliver)
	}
	if end == len(refs) {
		m.batch.chunk = nil // delivering the last requests may take long
		m.batch.removeHolderAndReleaseIfLast()
		return 0
	}
	return end
}

func (m *messageBatch) removeHolderAndReleaseIfLast() {
	if m.holders.Add(-1) > 0 {
		return
	}
	for _, p := range m.messages {
		p.removeHolderAndUncountMemory()
	}
	if len(m.messages) > 1 {
		m.joined.removeHolderAndUncountMemory()
	}
	m.messages, m.joined = nil, nil
}

func (m *messageBatch) concatenateMessages() {
	if len(m.messages) == 1 {
		m.joined = m.messages[0].Shared
		return
	}
	all := make([]byte, 0, m.size)
	for _, p := range m.messages {
		all = append(all, p.Bytes...)
	}
	m.joined = &Shared{Bytes: all, counters: m.messages[0].counters}
	m.joined.addHolderAndCountMemory()
}

func (m *messageBatch) deliverNonExcludedMessages(connIndex int, req QueuedRequest, deliver func(QueuedRequest)) {
	gets := func(p batchMessage) bool {
		_, not := slices.BinarySearch(p.excluded, connIndex)
		return !not
	}
	if !slices.ContainsFunc(m.messages, func(p batchMessage) bool { return !gets(p) }) {
		req.shared = m.joined
		m.holders.Add(1)
		deliver(req)
		return
	}
	for _, p := range m.messages {
		if gets(p) {
			req.shared = p.Shared
			m.holders.Add(1)
			deliver(req)
		}
	}
}
