package engine

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

type RequestKind uint8

const (
	// RequestSend carries bytes to send.
	RequestSend RequestKind = iota
	// RequestClose closes the connection after the output so far.
	RequestClose
	RequestNudge
	// RequestBroadcast carries a message that is sent to all connections.
	RequestBroadcast
	// RequestResumeLayer calls the layer's ContinueHandshake.
	RequestResumeLayer
	RequestDo
	// RequestLatest announces a newer value; see LatestSubscription.
	RequestLatest
)

// QueuedRequest is a request in a mailbox. TakeQueued returns the bytes of all requests in a single slice. Size is
// the number of these bytes that belong to this request. For a request with shared bytes, Size is 0.
type QueuedRequest struct {
	Conn   *Conn
	shared *Shared
	batch  *messageBatch // the request's batch; if Conn is nil, the request is for the whole batch
	gen    uint32
	Size   uint32
	Kind   RequestKind
}

const QueuedRequestSize = int(unsafe.Sizeof(QueuedRequest{}))

// releaseShared ends the request's use of shared data. It must be called exactly once for each request.
func (m QueuedRequest) releaseShared() {
	switch {
	case m.batch != nil:
		m.batch.removeHolderAndReleaseIfLast()
	case m.shared != nil:
		m.shared.removeHolderAndUncountMemory()
	}
}

// DropIfSendOrBroadcast drops the request if it carries bytes to send. It reports whether the request was dropped.
func (m QueuedRequest) DropIfSendOrBroadcast() (dropped bool) {
	if m.Kind != RequestSend && m.Kind != RequestBroadcast {
		return false
	}
	n := int(m.Size)
	if m.shared != nil {
		n = len(m.shared.Bytes)
	}
	m.Conn.releasePostedAndWakeIfLow(max(n, emptyRequestSize))
	m.releaseShared()
	return true
}

// IsStale reports whether the connection has begun to close since the request was posted. HandleOrDeferForPendingLayer
// drops stale requests, and any goroutine may call it with a stale request.
func (m QueuedRequest) IsStale() bool { return m.gen != m.Conn.refState.generation() }

// Shared is a message or a function that is stored once and posted to many connections. It must not be modified after
// it was posted.
type Shared struct {
	Bytes []byte
	Do    func(*Conn)
	// OnLost, if set, is called if the connection begins to close before Do can be called. It may run on any goroutine
	// and must not block.
	OnLost func()
	latest *LatestSubscription // for RequestLatest
	// counters, if set, counts the memory of Bytes as Buffered while a request or broadcast refers to the Shared.
	counters *Counters
	holders  atomic.Int32
}

func (s *Shared) addHolderAndCountMemory() {
	if s.counters != nil && s.holders.Add(1) == 1 {
		s.counters.Add(Buffered, int64(cap(s.Bytes)))
	}
}

func (s *Shared) removeHolderAndUncountMemory() {
	if s.counters != nil && s.holders.Add(-1) == 0 {
		s.counters.Add(Buffered, -int64(cap(s.Bytes)))
	}
}

// Request is a request that is posted to a connection. Mailbox.Put copies Bytes and Pieces, but not Shared.
type Request struct {
	Kind   RequestKind
	Bytes  []byte
	Pieces [][]byte
	Shared *Shared
	// postedLimit, if positive, replaces MaxUnsent as the limit for posted bytes. It marks a request whose sender can
	// wait; a mailbox accepts such requests only up to a part of MaxBytes.
	postedLimit int
	// spaceWait, if set, is filled in by Put when the mailbox is full. The sender uses it to wait for capacity.
	spaceWait *SpaceWait
	// alwaysFits exempts the request from Mailbox.MaxRequests. Only rare requests may set it.
	alwaysFits bool
	// removed, if set, lists connections that must not receive the request.
	removed *removedDuringBroadcast
	// canDelay permits delaying a request without output; see isDelayable.
	canDelay bool
}

// isDelayable reports whether Config.WriteDelay may delay the request.
func (r *Request) isDelayable() bool {
	return !r.CanWait() && (r.canDelay || r.Kind == RequestSend || r.Kind == RequestLatest)
}

func (r *Request) CanWait() bool { return r.postedLimit > 0 }

// LetSenderWaitUntil makes the sender of r wait until the channel freed is closed. It has no effect if the sender
// cannot wait.
func (r *Request) LetSenderWaitUntil(freed <-chan struct{}) {
	if r.spaceWait != nil {
		*r.spaceWait = SpaceWait{freed: freed}
	}
}

