package engine

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// RequestKind says what a piece of mail asks for.
type RequestKind uint8

const (
	// RequestSend carries bytes to send.
	RequestSend RequestKind = iota
	// RequestClose asks to close when the output so far is sent.
	RequestClose
	// RequestNudge asks for a call of the handler's Nudged.
	RequestNudge
	// RequestBroadcast carries a message to all.
	RequestBroadcast
	// RequestResumeLayer asks for a call of the layer's Resume.
	RequestResumeLayer
	// RequestDo asks for a call of Shared.Do.
	RequestDo
	// RequestLatest says that there is a value to take; see Latest.
	RequestLatest
)

// QueuedRequest is one request from outside to a connection. Its bytes, Size of them,
// lie in the batch's data in the order of the mail, unless they are shared.
type QueuedRequest struct {
	Conn   *Conn
	shared *Shared
	batch  *batchRequest // what it is part of, if it is for many; without a Conn it is all of that
	gen    uint32
	Size   uint32
	Kind   RequestKind
}

// QueuedRequestSize is the memory of a Mail.
const QueuedRequestSize = int(unsafe.Sizeof(QueuedRequest{}))

// release releases what the mail shares with other mail. It is called once, when the
// connection has got the mail, or never will.
func (m QueuedRequest) release() {
	switch {
	case m.batch != nil:
		m.batch.removeHolder()
	case m.shared != nil:
		m.shared.removeHolder()
	}
}

// DropIfBytes drops the mail if it carries bytes. It reports whether it did.
func (m QueuedRequest) DropIfBytes() bool {
	if m.Kind != RequestSend && m.Kind != RequestBroadcast {
		return false
	}
	n := int(m.Size)
	if m.shared != nil {
		n = len(m.shared.Bytes)
	}
	m.Conn.releasePosted(max(n, emptyRequestSize))
	m.release()
	return true
}

// IsStale says that the connection has begun to close since the mail was posted. Such
// mail may be given to Mailed whoever owns the connection: that only takes its
// reservation back.
func (m QueuedRequest) IsStale() bool { return m.gen != m.Conn.refState.generation() }

// Shared is a message to many connections, or something to do on them, kept once for
// all of them. It is not changed any more.
type Shared struct {
	Bytes []byte
	Do    func(*Conn)
	// OnLost, if set, is called instead of Do when the connection has begun to close. It
	// is called on any goroutine, and does not block.
	OnLost func()
	latest *LatestSubscription // of RequestLatest
	// counters, if set, counts the memory of Bytes as Buffered, once, while there are
	// holders: mail, or a broadcast under way.
	counters *Counters
	holders  atomic.Int32
}

// addHolder counts one more holder.
func (s *Shared) addHolder() {
	if s.counters != nil && s.holders.Add(1) == 1 {
		s.counters.Add(Buffered, int64(cap(s.Bytes)))
	}
}

// removeHolder counts one holder less.
func (s *Shared) removeHolder() {
	if s.counters != nil && s.holders.Add(-1) == 0 {
		s.counters.Add(Buffered, -int64(cap(s.Bytes)))
	}
}

// Request is what is asked of a connection from outside: to send Bytes and the Pieces
// behind them, which are copied, or Shared, which is not, or something that needs neither.
type Request struct {
	Kind   RequestKind
	Bytes  []byte
	Pieces [][]byte
	Shared *Shared
	// postedLimit, if above 0, bounds what is posted for the connection instead of MaxUnsent. Its
	// sender can wait, so a mailbox takes no more than a part of MaxBytes from such.
	postedLimit int
	// spaceWait, if set, is filled in when the connection's owner has no room.
	spaceWait *SpaceWait
	// alwaysFits is for what is posted seldom enough to have room always.
	alwaysFits bool
	// removed, if set, says whom it is not for any more.
	removed *removedConns
}

// CanWait reports whether the sender can wait for room.
func (r *Request) CanWait() bool { return r.postedLimit > 0 }

