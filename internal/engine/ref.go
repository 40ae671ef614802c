package engine

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// generationAndPosted combines a connection's generation and its number of posted bytes in one atomic value.
//
//	63            32 31       30            0
//	┌───────────────┬────────┬──────────────┐
//	│  generation   │ waiting│ posted bytes │
//	└───────────────┴────────┴──────────────┘
//
// The generation changes when a connection begins to close, and repeats after 2³² connections in the same slot. The
// waiting bit is set while goroutines wait to send. Posted bytes were queued through a Ref and are not yet sent.
type generationAndPosted struct{ v atomic.Uint64 }

const senderWaiting = 1 << 31

func (m *generationAndPosted) generation() uint32 { return uint32(m.v.Load() >> 32) }
func (m *generationAndPosted) postedBytes() int   { return postedBytesIn(m.v.Load()) }

func postedBytesIn(v uint64) int { return int(uint32(v) &^ senderWaiting) }

func (m *generationAndPosted) startNextGeneration() (senderWaits bool) {
	return m.v.Add(1<<32)&senderWaiting != 0
}

func (m *generationAndPosted) releasePostedBytes(count int) (remaining int, senderWaits bool) {
	v := m.v.Add(-uint64(count))
	return postedBytesIn(v), v&senderWaiting != 0
}

// markSenderWaitingIfAbove sets the waiting bit if generation is current and more than maxPosted bytes are posted.
func (m *generationAndPosted) markSenderWaitingIfAbove(generation uint32, maxPosted int) (marked bool) {
	for {
		v := m.v.Load()
		if uint32(v>>32) != generation || postedBytesIn(v) <= maxPosted {
			return false
		}
		if v&senderWaiting != 0 || m.v.CompareAndSwap(v, v|senderWaiting) {
			return true
		}
	}
}

func (m *generationAndPosted) clearSenderWaiting() { m.v.And(^uint64(senderWaiting)) }

func (m *generationAndPosted) advanceGenerationIfNonePosted() (advanced bool) {
	v := m.v.Load()
	return uint32(v) == 0 && m.v.CompareAndSwap(v, v+1<<32) // in one atomic step, so that no request is lost
}

func (m *generationAndPosted) reservePostedBytes(generation uint32, count, maxPosted int) error {
	for {
		v := m.v.Load()
		if uint32(v>>32) != generation {
			return ErrClosed
		}
		if int64(postedBytesIn(v))+int64(count) > min(int64(maxPosted), senderWaiting-1) {
			return ErrFull
		}
		if m.v.CompareAndSwap(v, v+uint64(count)) {
			return nil
		}
	}
}

// Ref refers to a connection. A Ref may be used on any goroutine and may outlive the connection. Refs are comparable.
// The zero Ref refers to no connection.
type Ref struct {
	c          *Conn
	generation uint32
}

// Send queues a copy of p for sending.
func (r Ref) Send(p []byte) error { return r.post(Request{Kind: RequestSend, Bytes: p}) }

// Sendv queues a copy of the concatenated pieces for sending.
func (r Ref) Sendv(pieces [][]byte) error { return r.post(Request{Kind: RequestSend, Pieces: pieces}) }

// SendShared queues s.Bytes for sending, without copying the bytes.
func (r Ref) SendShared(s *Shared) error { return r.post(Request{Kind: RequestSend, Shared: s}) }

// Close requests an orderly close.
func (r Ref) Close() error { return r.post(Request{Kind: RequestClose}) }

// Nudge requests a call of the handler's Nudged method.
func (r Ref) Nudge() error { return r.post(Request{Kind: RequestNudge}) }

// Do requests that the connection's owner calls f. The rules for handler calls apply to f. If the connection begins to
// close before f can be called, f is not called.
func (r Ref) Do(f func(*Conn)) error { return r.DoShared(&Shared{Do: f}) }

// DoShared is like DoOrElse with the functions s.Do and s.OnLost, but does not allocate memory for each call.
func (r Ref) DoShared(s *Shared) error { return r.post(Request{Kind: RequestDo, Shared: s}) }

// DoOrElse is like Do, but calls onLost if the connection begins to close before f can be called. onLost may run on any
// goroutine and must not block. If DoOrElse returns an error, neither f nor onLost is called.
func (r Ref) DoOrElse(f func(*Conn), onLost func()) error {
	return r.post(Request{Kind: RequestDo, Shared: &Shared{Do: f, OnLost: onLost}})
}

// ReportPanic counts and logs a panic in code that runs for the connection. It returns the close reason for the panic.
func (r Ref) ReportPanic(peer string, value any, stack []byte) error {
	return r.c.runtime.logAndCountPanic(r, peer, value, stack)
}