// SpaceWait lets the sender of a request wait until a full mailbox has capacity.
type SpaceWait struct {
	freed  <-chan struct{} // closed when there may be space
	onDone func()          // called by stopWaiting
}

func (r SpaceWait) stopWaiting() {
	if r.onDone != nil {
		r.onDone()
	}
}

func (r Request) payloadSize() int {
	if r.Shared != nil {
		return len(r.Shared.Bytes)
	}
	return r.copiedSize()
}

func (r Request) copiedSize() int {
	n := len(r.Bytes)
	for _, p := range r.Pieces {
		n += len(p)
	}
	return n
}

// emptyRequestSize is the number of posted bytes that is counted for a request without a message.
const emptyRequestSize = 1

// Limits of a mailbox's memory.
const (
	maxKeptData  = 64 << 10 // bytes of data buffer that an empty mailbox keeps
	waitersShare = 4        // senders that can wait may use 1/waitersShare of Mailbox.MaxBytes
)

// Limits of all mailboxes of an engine.
const (
	mailboxShare       = 16       // all mailboxes together may use 1/mailboxShare of Limits.MaxBuffered
	minMailboxBytes    = 64 << 10 // each mailbox may use at least this
	minMailboxRequests = 1 << 10  // each mailbox may use at least this
)

// SingleMailboxLimits returns the limits of a single mailbox in an engine with numLoops mailboxes.
func (l *Limits) SingleMailboxLimits(numLoops int) (maxRequests, maxBytes int) {
	if l.MaxBuffered == 0 {
		return l.MaxMail, l.MaxMailBytes
	}
	share := l.MaxBuffered / mailboxShare / numLoops
	return min(l.MaxMail, max(share/QueuedRequestSize, minMailboxRequests)), min(l.MaxMailBytes, max(share, minMailboxBytes))
}

// EnableOutputDelay makes the mailbox delay small output by cfg.WriteDelay; see Mailbox. If WriteDelay is 0, it has no
// effect.
func (b *Mailbox) EnableOutputDelay(cfg *Config) {
	if cfg.WriteDelay > 0 {
		b.maxDelayedBytes = max(min(b.MaxBytes, cfg.Limits.MaxUnsent)/4, 1)
	}
}

// Mailbox is the queue of requests to the connections of one owner. The owner is a loop or a goroutine. Any goroutine
// may call Put, but only the owner may call TakeQueued.
//
// The memory of a request is counted from the call of Put until the owner has handled the request and called Recycle.
//
// After a call of EnableOutputDelay, the mailbox delays small output, so that several messages can be sent together.
// HasRequests does not report delayed output before the owner calls ReleaseDelayed. A large message or much queued
// output ends the delay.
//
// Requests that must not wait, such as a close, are taken before delayed output of other connections. But if output for
// the same connection is delayed or unsent, such a request ends the delay, because it must be handled after the output.
type Mailbox struct {
	// MaxRequests limits the number of queued requests. Requests without a message, such as a close, may exceed this
	// limit, but only up to twice the limit.
	MaxRequests int
	// MaxBytes limits the number of queued bytes. If consecutive requests share the same bytes, these bytes count once.
	// An empty mailbox accepts one message that exceeds MaxBytes.
	MaxBytes int
	// Counters, if not nil, counts the memory of requests in its counter Buffered.
	Counters *Counters
	// Small minimizes the memory of the mailbox. It is for engines with a mailbox for each connection.
	Small bool

	mu       sync.Mutex
	queue    []QueuedRequest
	urgent   []QueuedRequest // requests without bytes that overtake delayed output; appended while released is false
	released bool            // the output in queue must no longer wait
	// maxDelayedBytes is the number of queued bytes up to which output waits for Config.WriteDelay; 0 means no delay.
	maxDelayedBytes int

	data        []byte
	numRequests int // number of queued requests, counting a batch message once
	bytes       int // of queued requests, including shared bytes
	closed      bool
	// lastShared is the shared data of the last request. queuedMemory and takenMemory are the counted memory of queued
	// and of taken requests.
	lastShared                *Shared
	queuedMemory, takenMemory int
	// Consecutive requests for chunks of one connSet form a run. batchRun is the number of the last run. batchSet is
	// the set of the current run, or nil.
	batchRun uint64
	batchSet *connSet
	// Memory of the last TakeQueued, kept for reuse.
	spareQueue       []QueuedRequest
	spareData        []byte
	nonEmpty         atomic.Bool // requests that must not wait are queued; read without the lock
	hasDelayed       atomic.Bool
	needsTimer       atomic.Bool   // the owner must still be woken to time the delayed output
	delayEnd         time.Duration // when the delay ends; 0 if not set; only the owner accesses it
	missedBroadcasts atomic.Int64
	// Senders wait in order until the mailbox is emptied. Woken senders are about to post wokenBytes bytes.
	waiting    []*waitingSender
	wokenBytes int
}