// SetSpaceWait has the sender of r, if it waits, wait until freed is closed.
func (r *Request) SetSpaceWait(freed <-chan struct{}) {
	if r.spaceWait != nil {
		*r.spaceWait = SpaceWait{freed: freed}
	}
}

// SpaceWait is what a sender waits for whose connection's owner has no room.
type SpaceWait struct {
	freed  <-chan struct{} // closed when there may be room
	onDone func()          // for done
}

// release says that the sender has tried again, or won't.
func (r SpaceWait) release() {
	if r.onDone != nil {
		r.onDone()
	}
}

func (r Request) dataSize() int {
	if r.Shared != nil {
		return len(r.Shared.Bytes)
	}
	return r.copiedBytes()
}

// copiedBytes is how many bytes are copied.
func (r Request) copiedBytes() int {
	n := len(r.Bytes)
	for _, p := range r.Pieces {
		n += len(p)
	}
	return n
}

// emptyRequestSize is what mail without bytes counts for in a mark.
const emptyRequestSize = 1

// maxKeptData is the most room that an emptied mailbox keeps, and waitersShare the part of
// MaxBytes that is for those who can wait for room: the rest is for those who can't.
const (
	maxKeptData  = 64 << 10
	waitersShare = 4
)

// The bounds of all mailboxes of an engine together: a part of MaxBuffered, but for
// minMailboxBytes and minMailboxRequests each.
const (
	mailboxShare       = 16
	minMailboxBytes    = 64 << 10
	minMailboxRequests = 1 << 10
)

// MailboxBounds gives the bounds of the mailbox of each of so many loops.
func (l *Limits) MailboxBounds(loops int) (maxRequests, maxBytes int) {
	if l.MaxBuffered == 0 {
		return l.MaxMail, l.MaxMailBytes
	}
	share := l.MaxBuffered / mailboxShare / loops
	return min(l.MaxMail, max(share/QueuedRequestSize, minMailboxRequests)), min(l.MaxMailBytes, max(share, minMailboxBytes))
}

// Mailbox is how work reaches an owner from outside: many goroutines Put, the
// owner Takes. The lock covers the check for room, the reservation on the
// connection's mark and the append together, so that a reservation always has
// its mail in the box.
//
// The memory of mail is counted from Put on; what Take takes stays counted until the
// owner has given it out, see Done. An empty box is not counted, and keeps little.
type Mailbox struct {
	// MaxRequests is the most messages that wait. Requests without bytes, such as
	// to close, which frees what others wait for, have room for as many
	// again.
	MaxRequests int
	// MaxBytes is the most bytes that wait, shared ones in each box once for all mail that
	// follows on another, but for one message: a larger one is taken into an empty box.
	MaxBytes int
	// Counters, if set, counts the memory of mail as Buffered.
	Counters *Counters
	// Small is for boxes of which there are many: they keep next to nothing.
	Small bool

	mu          sync.Mutex
	queue       []QueuedRequest
	data        []byte
	numRequests int // how much mail, for each connection
	bytes       int // of all mail, shared ones too
	closed      bool
	// lastShared is what the last mail shares, counted the memory that is counted of mail that
	// waits, and taken that of mail that was taken.
	lastShared                *Shared
	queuedMemory, takenMemory int
	// A run is mail for many that has nothing else in between; batchSet is the set that the last
	// one is of, nil if that was ended.
	batchRun uint64
	batchSet *connSet
	// The room of the last batch, while nobody uses it.
	spareQueue       []QueuedRequest
	spareData        []byte
	nonEmpty         atomic.Bool // mail waits; read without the lock
	missedBroadcasts atomic.Int64
	// waiting wait until the box is emptied, the first to wait first. coming is the bytes of
	// those that were woken and have not tried again.
	waiting    []*waitingSender
	wokenBytes int
}

// waitingSender is a sender that waits for a box.
type waitingSender struct {
	freed chan struct{}
	size  int
	woken bool
}

