package engine

import (
	"slices"
	"sync/atomic"
)

// This file sends one message to many connections, as a single request for each chunk of them.
// Consecutive messages to the same set are merged.

// ConnChunk is a part of a connSet with connections of one owner. It does not change once a message
// was sent to it.
type ConnChunk struct {
	connList
	set     *connSet
	version uint64 // of the set, when the chunk was made
	// Guarded by the lock of the owner's mailbox: the index of the last request for this chunk, and
	// its run; see Mailbox.batchRun.
	lastIndex int
	lastRun   uint64
}

// ChunkPoster is a Poster that accepts requests for a chunk of its connections.
type ChunkPoster interface {
	PostToChunk(to *ConnChunk, s *Shared) PostTally
}

// PostTally counts what has become of a message.
type PostTally struct {
	sent, full int
	closed     []Ref // connections that have begun to close
	slow       []Ref // of those counted as full, connections whose own output limit is exceeded
}

// SentCount returns to how many connections it was posted.
func (t *PostTally) SentCount() int { return t.sent }

// recordResult counts the result of posting size bytes to a connection.
func (t *PostTally) recordResult(r Ref, size int, err error) {
	switch err {
	case nil:
		t.sent++
	case ErrClosed:
		t.closed = append(t.closed, r)
	case errRemoved:
	default:
		if most := r.c.runtime.Limits.MaxUnsent; size <= most && size > most-r.c.refState.postedBytes() {
			t.slow = append(t.slow, r)
		}
		t.full++
	}
}

// penalizeSlowConns closes slow connections or counts the drop. If a mailbox has no space for that, it
// happens with a later message.
func (t *PostTally) penalizeSlowConns() {
	for _, r := range t.slow {
		_ = r.Do((*Conn).countDropOrCloseSlow)
	}
}

// countDropOrCloseSlow handles a message to many that exceeded the output limit.
func (c *Conn) countDropOrCloseSlow() {
	if c.runtime.DropMessages {
		c.countDropped()
	} else {
		c.abortWith(ErrSlowConsumer)
	}
}

// broadcast posts a message to each connection of the chunk that has not been removed.
func (m *ConnChunk) broadcast(s *Shared) (t PostTally) {
	rt := m.refs[0].c.runtime
	if p, ok := rt.Poster.(ChunkPoster); ok && len(s.Bytes) > 0 && len(s.Bytes) <= rt.Limits.MaxUnsent {
		return p.PostToChunk(m, s)
	}
	for _, r := range m.refs {
		t.recordResult(r, len(s.Bytes), r.post(Request{Kind: RequestSend, Shared: s, removed: &m.set.removed}))
	}
	return t
}

// batchRequest is a request for the connections of a chunk. It has several messages up to
// maxPieceSize, or a longer one.
type batchRequest struct {
	chunk    *ConnChunk
	messages []batchMessage
	size     int
	joined   *Shared // all messages in one, once the request is delivered
	// holders counts the undelivered requests of its connections, and one until all have been
	// created.
	holders atomic.Int32
}

// batchMessage is a message and the indexes of the connections that do not get it.
type batchMessage struct {
	*Shared
	excluded []int
}

// PutToChunk queues a message, of 1 to MaxUnsent bytes, for the connections of a chunk of this
// mailbox.
func (b *Mailbox) PutToChunk(chunk *ConnChunk, s *Shared) (t PostTally) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		t.closed = chunk.refs
		return t
	}
	size, left := len(s.Bytes), chunk.set.removed.nonEmpty.Load()
	added := b.addedBytes(s, size)
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
			err = r.c.refState.reservePosted(r.generation, size, r.c.runtime.Limits.MaxUnsent)
		}
		if err != nil {
			without = append(without, i)
			t.recordResult(r, size, err)
			continue
		}
		t.sent++
	}
	if t.sent > 0 {
		b.numRequests++ // counts as a single request
		b.bytes += added
		b.lastShared = s
		s.addHolder()
		b.findOrAddBatch(chunk, size).addMessage(batchMessage{s, without})
	}
	return t
}

// findOrAddBatch returns the batch that a message to the chunk is added to. Requests behind it are for
// other chunks of the same run, so that the order per connection stays.
func (b *Mailbox) findOrAddBatch(chunk *ConnChunk, size int) *batchRequest {
	if b.batchSet != chunk.set {
		b.endBatchRun()
		b.batchSet = chunk.set
	}
	if chunk.lastRun == b.batchRun {
		if last := b.queue[chunk.lastIndex].batch; last.size+size <= maxPieceSize {
			return last
		}
	}
	m := &batchRequest{chunk: chunk}
	m.holders.Store(1)
	chunk.lastIndex, chunk.lastRun = len(b.queue), b.batchRun
	b.ensureSpace(0)
	b.queue = append(b.queue, QueuedRequest{batch: m})
	return m
}

// endBatchRun ends the run: queued batches get no more messages.
func (b *Mailbox) endBatchRun() {
	b.batchRun++
	b.batchSet = nil
}

func (m *batchRequest) addMessage(p batchMessage) {
	m.messages = append(m.messages, p)
	m.size += len(p.Bytes)
}

// ForEachConn calls deliver with the request for each of up to n connections, from index from on.
// It returns the next index, 0 at the end.
func (m QueuedRequest) ForEachConn(from, n int, deliver func(QueuedRequest)) (next int) {
	if m.Conn != nil {
		deliver(m)
		return 0
	}
	if m.batch.joined == nil {
		m.batch.joinMessages()
	}
	refs := m.batch.chunk.refs
	end := min(len(refs), from+n)
	for i, r := range refs[from:end] {
		m.batch.deliverTo(from+i, QueuedRequest{Conn: r.c, batch: m.batch, gen: r.generation, Kind: RequestSend}, deliver)
	}
	if end == len(refs) {
		m.batch.chunk = nil // delivering the last requests may take long
		m.batch.removeHolder()
		return 0
	}
	return end
}

// removeHolder releases the messages with the last holder.
func (m *batchRequest) removeHolder() {
	if m.holders.Add(-1) > 0 {
		return
	}
	for _, p := range m.messages {
		p.removeHolder()
	}
	if len(m.messages) > 1 {
		m.joined.removeHolder()
	}
	m.messages, m.joined = nil, nil
}

func (m *batchRequest) joinMessages() {
	if len(m.messages) == 1 {
		m.joined = m.messages[0].Shared
		return
	}
	all := make([]byte, 0, m.size)
	for _, p := range m.messages {
		all = append(all, p.Bytes...)
	}
	m.joined = &Shared{Bytes: all, counters: m.messages[0].counters}
	m.joined.addHolder()
}

func (m *batchRequest) deliverTo(index int, req QueuedRequest, deliver func(QueuedRequest)) {
	gets := func(p batchMessage) bool {
		_, not := slices.BinarySearch(p.excluded, index)
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
