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
)

// Mail is one request from outside to a connection. Its bytes, Size of them,
// lie in the batch's data in the order of the mail.
type Mail struct {
	Conn *Conn
	gen  uint32
	Size uint32
	Kind MailKind
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
	// MaxBytes is the most bytes that wait, but for one message: a larger
	// one is taken into an empty box.
	MaxBytes int

	mu     sync.Mutex
	mail   []Mail
	data   []byte
	closed bool
	// The room of the last batch, while nobody uses it.
	spareMail []Mail
	spareData []byte
	some      atomic.Bool // mail waits; read without the lock
}

// Put leaves mail for a connection of generation gen. It copies data. The
// caller wakes the owner. The errors are ErrClosed and ErrFull; then nothing
// was left.
func (b *Mailbox) Put(c *Conn, gen uint32, kind MailKind, data []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	most := b.Max
	if kind != MailSend {
		most *= 2
	}
	switch {
	case b.closed:
		return ErrClosed
	case len(b.mail) >= most, len(data) > 0 && len(b.data) > 0 && len(b.data)+len(data) > b.MaxBytes:
		return ErrFull
	}
	size, limit := len(data), c.host.Limits.MaxUnsent
	if size == 0 {
		size, limit = noBytes, math.MaxInt
	}
	if err := c.mark.reserve(gen, size, limit); err != nil {
		return err
	}
	b.mail = append(b.mail, Mail{Conn: c, gen: gen, Size: uint32(len(data)), Kind: kind})
	b.data = append(b.data, data...)
	b.some.Store(true)
	return nil
}

// Waiting says whether there is mail, without a lock.
func (b *Mailbox) Waiting() bool { return b.some.Load() }

// Take empties the box. The caller gives the room back with Done.
func (b *Mailbox) Take() (mail []Mail, data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	mail, b.mail, b.spareMail = b.mail, b.spareMail, nil
	data, b.data, b.spareData = b.data, b.spareData, nil
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
		if int(uint32(v))+n > most {
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

// Send posts a copy of p to be sent.
func (r Ref) Send(p []byte) error { return r.post(MailSend, p) }

// Close posts a request to close.
func (r Ref) Close() error { return r.post(MailClose, nil) }

// Nudge posts a request to call the handler's Nudged; see Nudger.
func (r Ref) Nudge() error { return r.post(MailNudge, nil) }

// Slot and Generation tell connections apart in logs.
func (r Ref) Slot() (owner int, slot, generation uint32) {
	if r.c == nil {
		return 0, 0, 0
	}
	return r.c.host.Index, r.c.slot, r.gen
}

func (r Ref) post(kind MailKind, p []byte) error {
	if r.c == nil || r.c.mark.generation() != r.gen {
		return ErrClosed
	}
	if len(p) > r.c.host.Limits.MaxUnsent {
		return ErrTooLarge
	}
	return r.c.host.Poster.Post(r.c, r.gen, kind, p)
}