// Put leaves mail for a connection of generation gen. The caller wakes the owner.
// The errors are ErrClosed and ErrFull; then nothing was left.
func (b *Mailbox) Put(c *Conn, gen uint32, r Request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	maxRequests := b.MaxRequests
	if r.Kind != RequestSend && r.Kind != RequestBroadcast {
		maxRequests *= 2
	}
	size, postedLimit := r.dataSize(), c.runtime.Limits.MaxUnsent
	maxBytes := b.MaxBytes
	if r.CanWait() {
		maxBytes, postedLimit = maxBytes/waitersShare, r.postedLimit
	}
	added := b.addedBytes(r.Shared, size)
	switch {
	case b.closed:
		return ErrClosed
	case r.removed != nil && r.removed.has(Ref{c, gen}):
		return errRemoved
	case b.numRequests >= maxRequests && !r.alwaysFits, added > 0 && b.bytes > 0 && added > maxBytes-b.bytes:
		if r.spaceWait != nil {
			*r.spaceWait = b.addWaitingSender(size)
		}
		return ErrFull
	}
	if size == 0 {
		size, postedLimit = emptyRequestSize, math.MaxInt
	}
	if err := c.refState.reservePosted(gen, size, postedLimit); err != nil {
		return err
	}
	copied := 0
	if r.Shared != nil {
		r.Shared.addHolder()
	} else {
		copied = r.copiedBytes()
	}
	b.numRequests++
	b.bytes += added
	b.lastShared = r.Shared
	b.closeBatches()
	b.ensureSpace(copied)
	b.queue = append(b.queue, QueuedRequest{Conn: c, shared: r.Shared, gen: gen, Size: uint32(copied), Kind: r.Kind})
	b.data = append(b.data, r.Bytes...)
	for _, p := range r.Pieces {
		b.data = append(b.data, p...)
	}
	return nil
}

// ensureSpace prepares for one more piece of mail, with n bytes.
func (b *Mailbox) ensureSpace(dataSize int) {
	if b.queuedMemory == 0 {
		b.nonEmpty.Store(true)
	}
	if b.queuedMemory == 0 || len(b.queue) == cap(b.queue) || dataSize > cap(b.data)-len(b.data) {
		b.growQueue(dataSize)
	}
}

// addedBytes gives how many bytes a message of some adds, which shares s or nothing.
func (b *Mailbox) addedBytes(s *Shared, size int) int {
	if s != nil && s == b.lastShared {
		return 0
	}
	return size
}

// setQueuedMemory counts the memory of so many pieces of mail, and bytes.
func (b *Mailbox) setQueuedMemory(requestCap, dataCap int) {
	n := requestCap*QueuedRequestSize + dataCap
	if b.Counters != nil {
		b.Counters.Add(Buffered, int64(n-b.queuedMemory))
	}
	b.queuedMemory = n
}

// CountedMemory gives how much is counted of mail that waits, or was taken and is not done.
func (b *Mailbox) CountedMemory() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.queuedMemory + b.takenMemory
}

// PutShared leaves something shared, of a kind, for whoever the entry serves. Anyone may
// call it, as long as that is this connection and no other. The caller wakes the owner.
func (b *Mailbox) PutShared(c *Conn, kind RequestKind, s *Shared) error {
	return b.Put(c, c.refState.generation(), Request{Kind: kind, Shared: s})
}

// CountMissedBroadcast counts a message to all that had no room in the box of one connection, and
// Missed gives those that were counted since it was last called.
func (b *Mailbox) CountMissedBroadcast() { b.missedBroadcasts.Add(1) }

func (b *Mailbox) TakeMissedBroadcasts() int64 {
	if b.missedBroadcasts.Load() == 0 {
		return 0
	}
	return b.missedBroadcasts.Swap(0)
}

// HasRequests reports whether there is mail, without a lock.
func (b *Mailbox) HasRequests() bool { return b.nonEmpty.Load() }