// ResumeLayer requests a call of ContinueHandshake on the connection's layer.
func (r Ref) ResumeLayer() error { return r.post(Request{Kind: RequestResumeLayer}) }

// ID returns a positive number that is unique among all connections of an engine. For the zero Ref it returns 0.
func (r Ref) ID() uint64 {
	if r.c == nil {
		return 0
	}
	rt := r.c.runtime
	return uint64(r.generation)<<32 | uint64(uint32(r.c.slot)*uint32(max(rt.Loops, 1))+uint32(rt.Index)+1)
}

// Location returns the index of the connection's owner, the connection's slot and the generation of r. For the zero
// Ref, all results are 0.
func (r Ref) Location() (ownerIndex int, slot, generation uint32) {
	if r.c == nil {
		return 0, 0, 0
	}
	return r.c.runtime.Index, r.c.slot, r.generation
}

// ConnIfOwnedBy returns the connection if it belongs to the owner with the Runtime rt and has not begun to close.
// Otherwise, it returns nil. Only this owner may call ConnIfOwnedBy.
func (r Ref) ConnIfOwnedBy(rt *Runtime) *Conn {
	if r.IsClosed() || r.c.runtime != rt {
		return nil
	}
	return r.c
}

// ReserveDeferredBroadcast prepares a broadcast to a connection while a worker owns the connection. It counts the
// message s as posted to c and returns a request that contains s. When the worker has returned c, the caller must pass
// this request to HandleOrDeferForPendingLayer.
//
// ReserveDeferredBroadcast fails if c has closed or has too many posted bytes. It is safe for concurrent use.
func (c *Conn) ReserveDeferredBroadcast(s *Shared) (QueuedRequest, error) {
	gen := c.refState.generation()
	if err := c.refState.reservePostedBytes(gen, max(len(s.Bytes), emptyRequestSize), c.runtime.Limits.MaxUnsent); err != nil {
		return QueuedRequest{}, err
	}
	s.addHolderAndCountMemory()
	return QueuedRequest{Conn: c, shared: s, gen: gen, Kind: RequestBroadcast}, nil
}

func (r Ref) post(q Request) error {
	if r.c == nil || r.c.refState.generation() != r.generation {
		return ErrClosed
	}
	if q.payloadSize() > r.c.runtime.Limits.MaxUnsent {
		return ErrTooLarge
	}
	return r.c.runtime.Poster.Post(r.c, r.generation, q)
}

// IsClosed reports whether the connection has begun to close. For the zero Ref it returns true.
func (r Ref) IsClosed() bool { return r.c == nil || r.c.refState.generation() != r.generation }

// A Ref reads its connection's data under a lock. The owner takes the same lock to change such data and to end the
// generation. While the lock is held and the generation is current, neither the slot nor the descriptor can be reused.

type refLocks [64]sync.Mutex

func (c *Conn) refLock() *sync.Mutex {
	return &c.runtime.refLocks[c.slot%uint32(len(c.runtime.refLocks))]
}

// callLockedIfOpen calls f with the connection unless the connection has begun to close. It holds a lock during the
// call, so that the connection cannot begin to close before f returns.
func (r Ref) callLockedIfOpen(f func(c *Conn)) (called bool) {
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

// Peer returns Conn.Peer. If the connection has begun to close, ok is false.
func (r Ref) Peer() (peer netip.AddrPort, ok bool) {
	ok = r.callLockedIfOpen(func(c *Conn) { peer = c.Peer() })
	return peer, ok
}

// LocalAddr returns the connection's local address. If the address has no port, for example because the connection uses
// a unix socket, it returns the zero value. ok is false if the connection has begun to close. It is also false if the
// call would block a loop; see Loop.FetchLocalAddr.
func (r Ref) LocalAddr() (local netip.AddrPort, ok bool) {
	switch {
	case r.IsClosed():
		return local, false
	case r.c.runtime.NoDetach && r.c.runtime.Loop != nil:
		return r.c.runtime.Loop.FetchLocalAddr(r)
	}
	ok = r.callLockedIfOpen(func(c *Conn) {
		if c.runtime.LocalAddr != nil {
			local = c.runtime.LocalAddr(c)
		}
	})
	return local, ok
}

// Value returns Conn.Value. If the connection has begun to close, isOpen is false.
func (r Ref) Value() (v any, isOpen bool) {
	isOpen = r.callLockedIfOpen(func(c *Conn) {
		if v = c.userData; v != nil {
			if o, is := v.(ConnHandler); is { // not c.ConnHandler, because only the owner may read c.state
				v = o.Value()
			}
		}
	})
	return v, isOpen
}
