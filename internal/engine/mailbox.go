package engine

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// MailKind says what a piece of mail asks for.
type MailKind uint8

const (
	// MailSend carries bytes to send.
	MailSend MailKind = iota
	// MailClose asks to close when the output so far is sent.
	MailClose
	// MailNudge asks for a call of the handler's Nudged.
	MailNudge
	// MailCast carries a message to all.
	MailCast
	// MailResumeLayer asks for a call of the layer's Resume.
	MailResumeLayer
	// MailDo asks for a call of Shared.Do.
	MailDo
	// MailLatest says that there is a value to take; see Latest.
	MailLatest
)

// Mail is one request from outside to a connection. Its bytes, Size of them,
// lie in the batch's data in the order of the mail, unless they are shared.
type Mail struct {
	Conn   *Conn
	shared *Shared
	many   *manyMail // what it is part of, if it is for many; without a Conn it is all of that
	gen    uint32
	Size   uint32
	Kind   MailKind
}

// MailSize is the memory of a Mail.
const MailSize = int(unsafe.Sizeof(Mail{}))

// done releases what the mail shares with other mail. It is called once, when the
// connection has got the mail, or never will.
func (m Mail) done() {
	switch {
	case m.many != nil:
		m.many.release()
	case m.shared != nil:
		m.shared.release()
	}
}

// Drop drops the mail if it carries bytes. It reports whether it did.
func (m Mail) Drop() bool {
	if m.Kind != MailSend && m.Kind != MailCast {
		return false
	}
	n := int(m.Size)
	if m.shared != nil {
		n = len(m.shared.Bytes)
	}
	m.Conn.unpost(max(n, noBytes))
	m.done()
	return true
}

// Late says that the connection has begun to close since the mail was posted. Such
// mail may be given to Mailed whoever owns the connection: that only takes its
// reservation back.
func (m Mail) Late() bool { return m.gen != m.Conn.mark.generation() }

// Shared is a message to many connections, or something to do on them, kept once for
// all of them. It is not changed any more.
type Shared struct {
	Bytes []byte
	Do    func(*Conn)
	// Lost, if set, is called instead of Do when the connection has begun to close. It
	// is called on any goroutine, and does not block.
	Lost   func()
	latest *Latest // of MailLatest
	// counters, if set, counts the memory of Bytes as Buffered, once, while there are
	// holders: mail, or a broadcast under way.
	counters *Counters
	holders  atomic.Int32
}

// hold counts one more holder.
func (s *Shared) hold() {
	if s.counters != nil && s.holders.Add(1) == 1 {
		s.counters.Add(Buffered, int64(cap(s.Bytes)))
	}
}

// release counts one holder less.
func (s *Shared) release() {
	if s.counters != nil && s.holders.Add(-1) == 0 {
		s.counters.Add(Buffered, -int64(cap(s.Bytes)))
	}
}

// Request is what is asked of a connection from outside: to send Bytes and the Pieces
// behind them, which are copied, or Shared, which is not, or something that needs neither.
type Request struct {
	Kind   MailKind
	Bytes  []byte
	Pieces [][]byte
	Shared *Shared
	// limit, if above 0, bounds what is posted for the connection instead of MaxUnsent. Its
	// sender can wait, so a mailbox takes no more than a part of MaxBytes from such.
	limit int
	// room, if set, is filled in when the connection's owner has no room.
	room *Room
	// alwaysFits is for what is posted seldom enough to have room always.
	alwaysFits bool
	// left, if set, says whom it is not for any more.
	left *leavers
}

// Paced reports whether the sender can wait for room.
func (r *Request) Paced() bool { return r.limit > 0 }

// AwaitRoom has the sender of r, if it waits, wait until freed is closed.
func (r *Request) AwaitRoom(freed <-chan struct{}) {
	if r.room != nil {
		*r.room = Room{freed: freed}
	}
}

// Room is what a sender waits for whose connection's owner has no room.
type Room struct {
	freed <-chan struct{} // closed when there may be room
	leave func()          // for done
}

// done says that the sender has tried again, or won't.
func (r Room) done() {
	if r.leave != nil {
		r.leave()
	}
}

func (r Request) size() int {
	if r.Shared != nil {
		return len(r.Shared.Bytes)
	}
	return r.copied()
}

// copied is how many bytes are copied.
func (r Request) copied() int {
	n := len(r.Bytes)
	for _, p := range r.Pieces {
		n += len(p)
	}
	return n
}

// noBytes is what mail without bytes counts for in a mark.
const noBytes = 1

// keepMail is the most room that an emptied mailbox keeps, and pacedPart the part of
// MaxBytes that is for those who can wait for room: the rest is for those who can't.
const (
	keepMail  = 64 << 10
	pacedPart = 4
)

// The bounds of all mailboxes of an engine together: a part of MaxBuffered, but for
// leastMailBytes and leastMail each.
const (
	mailPart       = 16
	leastMailBytes = 64 << 10
	leastMail      = 1 << 10
)

