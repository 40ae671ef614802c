package engine

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// refState is the part of a connection that everyone may touch: its generation in
// the upper 32 bits, and in the lower the bytes that were posted and not sent,
// with emptyRequestSize for each piece of mail that has none. Between them a bit says that
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
type refState struct{ v atomic.Uint64 }

// senderWaiting is the bit of those who wait. It is only ever set while something is posted.
const senderWaiting = 1 << 31

func (m *refState) generation() uint32 { return uint32(m.v.Load() >> 32) }
func (m *refState) postedBytes() int   { return postedBytesIn(m.v.Load()) }

// postedBytesIn is how much is posted by a value of a mark.
func postedBytesIn(v uint64) int { return int(uint32(v) &^ senderWaiting) }

// startNextGeneration begins another generation, and says whether somebody waits.
func (m *refState) startNextGeneration() bool { return m.v.Add(1<<32)&senderWaiting != 0 }

// releasePosted takes a reservation back, and says what is left if somebody waits for that.
func (m *refState) releasePosted(n int) (remaining int, senderWaits bool) {
	v := m.v.Add(-uint64(n))
	return postedBytesIn(v), v&senderWaiting != 0
}

// markSenderWaiting says that somebody waits until no more than most bytes are posted. It answers
// false if that is so already, or the generation is another one.
func (m *refState) markSenderWaiting(gen uint32, maxPosted int) bool {
	for {
		v := m.v.Load()
		if uint32(v>>32) != gen || postedBytesIn(v) <= maxPosted {
			return false
		}
		if v&senderWaiting != 0 || m.v.CompareAndSwap(v, v|senderWaiting) {
			return true
		}
	}
}

// clearSenderWaiting takes that back.
func (m *refState) clearSenderWaiting() { m.v.And(^uint64(senderWaiting)) }

// nextGenerationIfIdle is next, but only if nothing is posted.
func (m *refState) nextGenerationIfIdle() bool {
	v := m.v.Load()
	return uint32(v) == 0 && m.v.CompareAndSwap(v, v+1<<32)
}