type waitingSender struct {
	freed chan struct{}
	size  int
	woken bool
}

// Put queues r for the connection c if generation is the current generation of c. It fails with ErrClosed, ErrFull or
// errRemoved. If Put fails, r is not queued. After each call, the caller must wake the owner if MustWakeOwnerAfterPut
// returns true.
func (b *Mailbox) Put(c *Conn, generation uint32, r Request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	maxRequests := b.MaxRequests
	if r.Kind != RequestSend && r.Kind != RequestBroadcast {
		maxRequests *= 2
	}
	size, postedLimit := r.payloadSize(), c.runtime.Limits.MaxUnsent
	maxBytes := b.MaxBytes
	if r.CanWait() {
		maxBytes, postedLimit = maxBytes/waitersShare, r.postedLimit
	}
	added := b.bytesNotYetCounted(r.Shared, size)
	switch {
	case b.closed:
		return ErrClosed
	case r.removed != nil && r.removed.has(Ref{c, generation}):
		return errRemoved
	case b.numRequests >= maxRequests && !r.alwaysFits, added > 0 && b.bytes > 0 && added > maxBytes-b.bytes:
		if r.spaceWait != nil {
			*r.spaceWait = b.addWaitingSender(size)
		}
		return ErrFull
	}
	overtakes := b.maxDelayedBytes > 0 && size == 0 && !r.isDelayable() && c.refState.postedBytes() == 0
	if size == 0 {
		size, postedLimit = emptyRequestSize, math.MaxInt
	}
	if err := c.refState.reservePostedBytes(generation, size, postedLimit); err != nil {
		return err
	}
	copied := 0
	if r.Shared != nil {
		r.Shared.addHolderAndCountMemory()
	} else {
		copied = r.copiedSize()
	}
	b.numRequests++
	if overtakes && !b.released {
		b.appendUrgent(QueuedRequest{Conn: c, shared: r.Shared, gen: generation, Kind: r.Kind})
		return nil
	}
	b.bytes += added
	b.lastShared = r.Shared
	b.stopMergingIntoBatches()
	b.markNonEmptyAndGrowIfNeeded(copied)
	b.queue = append(b.queue, QueuedRequest{Conn: c, shared: r.Shared, gen: generation, Size: uint32(copied), Kind: r.Kind})
	b.data = append(b.data, r.Bytes...)
	for _, p := range r.Pieces {
		b.data = append(b.data, p...)
	}
	if b.maxDelayedBytes > 0 {
		b.delayIfSmallOrReleaseQueuedOutput(r.isDelayable(), size)
	}
	return nil
}

func (b *Mailbox) delayIfSmallOrReleaseQueuedOutput(canDelay bool, size int) {
	if !canDelay || size >= minDirectSend || b.bytes >= b.maxDelayedBytes || b.numRequests >= b.MaxRequests/4 {
		b.releaseDelayedLocked()
	} else if !b.hasDelayed.Swap(true) {
		b.needsTimer.Store(true)
	}
}

func (b *Mailbox) releaseDelayedLocked() {
	if len(b.queue) > 0 {
		b.released = true
		b.nonEmpty.Store(true)
	}
}

// ReleaseDelayed ends the delay of all queued output.
func (b *Mailbox) ReleaseDelayed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.releaseDelayedLocked()
}

// EnsureDelayEnd returns the time at which the owner must call ReleaseDelayed, because the delay of the queued output
// ends. If no output is delayed, isDelayed is false. The first call of EnsureDelayEnd after output was queued starts
// the delay.
func (b *Mailbox) EnsureDelayEnd(rt *Runtime) (at time.Duration, isDelayed bool) {
	if !b.hasDelayed.Load() {
		return 0, false
	}
	if b.delayEnd == 0 {
		b.delayEnd = rt.Now() + rt.WriteDelay
	}
	return b.delayEnd, true
}