// Mailbox gives the bounds of the mailbox of each of so many loops.
func (l *Limits) Mailbox(loops int) (mail, bytes int) {
	if l.MaxBuffered == 0 {
		return l.MaxMail, l.MaxMailBytes
	}
	most := l.MaxBuffered / mailPart / loops
	return min(l.MaxMail, max(most/MailSize, leastMail)), min(l.MaxMailBytes, max(most, leastMailBytes))
}

// Mailbox is how work reaches an owner from outside: many goroutines Put, the
// owner Takes. The lock covers the check for room, the reservation on the
// connection's mark and the append together, so that a reservation always has
// its mail in the box.
//
// The memory of mail is counted from Put on; what Take takes stays counted until the
// owner has given it out, see Done. An empty box is not counted, and keeps little.
type Mailbox struct {
	// Max is the most messages that wait. Requests without bytes, such as
	// to close, which frees what others wait for, have room for as many
	// again.
	Max int
	// MaxBytes is the most bytes that wait, shared ones in each box once for all mail that
	// follows on another, but for one message: a larger one is taken into an empty box.
	MaxBytes int
	// Counters, if set, counts the memory of mail as Buffered.
	Counters *Counters
	// Small is for boxes of which there are many: they keep next to nothing.
	Small bool

	mu     sync.Mutex
	mail   []Mail
	data   []byte
	n      int // how much mail, for each connection
	bytes  int // of all mail, shared ones too
	closed bool
	// last is what the last mail shares, counted the memory that is counted of mail that
	// waits, and taken that of mail that was taken.
	last           *Shared
	counted, taken int
	// A run is mail for many that has nothing else in between; runOf is the set that the last
	// one is of, nil if that was ended.
	run   uint64
	runOf *set
	// The room of the last batch, while nobody uses it.
	spareMail []Mail
	spareData []byte
	nonEmpty  atomic.Bool // mail waits; read without the lock
	missed    atomic.Int64
	// senders wait until the box is emptied, the first to wait first. coming is the bytes of
	// those that were woken and have not tried again.
	senders []*boxSender
	coming  int
}

// boxSender is a sender that waits for a box.
type boxSender struct {
	freed chan struct{}
	size  int
	woken bool
}

// Put leaves mail for a connection of generation gen. The caller wakes the owner.
// The errors are ErrClosed and ErrFull; then nothing was left.
func (b *Mailbox) Put(c *Conn, gen uint32, r Request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	most := b.Max
	if r.Kind != MailSend && r.Kind != MailCast {
		most *= 2
	}
	size, limit := r.size(), c.host.Limits.MaxUnsent
	room := b.MaxBytes
	if r.Paced() {
		room, limit = room/pacedPart, r.limit
	}
	more := b.adds(r.Shared, size)
	switch {
	case b.closed:
		return ErrClosed
	case r.left != nil && r.left.has(Ref{c, gen}):
		return errLeft
	case b.n >= most && !r.alwaysFits, more > 0 && b.bytes > 0 && more > room-b.bytes:
		if r.room != nil {
			*r.room = b.awaitRoom(size)
		}
		return ErrFull
	}
	if size == 0 {
		size, limit = noBytes, math.MaxInt
	}
	if err := c.mark.reserve(gen, size, limit); err != nil {
		return err
	}
	copied := 0
	if r.Shared != nil {
		r.Shared.hold()
	} else {
		copied = r.copied()
	}
	b.n++
	b.bytes += more
	b.last = r.Shared
	b.endRun()
	b.makeRoom(copied)
	b.mail = append(b.mail, Mail{Conn: c, shared: r.Shared, gen: gen, Size: uint32(copied), Kind: r.Kind})
	b.data = append(b.data, r.Bytes...)
	for _, p := range r.Pieces {
		b.data = append(b.data, p...)
	}
	return nil
}

// makeRoom prepares for one more piece of mail, with n bytes.
func (b *Mailbox) makeRoom(n int) {
	if b.counted == 0 {
		b.nonEmpty.Store(true)
	}
	if b.counted == 0 || len(b.mail) == cap(b.mail) || n > cap(b.data)-len(b.data) {
		b.grow(n)
	}
}

// adds gives how many bytes a message of some adds, which shares s or nothing.
func (b *Mailbox) adds(s *Shared, size int) int {
	if s != nil && s == b.last {
		return 0
	}
	return size
}

// count counts the memory of so many pieces of mail, and bytes.
func (b *Mailbox) count(mail, data int) {
	n := mail*MailSize + data
	if b.Counters != nil {
		b.Counters.Add(Buffered, int64(n-b.counted))
	}
	b.counted = n
}

// Memory gives how much is counted of mail that waits, or was taken and is not done.
func (b *Mailbox) Memory() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.counted + b.taken
}

// PutShared leaves something shared, of a kind, for whoever the entry serves. Anyone may
// call it, as long as that is this connection and no other. The caller wakes the owner.
func (b *Mailbox) PutShared(c *Conn, kind MailKind, s *Shared) error {
	return b.Put(c, c.mark.generation(), Request{Kind: kind, Shared: s})
}

