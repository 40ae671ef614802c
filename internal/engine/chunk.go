package engine

import (
	"slices"
	"sync/atomic"
)

// This file sends a message to the connections of a large group with one request per GroupChunk. Consecutive messages
// to the same group share requests.

// GroupChunk contains some of the connections of a large group. All connections of a chunk use the same Runtime. After
// a message has been posted to a chunk, the chunk's list of connections must not change.
type GroupChunk struct {
	connList
	set     *connSet
	version uint64 // the version of the set when the chunk was created
	// lastRun is the run of the last request for this chunk; see Mailbox.batchRun. lastIndex is that request's index in
	// the queue. The lock of the owner's mailbox guards both fields.
	lastIndex int
	lastRun   uint64
}

// ChunkPoster is a Poster that can post a message to all connections of a chunk with a single request.
type ChunkPoster interface {
	PostToChunk(to *GroupChunk, s *Shared) PostOutcomes
}

// PostOutcomes counts the results of posting a message to several connections.
type PostOutcomes struct {
	sent, full int
	closed     []Ref // connections that have begun to close
	slow       []Ref // the connections counted as full because their own output limit is exceeded
}

func (t *PostOutcomes) SentCount() int { return t.sent }

func (t *PostOutcomes) countPostOrCollectRefused(r Ref, messageSize int, postErr error) {
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

func (t *PostOutcomes) requestDropOrAbortForSlowConns() {
	for _, r := range t.slow {
		_ = r.post(Request{Kind: RequestDo, Shared: &Shared{Do: (*Conn).countDropOrAbortAsSlow}, canDelay: true})
	}
}

// countDropOrAbortAsSlow is called for a group message that exceeds the output limit of c. With Config.DropMessages, it
// counts the message as dropped. Otherwise, it aborts c with ErrSlowConsumer.
func (c *Conn) countDropOrAbortAsSlow() {
	if c.runtime.DropMessages {
		c.countDroppedMessage()
		c.scheduleMissedIfLow() // otherwise no later event might call it, because the output may have been sent
	} else {
		c.abortWith(ErrSlowConsumer)
	}
}

func (m *GroupChunk) broadcastShared(s *Shared) (t PostOutcomes) {
	rt := m.refs[0].c.runtime
	if p, ok := rt.Poster.(ChunkPoster); ok && len(s.Bytes) > 0 && len(s.Bytes) <= rt.Limits.MaxUnsent {
		return p.PostToChunk(m, s)
	}
	for _, r := range m.refs {
		t.countPostOrCollectRefused(r, len(s.Bytes), r.post(Request{Kind: RequestSend, Shared: s, removed: &m.set.removed}))
	}
	return t
}

// messageBatch is a request that makes the connections of a chunk send one or more messages.
type messageBatch struct {
	chunk    *GroupChunk
	messages []batchMessage
	size     int
	joined   *Shared // all messages concatenated; set on delivery
	// holders is the number of undelivered requests of the batch, plus one while these requests are being created.
	holders atomic.Int32
}

type batchMessage struct {
	*Shared
	excluded []int // indexes of the connections that must not get the message
}

// PutSharedForEachOpenInChunk queues the message s for all open connections of a chunk. The connections must belong to
// the mailbox's owner. The message must have at least 1 and at most Limits.MaxUnsent bytes.
func (b *Mailbox) PutSharedForEachOpenInChunk(chunk *GroupChunk, s *Shared) (t PostOutcomes) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		t.closed = chunk.refs
		return t
	}
	size, left := len(s.Bytes), chunk.set.removed.nonEmpty.Load()
	added := b.bytesNotYetCounted(s, size)
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
			t.countPostOrCollectRefused(r, size, err)
			continue
		}
		t.sent++
	}
	if t.sent > 0 {
		b.numRequests++ // counts as a single request
		b.bytes += added
		b.lastShared = s
		s.addHolderAndCountMemory()
		b.findOrQueueBatchLocked(chunk, size).addMessage(batchMessage{s, without})
		if b.maxDelayedBytes > 0 {
			b.delayIfSmallOrReleaseQueuedOutput(true, size)
		}
	}
	return t
}

// findOrQueueBatchLocked returns a queued batch for the chunk with space for messageSize more bytes. If there is none,
// it queues a new batch. The caller must hold b.mu.
func (b *Mailbox) findOrQueueBatchLocked(chunk *GroupChunk, messageSize int) *messageBatch {
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

func (b *Mailbox) stopMergingIntoBatches() {
	b.batchRun++
	b.batchSet = nil
}

func (m *messageBatch) addMessage(p batchMessage) {
	m.messages = append(m.messages, p)
	m.size += len(p.Bytes)
}

// ForEachConn calls deliver for each connection of a batch, with requests for this single connection. It handles at
// most maxConns connections, beginning at index firstIndex, and returns the index at which the caller must continue.
// After the last connection, it returns 0.
//
// If m is a request for a single connection instead of a batch, ForEachConn passes m to deliver and returns 0.
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
