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
	// MailAttend asks for a call of the layer's Attend.
	MailAttend
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
	// certain is for what is posted seldom enough to have room always.
	certain bool
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
	// The room of the last batch, while nobody uses it.
	spareMail []Mail
	spareData []byte
	some      atomic.Bool // mail waits; read without the lock
	missed    atomic.Int64
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
	case b.n >= most && !r.certain, size > 0 && b.bytes > 0 && size > b.MaxBytes-b.bytes:
		return ErrFull
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
	b.mail = append(b.mail, Mail{Conn: c, shared: r.Shared, gen: gen, Size: uint32(r.copied()), Kind: r.Kind})
	b.data = append(b.data, r.Bytes...)
	for _, p := range r.Pieces {
		b.data = append(b.data, p...)
	}
	b.some.Store(true)
	return nil
}

// PutCast leaves a message to all, for a model that has no other way. Anyone may
// call it, as long as the entry serves this connection and no other. The caller
// wakes the owner.
func (b *Mailbox) PutCast(c *Conn, s *Shared) error {
	return b.Put(c, c.mark.generation(), Request{Kind: MailCast, Shared: s})
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

// PutDo leaves something to do on a connection, by the rules of PutCast.
func (b *Mailbox) PutDo(c *Conn, s *Shared) error {
	return b.Put(c, c.mark.generation(), Request{Kind: MailDo, Shared: s})
}

// Waiting says whether there is mail, without a lock.
func (b *Mailbox) Waiting() bool { return b.some.Load() }

// Take empties the box. The caller gives the room back with Done.
func (b *Mailbox) Take() (mail []Mail, data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	mail, b.mail, b.spareMail = b.mail, b.spareMail, nil
	data, b.data, b.spareData = b.data, b.spareData, nil
	b.n, b.bytes = 0, 0
	b.some.Store(false)
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

// mark is the part of a connection that everyone may touch: its generation in
// the upper 32 bits, and in the lower the bytes that were posted and not sent,
// with noBytes for each piece of mail that has none.
//
//	63            32 31             0
//	┌───────────────┬───────────────┐
//	│  generation   │ posted bytes  │
//	└───────────────┴───────────────┘
//
// The generation goes up when a connection starts to close; one that closes in
// order does so only when nothing is posted, in one step, so that no mail that
// was accepted is lost to it. A reservation
// outlives it: whoever takes the mail out releases the bytes, whatever
// connection has the slot by then, so the two halves never get out of step.
// After 2³² connections in one slot a generation comes again.
type mark struct{ v atomic.Uint64 }

func (m *mark) generation() uint32 { return uint32(m.v.Load() >> 32) }
func (m *mark) posted() int        { return int(uint32(m.v.Load())) }
func (m *mark) next()              { m.v.Add(1 << 32) }
func (m *mark) release(n int)      { m.v.Add(-uint64(n)) }

// retire is next, but only if nothing is posted.
func (m *mark) retire() bool {
	v := m.v.Load()
	return uint32(v) == 0 && m.v.CompareAndSwap(v, v+1<<32)
}

func (m *mark) reserve(gen uint32, n, most int) error {
	for {
		v := m.v.Load()
		if uint32(v>>32) != gen {
			return ErrClosed
		}
		if int64(uint32(v))+int64(n) > int64(most) {
			return ErrFull
		}
		if m.v.CompareAndSwap(v, v+uint64(n)) {
			return nil
		}
	}
}

// Ref names a connection from anywhere and safely outlives it. It is
// comparable; the zero Ref names no connection. Its methods are safe for
// concurrent use.
type Ref struct {
	c   *Conn
	gen uint32
}

// First names the first connection of an entry, for those who do not own it; where
// an entry is never used again, that is its only one.
func (c *Conn) First() Ref { return Ref{c: c} }

// Send posts a copy of p to be sent.
func (r Ref) Send(p []byte) error { return r.post(Request{Kind: MailSend, Bytes: p}) }

// Sendv is Send for pieces, one behind the other.
func (r Ref) Sendv(pieces [][]byte) error { return r.post(Request{Kind: MailSend, Pieces: pieces}) }

// SendShared is Send without a copy.
func (r Ref) SendShared(s *Shared) error { return r.post(Request{Kind: MailSend, Shared: s}) }

// Close posts a request to close.
func (r Ref) Close() error { return r.post(Request{Kind: MailClose}) }

// Nudge posts a request to call the handler's Nudged; see Nudger.
func (r Ref) Nudge() error { return r.post(Request{Kind: MailNudge}) }

// Do posts a request to call f on the connection's owner, by the rules of the handler.
func (r Ref) Do(f func(*Conn)) error { return r.post(Request{Kind: MailDo, Shared: &Shared{Do: f}}) }

// DoElse is Do with what is called instead, once, when the connection begins to close
// before: on any goroutine, and it does not block. When DoElse fails, neither is called.
func (r Ref) DoElse(f func(*Conn), lost func()) error {
	return r.post(Request{Kind: MailDo, Shared: &Shared{Do: f, Lost: lost}})
}

// Panicked counts and logs a panic of code that works elsewhere for the connection, whose
// peer is named, and makes a reason of it.
func (r Ref) Panicked(peer string, value any, stack []byte) error {
	return r.c.host.panickedAt(peer, value, stack)
}

// Attend posts a request to call the layer's Attend.
func (r Ref) Attend() error { return r.post(Request{Kind: MailAttend}) }

// Slot and Generation tell connections apart in logs.
func (r Ref) Slot() (owner int, slot, generation uint32) {
	if r.c == nil {
		return 0, 0, 0
	}
	return r.c.host.Index, r.c.slot, r.gen
}

// On is the connection itself, for its owner, whose host h is; nil if it has begun
// to close, or is another owner's.
func (r Ref) On(h *Host) *Conn {
	if r.Closed() || r.c.host != h {
		return nil
	}
	return r.c
}

// HoldCast makes mail of a message to all, for a connection that is open and with
// a worker, which is to be Mailed when it is back. It fails when so much is held or
// posted for it already as may be. Anyone may call it.
func (c *Conn) HoldCast(s *Shared) (Mail, error) {
	gen := c.mark.generation()
	if err := c.mark.reserve(gen, max(len(s.Bytes), noBytes), c.host.Limits.MaxUnsent); err != nil {
		return Mail{}, err
	}
	return Mail{Conn: c, shared: s, gen: gen, Kind: MailCast}, nil
}

func (r Ref) post(q Request) error {
	if r.c == nil || r.c.mark.generation() != r.gen {
		return ErrClosed
	}
	if q.size() > r.c.host.Limits.MaxUnsent {
		return ErrTooLarge
	}
	return r.c.host.Poster.Post(r.c, r.gen, q)
}