// Miss counts a message to all that had no room in the box of one connection, and
// Missed gives those that were counted since it was last called.
func (b *Mailbox) Miss() { b.missed.Add(1) }

func (b *Mailbox) Missed() int64 {
	if b.missed.Load() == 0 {
		return 0
	}
	return b.missed.Swap(0)
}

// Waiting reports whether there is mail, without a lock.
func (b *Mailbox) Waiting() bool { return b.nonEmpty.Load() }

// grow makes room for one more piece of mail with n bytes: twice as much as there is, if that
// does, but no more bytes than an emptied box keeps if that is enough. It counts the room
// first: to allocate may take long.
func (b *Mailbox) grow(n int) {
	mail, data := cap(b.mail), cap(b.data)
	if len(b.mail) == mail {
		mail = max(2*mail, firstMail)
	}
	n += len(b.data)
	switch {
	case n <= data:
	case b.Small || n > keepMail:
		data = startSize << sizeClass(n)
	default:
		data = min(max(n, 2*data), keepMail)
	}
	b.count(mail, data)
	if mail > cap(b.mail) {
		b.mail = append(make([]Mail, 0, mail), b.mail...)
	}
	if data > cap(b.data) {
		old := b.data
		b.data = append(lendRoom(data), old...)
		returnRoom(old)
	}
}

// firstMail is how much mail the first room of a box is for.
const firstMail = 4

// rooms are what boxes share, by size class, until the next collection of garbage: small
// boxes all of it, others what is larger than they keep, up to 8 MiB.
var rooms [2 * sizeClasses]sync.Pool

// lendRoom gives an empty room of n bytes.
func lendRoom(n int) []byte {
	if class := sizeClass(n); class < len(rooms) && n == startSize<<class {
		if room, ok := rooms[class].Get().(*[]byte); ok {
			return *room
		}
	}
	return make([]byte, 0, n)
}

// returnRoom takes a room back, unless it has another size.
func returnRoom(room []byte) {
	n := cap(room)
	if class := sizeClass(n); class < len(rooms) && n == startSize<<class {
		room = room[:0]
		rooms[class].Put(&room)
	}
}

// awaitRoom queues a sender of size bytes. The Room it returns is free once they fit and no earlier sender waits.
func (b *Mailbox) awaitRoom(size int) Room {
	s := &boxSender{freed: make(chan struct{}), size: max(size, noBytes)}
	b.senders = append(b.senders, s)
	return Room{freed: s.freed, leave: func() { b.leave(s) }}
}

// leave notes that a sender does not wait any more. Where the last one that was woken has left
// nothing, nobody empties the box, so that others are woken here.
func (b *Mailbox) leave(s *boxSender) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !s.woken {
		b.senders = slices.DeleteFunc(b.senders, func(o *boxSender) bool { return o == s })
		return
	}
	if b.coming -= s.size; b.coming == 0 && b.n == 0 {
		b.wakeSenders()
	}
}

// wakeSenders wakes as many as an empty box has room for, and at least one.
func (b *Mailbox) wakeSenders() {
	n := 0
	for room := b.MaxBytes / pacedPart; n < len(b.senders); n++ {
		s := b.senders[n]
		if b.coming > 0 && b.coming+s.size > room {
			break
		}
		b.coming += s.size
		s.woken = true
		close(s.freed)
	}
	if b.senders = slices.Delete(b.senders, 0, n); len(b.senders) == 0 {
		b.senders = nil
	}
}

// Take empties the box. The caller gives the room back with Done.
func (b *Mailbox) Take() (mail []Mail, data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	mail, b.mail, b.spareMail = b.mail, b.spareMail, nil
	data, b.data, b.spareData = b.data, b.spareData, nil
	b.n, b.bytes, b.last = 0, 0, nil
	b.taken, b.counted = b.taken+b.counted, 0
	b.endRun()
	b.wakeSenders()
	b.nonEmpty.Store(false)
	return mail, data
}

// keepSmall is the most mail that an emptied small box keeps the room of.
const keepSmall = 8

// Done gives the room of what was taken back to the box, unless it is much. It gives how
// much of it is counted as Buffered: that is the caller's to take back.
func (b *Mailbox) Done(mail []Mail, data []byte) (counted int) {
	clear(mail)
	b.mu.Lock()
	defer b.mu.Unlock()
	keep := keepMail / 32
	if b.Small {
		keep = keepSmall
	}
	if cap(mail) <= keep {
		b.spareMail = mail[:0]
	}
	if b.Small || cap(data) > keepMail {
		returnRoom(data)
	} else {
		b.spareData = data[:0]
	}
	counted, b.taken = b.taken, 0
	return counted
}

// Close makes every later Put fail with ErrClosed. Mail that waits can still
// be taken.
func (b *Mailbox) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, s := range b.senders {
		s.woken = true
		close(s.freed)
	}
	b.senders = nil
}