// growQueue makes room for one more piece of mail with n bytes: twice as much as there is, if that
// does, but no more bytes than an emptied box keeps if that is enough. It counts the room
// first: to allocate may take long.
func (b *Mailbox) growQueue(dataSize int) {
	requestCap, dataCap := cap(b.queue), cap(b.data)
	if len(b.queue) == requestCap {
		requestCap = max(2*requestCap, minQueueCap)
	}
	dataSize += len(b.data)
	switch {
	case dataSize <= dataCap:
	case b.Small || dataSize > maxKeptData:
		dataCap = minBufferSize << sizeClass(dataSize)
	default:
		dataCap = min(max(dataSize, 2*dataCap), maxKeptData)
	}
	b.setQueuedMemory(requestCap, dataCap)
	if requestCap > cap(b.queue) {
		b.queue = append(make([]QueuedRequest, 0, requestCap), b.queue...)
	}
	if dataCap > cap(b.data) {
		old := b.data
		b.data = append(getDataBuffer(dataCap), old...)
		putDataBuffer(old)
	}
}

// minQueueCap is how much mail the first room of a box is for.
const minQueueCap = 4

// dataBuffers are what boxes share, by size class, until the next collection of garbage: small
// boxes all of it, others what is larger than they keep, up to 8 MiB.
var dataBuffers [2 * sizeClasses]sync.Pool

// getDataBuffer gives an empty room of n bytes.
func getDataBuffer(size int) []byte {
	if class := sizeClass(size); class < len(dataBuffers) && size == minBufferSize<<class {
		if room, ok := dataBuffers[class].Get().(*[]byte); ok {
			return *room
		}
	}
	return make([]byte, 0, size)
}

// putDataBuffer takes a room back, unless it has another size.
func putDataBuffer(buffer []byte) {
	n := cap(buffer)
	if class := sizeClass(n); class < len(dataBuffers) && n == minBufferSize<<class {
		buffer = buffer[:0]
		dataBuffers[class].Put(&buffer)
	}
}

// addWaitingSender queues a sender of size bytes. The Room it returns is free once they fit and no earlier sender waits.
func (b *Mailbox) addWaitingSender(size int) SpaceWait {
	s := &waitingSender{freed: make(chan struct{}), size: max(size, emptyRequestSize)}
	b.waiting = append(b.waiting, s)
	return SpaceWait{freed: s.freed, onDone: func() { b.removeWaitingSender(s) }}
}

// removeWaitingSender notes that a sender does not wait any more. Where the last one that was woken has left
// nothing, nobody empties the box, so that others are woken here.
func (b *Mailbox) removeWaitingSender(s *waitingSender) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !s.woken {
		b.waiting = slices.DeleteFunc(b.waiting, func(o *waitingSender) bool { return o == s })
		return
	}
	if b.wokenBytes -= s.size; b.wokenBytes == 0 && b.numRequests == 0 {
		b.wakeWaitingSenders()
	}
}

// wakeWaitingSenders wakes as many as an empty box has room for, and at least one.
func (b *Mailbox) wakeWaitingSenders() {
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

// TakeAll empties the box. The caller gives the room back with Done.
func (b *Mailbox) TakeAll() (requests []QueuedRequest, data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	requests, b.queue, b.spareQueue = b.queue, b.spareQueue, nil
	data, b.data, b.spareData = b.data, b.spareData, nil
	b.numRequests, b.bytes, b.lastShared = 0, 0, nil
	b.takenMemory, b.queuedMemory = b.takenMemory+b.queuedMemory, 0
	b.closeBatches()
	b.wakeWaitingSenders()
	b.nonEmpty.Store(false)
	return requests, data
}

// maxKeptSmall is the most mail that an emptied small box keeps the room of.
const maxKeptSmall = 8

// Recycle gives the room of what was taken back to the box, unless it is much. It gives how
// much of it is counted as Buffered: that is the caller's to take back.
func (b *Mailbox) Recycle(requests []QueuedRequest, data []byte) (releasedMemory int) {
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
		putDataBuffer(data)
	} else {
		b.spareData = data[:0]
	}
	releasedMemory, b.takenMemory = b.takenMemory, 0
	return releasedMemory
}

// Close makes every later Put fail with ErrClosed. Mail that waits can still
// be taken.
func (b *Mailbox) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, s := range b.waiting {
		s.woken = true
		close(s.freed)
	}
	b.waiting = nil
}