func (m *refState) reservePosted(gen uint32, n, maxPosted int) error {
	for {
		v := m.v.Load()
		if uint32(v>>32) != gen {
			return ErrClosed
		}
		if int64(postedBytesIn(v))+int64(n) > min(int64(maxPosted), senderWaiting-1) {
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
	c          *Conn
	generation uint32
}

// Send posts a copy of p to be sent.
func (r Ref) Send(p []byte) error { return r.post(Request{Kind: RequestSend, Bytes: p}) }

// Sendv is Send for pieces, one behind the other.
func (r Ref) Sendv(pieces [][]byte) error { return r.post(Request{Kind: RequestSend, Pieces: pieces}) }

// SendShared is Send without a copy.
func (r Ref) SendShared(s *Shared) error { return r.post(Request{Kind: RequestSend, Shared: s}) }

// Close posts a request to close.
func (r Ref) Close() error { return r.post(Request{Kind: RequestClose}) }

// Nudge posts a request to call the handler's Nudged; see Nudger.
func (r Ref) Nudge() error { return r.post(Request{Kind: RequestNudge}) }

// Do posts a request to call f on the connection's owner, by the rules of the handler.
func (r Ref) Do(f func(*Conn)) error { return r.post(Request{Kind: RequestDo, Shared: &Shared{Do: f}}) }

// DoOrElse is Do with what is called instead, once, when the connection begins to close
// before: on any goroutine, and it does not block. When DoOrElse fails, neither is called.
func (r Ref) DoOrElse(f func(*Conn), onLost func()) error {
	return r.post(Request{Kind: RequestDo, Shared: &Shared{Do: f, OnLost: onLost}})
}

// ReportPanic counts and logs a panic of code that works elsewhere for the connection, whose
// peer is named, and makes a reason of it.
func (r Ref) ReportPanic(peer string, value any, stack []byte) error {
	return r.c.runtime.reportPanic(r, peer, value, stack)
}

// ResumeLayer posts a request to call the layer's Resume.
func (r Ref) ResumeLayer() error { return r.post(Request{Kind: RequestResumeLayer}) }

// ID numbers the connection among all that there ever were with the same owners, from 1
// on; that of the zero Ref is 0.
func (r Ref) ID() uint64 {
	if r.c == nil {
		return 0
	}
	h := r.c.runtime
	return uint64(r.generation)<<32 | uint64(uint32(r.c.slot)*uint32(max(h.Loops, 1))+uint32(h.Index)+1)
}

// Location is where the connection is kept, and which one it is there.
func (r Ref) Location() (owner int, slot, generation uint32) {
	if r.c == nil {
		return 0, 0, 0
	}
	return r.c.runtime.Index, r.c.slot, r.generation
}

// ConnOwnedBy is the connection itself, for its owner, whose host h is; nil if it has begun
// to close, or is another owner's.
func (r Ref) ConnOwnedBy(rt *Runtime) *Conn {
	if r.IsClosed() || r.c.runtime != rt {
		return nil
	}
	return r.c
}

// ReserveBroadcast makes mail of a message to all, for a connection that is open and with
// a worker, which is to be Mailed when it is back. It fails when so much is held or
// posted for it already as may be. Anyone may call it.
func (c *Conn) ReserveBroadcast(s *Shared) (QueuedRequest, error) {
	gen := c.refState.generation()
	if err := c.refState.reservePosted(gen, max(len(s.Bytes), emptyRequestSize), c.runtime.Limits.MaxUnsent); err != nil {
		return QueuedRequest{}, err
	}
	s.addHolder()
	return QueuedRequest{Conn: c, shared: s, gen: gen, Kind: RequestBroadcast}, nil
}

func (r Ref) post(q Request) error {
	if r.c == nil || r.c.refState.generation() != r.generation {
		return ErrClosed
	}
	if q.dataSize() > r.c.runtime.Limits.MaxUnsent {
		return ErrTooLarge
	}
	return r.c.runtime.Poster.Post(r.c, r.generation, q)
}

// IsClosed says whether the connection has begun to close, or never was: then it
// has no more mail from here. Anyone may ask.
func (r Ref) IsClosed() bool { return r.c == nil || r.c.refState.generation() != r.generation }

// What a Ref tells of its connection is read under a guard, and under that guard the
// owner ends the generation, once for each connection. So who has it and finds the
// generation to be the Ref's may read what does not change from Open on, and what the
// owner changes under the guard, too: until the guard is let go, neither the entry nor the
// descriptor becomes another connection's.

// refLocks are locks that connections share, by slot.
type refLocks [64]sync.Mutex

func (c *Conn) refLock() *sync.Mutex {
	return &c.runtime.refLocks[c.slot%uint32(len(c.runtime.refLocks))]
}

// withLocked calls f, unless the connection has begun to close. Meanwhile it does not.
func (r Ref) withLocked(f func(c *Conn)) bool {
	if r.IsClosed() {
		return false
	}
	g := r.c.refLock()
	g.Lock()
	defer g.Unlock()
	if r.IsClosed() {
		return false
	}
	f(r.c)
	return true
}

// Peer is Conn.Peer. It answers false when the connection has begun to close.
func (r Ref) Peer() (peer netip.AddrPort, ok bool) {
	ok = r.withLocked(func(c *Conn) { peer = c.Peer() })
	return peer, ok
}

// LocalAddr is our side's address; the zero value if it has no port. It answers false
// when the connection has begun to close, or where it would have to wait on a loop: see
// Loop.FetchLocalAddr.
func (r Ref) LocalAddr() (local netip.AddrPort, ok bool) {
	switch {
	case r.IsClosed():
		return local, false
	case r.c.runtime.NoDetach && r.c.runtime.Loop != nil:
		return r.c.runtime.Loop.FetchLocalAddr(r)
	}
	ok = r.withLocked(func(c *Conn) {
		if c.runtime.LocalAddr != nil {
			local = c.runtime.LocalAddr(c)
		}
	})
	return local, ok
}

// Value is Conn.Value. It answers false when the connection has begun to close.
func (r Ref) Value() (v any, ok bool) {
	ok = r.withLocked(func(c *Conn) {
		if v = c.userData; v != nil {
			if o, is := v.(ConnHandler); is { // its state is for the owner
				v = o.Value()
			}
		}
	})
	return v, ok
}