// MustWakeOwnerAfterPut reports whether the caller of Put must wake the mailbox's owner. putErr is the result of Put.
func (b *Mailbox) MustWakeOwnerAfterPut(putErr error) bool {
	if b.maxDelayedBytes == 0 {
		return putErr == nil
	}
	return b.nonEmpty.Load() || b.needsTimer.Swap(false)
}

func (b *Mailbox) appendUrgent(q QueuedRequest) {
	b.urgent = append(b.urgent, q)
	b.takenMemory += QueuedRequestSize // the next Recycle subtracts it
	if b.Counters != nil {
		b.Counters.Add(Buffered, int64(QueuedRequestSize))
	}
	b.nonEmpty.Store(true)
}

func (b *Mailbox) markNonEmptyAndGrowIfNeeded(extraDataSize int) {
	if b.queuedMemory == 0 && b.maxDelayedBytes == 0 {
		b.nonEmpty.Store(true)
	}
	if b.queuedMemory == 0 || len(b.queue) == cap(b.queue) || extraDataSize > cap(b.data)-len(b.data) {
		b.growQueue(extraDataSize)
	}
}

// bytesNotYetCounted returns the number of bytes by which a message increases the total that MaxBytes limits. It is 0
// if the last queued request has the same shared message.
func (b *Mailbox) bytesNotYetCounted(s *Shared, messageSize int) int {
	if s != nil && s == b.lastShared {
		return 0
	}
	return messageSize
}

func (b *Mailbox) recountQueuedMemory(requestCap, dataCap int) {
	n := requestCap*QueuedRequestSize + dataCap
	if b.Counters != nil {
		b.Counters.Add(Buffered, int64(n-b.queuedMemory))
	}
	b.queuedMemory = n
}

// CountedMemory returns the memory of the mailbox's requests in bytes. It includes requests that the owner has taken
// but not yet recycled.
func (b *Mailbox) CountedMemory() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.queuedMemory + b.takenMemory
}

// PutShared calls Put with the current generation of c. The generation must not change during the call.
func (b *Mailbox) PutShared(c *Conn, kind RequestKind, s *Shared) error {
	return b.Put(c, c.refState.generation(), Request{Kind: kind, Shared: s})
}

// CountMissedBroadcast counts a broadcast that did not fit into the mailbox. It is for mailboxes that serve only one
// connection, which has missed the broadcast.
func (b *Mailbox) CountMissedBroadcast() { b.missedBroadcasts.Add(1) }

func (b *Mailbox) TakeMissedBroadcastCount() int64 {
	if b.missedBroadcasts.Load() == 0 {
		return 0
	}
	return b.missedBroadcasts.Swap(0)
}

func (b *Mailbox) HasRequests() bool { return b.nonEmpty.Load() }

func (b *Mailbox) growQueue(extraDataSize int) {
	requestCap, dataCap := cap(b.queue), cap(b.data)
	if len(b.queue) == requestCap {
		requestCap = max(2*requestCap, minQueueCap)
	}
	extraDataSize += len(b.data)
	switch {
	case extraDataSize <= dataCap:
	case b.Small || extraDataSize > maxKeptData:
		dataCap = minBufferSize << sizeClass(extraDataSize)
	default:
		dataCap = min(max(extraDataSize, 2*dataCap), maxKeptData)
	}
	b.recountQueuedMemory(requestCap, dataCap)
	if requestCap > cap(b.queue) {
		b.queue = append(make([]QueuedRequest, 0, requestCap), b.queue...)
	}
	if dataCap > cap(b.data) {
		old := b.data
		b.data = append(getOrNewDataBuffer(dataCap), old...)
		putDataBufferIfClassSize(old)
	}
}

const minQueueCap = 4

// dataBuffers contains free data buffers for reuse by all mailboxes, with one pool per size class.
var dataBuffers [2 * sizeClasses]sync.Pool

func getOrNewDataBuffer(capacity int) []byte {
	if class := sizeClass(capacity); class < len(dataBuffers) && capacity == minBufferSize<<class {
		if room, ok := dataBuffers[class].Get().(*[]byte); ok {
			return *room
		}
	}
	return make([]byte, 0, capacity)
}

