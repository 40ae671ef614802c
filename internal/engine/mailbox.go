package engine

import (
	"math"
	"sync"
	"sync/atomic"
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
	many   *manyMail // of mail for many, which has nothing else
	gen    uint32
	Size   uint32
	Kind   MailKind
}

// Bytes is how many bytes it carries.
func (m Mail) Bytes() int {
	if m.shared != nil {
		return len(m.shared.Bytes)
	}
	return int(m.Size)
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
}

// Request is what is asked of a connection from outside: to send Bytes and the Pieces
// behind them, which are copied, or Shared, which is not, or something that needs neither.
type Request struct {
	Kind   MailKind
	Bytes  []byte
	Pieces [][]byte
	Shared *Shared
	// limit, if above 0, bounds what is posted for the connection instead of MaxUnsent.
	limit int
	// room, if set, gets what is closed when a mailbox is emptied that was full.
	room *<-chan struct{}
	// alwaysFits is for what is posted seldom enough to have room always.
	alwaysFits bool
	// left, if set, says whom it is not for any more.
	left *leavers
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

// keepMail is the most room that an emptied mailbox keeps.
const keepMail = 64 << 10

// Mailbox is how work reaches an owner from outside: many goroutines Put, the
// owner Takes. The lock covers the check for room, the reservation on the
// connection's mark and the append together, so that a reservation always has
// its mail in the box.
type Mailbox struct {
	// Max is the most messages that wait. Requests without bytes, such as
	// to close, which frees what others wait for, have room for as many
	// again.
	Max int
	// MaxBytes is the most bytes that wait, shared ones in each box, but for
	// one message: a larger one is taken into an empty box.
	MaxBytes int

	mu     sync.Mutex
	mail   []Mail
	data   []byte
	n      int // how much mail, for each connection
	bytes  int // of all mail, shared ones too
	closed bool
	// A run is mail for many that has nothing else in between; runOf is the set that the last
	// one is of, nil if that was ended.
	run   uint64
	runOf *set
	// The room of the last batch, while nobody uses it.
	spareMail []Mail
	spareData []byte
	nonEmpty  atomic.Bool // mail waits; read without the lock
	missed    atomic.Int64
	room      chan struct{} // nil if nobody waits until it is emptied
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
	switch {
	case b.closed:
		return ErrClosed
	case r.left != nil && r.left.has(Ref{c, gen}):
		return errLeft
	case b.n >= most && !r.alwaysFits, size > 0 && b.bytes > 0 && size > b.MaxBytes-b.bytes:
		if r.room != nil {
			*r.room = b.roomFreed()
		}
		return ErrFull
	}
	if r.limit > 0 {
		limit = r.limit
	}
	b.bytes += size
	if size == 0 {
		size, limit = noBytes, math.MaxInt
	}
	if err := c.mark.reserve(gen, size, limit); err != nil {
		b.bytes -= r.size()
		return err
	}
	b.n++
	b.endRun()
	b.mail = append(b.mail, Mail{Conn: c, shared: r.Shared, gen: gen, Size: uint32(r.copied()), Kind: r.Kind})
	b.grow(r.copied())
	b.data = append(b.data, r.Bytes...)
	for _, p := range r.Pieces {
		b.data = append(b.data, p...)
	}
	b.nonEmpty.Store(true)
	return nil
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

// Waiting says whether there is mail, without a lock.
func (b *Mailbox) Waiting() bool { return b.nonEmpty.Load() }

// grow makes room for n bytes, up to as much as an emptied box keeps: what append would
// make of that may be more, and be made anew each time.
func (b *Mailbox) grow(n int) {
	if n += len(b.data); n > cap(b.data) && n <= keepMail {
		room := min(max(n, 2*cap(b.data)), keepMail)
		b.data = append(make([]byte, 0, room), b.data...)
	}
}

// roomFreed gives a channel that is closed when the box is emptied.
func (b *Mailbox) roomFreed() <-chan struct{} {
	if b.room == nil {
		b.room = make(chan struct{})
	}
	return b.room
}

// Take empties the box. The caller gives the room back with Done.
func (b *Mailbox) Take() (mail []Mail, data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	mail, b.mail, b.spareMail = b.mail, b.spareMail, nil
	data, b.data, b.spareData = b.data, b.spareData, nil
	b.n, b.bytes = 0, 0
	b.endRun()
	b.nonEmpty.Store(false)
	if b.room != nil {
		close(b.room)
		b.room = nil
	}
	return mail, data
}

// Done gives the room of what was taken back to the box, unless it is much.
func (b *Mailbox) Done(mail []Mail, data []byte) {
	clear(mail)
	b.mu.Lock()
	defer b.mu.Unlock()
	if cap(mail) <= keepMail/32 {
		b.spareMail = mail[:0]
	}
	if cap(data) <= keepMail {
		b.spareData = data[:0]
	}
}

// Close makes every later Put fail with ErrClosed. Mail that waits can still
// be taken.
func (b *Mailbox) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
}
