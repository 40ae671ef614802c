package engine

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// mark is the part of a connection that everyone may touch: its generation in
// the upper 32 bits, and in the lower the bytes that were posted and not sent,
// with noBytes for each piece of mail that has none. Between them a bit says that
// senders wait until less is posted; see senders.
//
//	63            32 31       30            0
//	┌───────────────┬────────┬──────────────┐
//	│  generation   │ awaited│ posted bytes │
//	└───────────────┴────────┴──────────────┘
//
// The generation goes up when a connection starts to close; one that closes in
// order does so only when nothing is posted, in one step, so that no mail that
// was accepted is lost to it. A reservation
// outlives it: whoever takes the mail out releases the bytes, whatever
// connection has the slot by then, so the two halves never get out of step.
// After 2³² connections in one slot a generation comes again.
type mark struct{ v atomic.Uint64 }

// awaited is the bit of those who wait. It is only ever set while something is posted.
const awaited = 1 << 31

func (m *mark) generation() uint32 { return uint32(m.v.Load() >> 32) }
func (m *mark) posted() int        { return postedIn(m.v.Load()) }

// postedIn is how much is posted by a value of a mark.
func postedIn(v uint64) int { return int(uint32(v) &^ awaited) }

// next begins another generation, and says whether somebody waits.
func (m *mark) next() bool { return m.v.Add(1<<32)&awaited != 0 }

// release takes a reservation back, and says what is left if somebody waits for that.
func (m *mark) release(n int) (left int, wanted bool) {
	v := m.v.Add(-uint64(n))
	return postedIn(v), v&awaited != 0
}

// await says that somebody waits until no more than most bytes are posted. It answers
// false if that is so already, or the generation is another one.
func (m *mark) await(gen uint32, most int) bool {
	for {
		v := m.v.Load()
		if uint32(v>>32) != gen || postedIn(v) <= most {
			return false
		}
		if v&awaited != 0 || m.v.CompareAndSwap(v, v|awaited) {
			return true
		}
	}
}

// woken takes that back.
func (m *mark) woken() { m.v.And(^uint64(awaited)) }

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
		if int64(postedIn(v))+int64(n) > min(int64(most), awaited-1) {
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
	return r.c.host.panicked(r, peer, value, stack)
}

// ResumeLayer posts a request to call the layer's Resume.
func (r Ref) ResumeLayer() error { return r.post(Request{Kind: MailResumeLayer}) }

// ID numbers the connection among all that there ever were with the same owners, from 1
// on; that of the zero Ref is 0.
func (r Ref) ID() uint64 {
	if r.c == nil {
		return 0
	}
	h := r.c.host
	return uint64(r.gen)<<32 | uint64(uint32(r.c.slot)*uint32(max(h.Loops, 1))+uint32(h.Index)+1)
}

// Slot is where the connection is kept, and which one it is there.
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

// ReserveBroadcast makes mail of a message to all, for a connection that is open and with
// a worker, which is to be Mailed when it is back. It fails when so much is held or
// posted for it already as may be. Anyone may call it.
func (c *Conn) ReserveBroadcast(s *Shared) (Mail, error) {
	gen := c.mark.generation()
	if err := c.mark.reserve(gen, max(len(s.Bytes), noBytes), c.host.Limits.MaxUnsent); err != nil {
		return Mail{}, err
	}
	s.hold()
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

// Closed says whether the connection has begun to close, or never was: then it
// has no more mail from here. Anyone may ask.
func (r Ref) Closed() bool { return r.c == nil || r.c.mark.generation() != r.gen }

// What a Ref tells of its connection is read under a guard, and under that guard the
// owner ends the generation, once for each connection. So who has it and finds the
// generation to be the Ref's may read what does not change from Open on, and what the
// owner changes under the guard, too: until the guard is let go, neither the entry nor the
// descriptor becomes another connection's.

// guards are locks that connections share, by slot.
type guards [64]sync.Mutex

func (c *Conn) guard() *sync.Mutex { return &c.host.guards[c.slot%uint32(len(c.host.guards))] }

// look calls f, unless the connection has begun to close. Meanwhile it does not.
func (r Ref) look(f func(c *Conn)) bool {
	if r.Closed() {
		return false
	}
	g := r.c.guard()
	g.Lock()
	defer g.Unlock()
	if r.Closed() {
		return false
	}
	f(r.c)
	return true
}

// Peer is Conn.Peer. It answers false when the connection has begun to close.
func (r Ref) Peer() (peer netip.AddrPort, ok bool) {
	ok = r.look(func(c *Conn) { peer = c.Peer() })
	return peer, ok
}

// LocalAddr is our side's address; the zero value if it has no port. It answers false
// when the connection has begun to close, or where it would have to wait on a loop: see
// Loop.AskLocalAddr.
func (r Ref) LocalAddr() (local netip.AddrPort, ok bool) {
	switch {
	case r.Closed():
		return local, false
	case r.c.host.NoDetach && r.c.host.Loop != nil:
		return r.c.host.Loop.AskLocalAddr(r)
	}
	ok = r.look(func(c *Conn) {
		if c.host.LocalAddr != nil {
			local = c.host.LocalAddr(c)
		}
	})
	return local, ok
}

// Value is Conn.Value. It answers false when the connection has begun to close.
func (r Ref) Value() (v any, ok bool) {
	ok = r.look(func(c *Conn) {
		if v = c.user; v != nil {
			if o, is := v.(Owned); is { // its state is for the owner
				v = o.Value()
			}
		}
	})
	return v, ok
}