func putDataBufferIfClassSize(buffer []byte) {
	n := cap(buffer)
	if class := sizeClass(n); class < len(dataBuffers) && n == minBufferSize<<class {
		buffer = buffer[:0]
		dataBuffers[class].Put(&buffer)
	}
}

func (b *Mailbox) addWaitingSender(messageSize int) SpaceWait {
	s := &waitingSender{freed: make(chan struct{}), size: max(messageSize, emptyRequestSize)}
	b.waiting = append(b.waiting, s)
	return SpaceWait{freed: s.freed, onDone: func() { b.removeSenderOrWakeNext(s) }}
}

// removeSenderOrWakeNext is called when the sender s stops waiting. If s has not been woken, it removes s from the
// waiting senders. Otherwise, s has been woken and has sent its message or given up. If s was the last woken sender and
// the mailbox is empty, removeSenderOrWakeNext wakes the next senders, because no read of the mailbox will do so.
func (b *Mailbox) removeSenderOrWakeNext(s *waitingSender) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !s.woken {
		b.waiting = slices.DeleteFunc(b.waiting, func(o *waitingSender) bool { return o == s })
		return
	}
	if b.wokenBytes -= s.size; b.wokenBytes == 0 && b.numRequests == 0 {
		b.wakeSendersThatFit()
	}
}

// wakeSendersThatFit wakes waiting senders in order, as long as the messages of all woken senders fit into
// 1/waitersShare of MaxBytes. If no woken sender is still about to send, the first waiting sender is woken even if its
// message does not fit.
func (b *Mailbox) wakeSendersThatFit() {
	n := 0
	for room := b.MaxBytes / waitersShare; n < len(b.waiting); n++ {
		s := b.waiting[n]
		if b.wokenBytes > 0 && b.wokenBytes+s.size > room {
			break
		}
		b.wokenBytes += s.size
		s.woken = true
		close(s.freed)
	}
	if b.waiting = slices.Delete(b.waiting, 0, n); len(b.waiting) == 0 {
		b.waiting = nil
	}
}

// TakeQueued removes all queued requests and returns them with their data. If output is still delayed and other
// requests need not wait for it, TakeQueued takes only those other requests. The caller must pass the results to
// Recycle.
func (b *Mailbox) TakeQueued() (requests []QueuedRequest, data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.urgent) > 0 && !b.released {
		requests, b.urgent = b.urgent, nil
		b.numRequests -= len(requests)
		b.nonEmpty.Store(false)
		b.wakeSendersThatFit()
		return requests, nil
	}
	requests, b.queue, b.spareQueue = b.queue, b.spareQueue, nil
	if len(b.urgent) > 0 {
		requests, b.urgent = append(b.urgent, requests...), nil
	}
	data, b.data, b.spareData = b.data, b.spareData, nil
	b.numRequests, b.bytes, b.lastShared = 0, 0, nil
	b.takenMemory, b.queuedMemory = b.takenMemory+b.queuedMemory, 0
	b.stopMergingIntoBatches()
	b.wakeSendersThatFit()
	b.released = false
	b.nonEmpty.Store(false)
	if b.maxDelayedBytes > 0 {
		b.hasDelayed.Store(false)
		b.delayEnd = 0
	}
	return requests, data
}

const maxKeptSmall = 8

// Recycle takes back the memory of requests that TakeQueued has returned. It keeps some of the memory for reuse and
// frees the rest. The caller must subtract memoryToUncount from the counter Buffered.
func (b *Mailbox) Recycle(requests []QueuedRequest, data []byte) (memoryToUncount int) {
	clear(requests)
	b.mu.Lock()
	defer b.mu.Unlock()
	keep := maxKeptData / 32
	if b.Small {
		keep = maxKeptSmall
	}
	if cap(requests) <= keep {
		b.spareQueue = requests[:0]
	}
	if b.Small || cap(data) > maxKeptData {
		putDataBufferIfClassSize(data)
	} else if data != nil {
		b.spareData = data[:0]
	}
	memoryToUncount, b.takenMemory = b.takenMemory, 0
	return memoryToUncount
}

// RejectFurtherPosts makes later calls of Put fail with ErrClosed, and wakes the waiting senders. Requests that are
// already queued can still be taken.
func (b *Mailbox) RejectFurtherPosts() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.releaseDelayedLocked()
	for _, s := range b.waiting {
		s.woken = true
		close(s.freed)
	}
	b.waiting = nil
}
