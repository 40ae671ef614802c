package engine

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/netip"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/admission"
)

// Poster leaves mail with a connection's owner and wakes it. It is safe for
// concurrent use.
type Poster interface {
	Post(c *Conn, gen uint32, r Request) error
}

// Loop is a loop, as its connections see it. In the goroutine model each connection is its own owner,
// and Host.Loop is nil: connections then reach each other by mail. Methods are for the owner's goroutine
// where nothing else is said.
type Loop interface {
	// Conn returns the connection in a slot, which must be in use.
	Conn(slot uint32) *Conn
	// OwnsConn reports whether the owner has a connection itself, and no worker.
	OwnsConn(c *Conn) bool
	// SettleLater has a connection settled before the turn ends: an event of another one has changed it.
	SettleLater(c *Conn)
	// QueueYielded has a connection that has yielded take its turn with those that send much.
	QueueYielded(c *Conn)
	// ReturnFromWorker takes a connection back from a worker. why is nil if a worker has run it, and otherwise the
	// reason why none will. It is safe for concurrent use.
	ReturnFromWorker(c *Conn, why error)
	// OnLoop reports whether the caller is on a loop, of this engine or another. It is safe for
	// concurrent use.
	OnLoop() bool
	// FetchLocalAddr returns our side's address of a connection where only the owner can tell
	// (Host.NoDetach). It waits for the owner, but not on another loop: there it reports false. It is safe for
	// concurrent use.
	FetchLocalAddr(r Ref) (addr netip.AddrPort, ok bool)
}

// Runtime is what connections share with their owner. A loop has one of its own;
// in the goroutine model all connections share one. It does not change after
// the start but where that is said.
type Runtime struct {
	// Config is what the engine was started with.
	Config
	Admission        *admission.Controller
	ListenerCounters []*ListenerCounters // of the listeners
	Buffers          BufferPool
	Poster           Poster
	Counters         *Counters
	// Shared, if set, counts the memory of messages to several connections.
	Shared *Counters
	// Now is the time since an arbitrary start, for Due and Expire. A
	// deterministic driver brings its own clock.
	Now  func() time.Duration
	Loop Loop // nil in the goroutine model
	// NoDetach says that no connection can be given up, and NoFiles that no file can
	// be handed over: descriptors mean something on one thread only.
	NoDetach, NoFiles bool
	// LocalAddr, if set, is our side's address of a connection that can't be closed
	// meanwhile. Anyone may call it.
	LocalAddr func(c *Conn) netip.AddrPort
	// Index numbers the loops.
	Index int
	// OnWorkers says that handlers are called by workers: Opened and Received
	// are left to Deliver, which asks the driver to hand the connection
	// over. The owner may change it, and Buffers, between two events.
	OnWorkers bool
	// HandlerTimes, if set, counts how long workers take.
	HandlerTimes *HandlerTimes
	// SendDirect, if set, sends what a handler writes on its connection's owner at
	// once: p, which is not empty, and what is behind it, in one call, without
	// waiting, as far as the kernel takes it, and says how much that was. It is
	// for MinDirectSend bytes or more, which copying costs more than a call. The
	// owner may change it between two events.
	SendDirect    func(c *Conn, p []byte, behind [][]byte) int
	MinDirectSend int
	// SendToPartner, if set, is Direct for the partner of a relay that has another owner: sockets
	// are for any goroutine. It does nothing for one that is closed.
	SendToPartner func(to *Conn, p []byte) int
	// directSent is how much was sent so in this event: see Conn.direct.
	directSent int
	// RetainCalls counts calls of Retain: each tells that a goroutine has something to do.
	RetainCalls atomic.Uint64
	// TimeAllCalls has every call of the handler timed. The owner may change it
	// between two events.
	TimeAllCalls bool
	// maxPieceSize is the most that one buffer of output holds.
	maxPieceSize int
	// ClockSlack is how far the clock may run ahead: for a host that many owners
	// share, so that few of them write it. It is 0 where there is one.
	ClockSlack time.Duration
	// clock is the coarse time; see SetClock.
	clock atomic.Int64
	// For everyone:
	refLocks    refLocks
	sendWaiters sendWaiters
}

// Configure takes what the host has from the configuration.
func (rt *Runtime) Configure(cfg *Config, admissions *admission.Controller) {
	rt.Config = *cfg
	if rt.Limits.HighWater == 0 {
		rt.Limits.HighWater, rt.Limits.LowWater = rt.Limits.MaxUnsent/2, rt.Limits.MaxUnsent/4
	}
	rt.Admission, rt.Now, rt.maxPieceSize, rt.MinDirectSend = admissions, MonotonicNow, maxPieceSize, minDirectSend
	rt.SetClock(MonotonicNow())
}

// SetClock says what time it is, for all that needs no more than to know it
// roughly. The owner does so before it handles events. With a Grain the clock is not
// behind any time that it was set to, and never goes back: what begins by it is
// not over too early.
func (rt *Runtime) SetClock(now time.Duration) {
	if rt.ClockSlack == 0 {
		rt.clock.Store(int64(now))
		return
	}
	for was := rt.clock.Load(); was < int64(now); was = rt.clock.Load() {
		rt.clock.CompareAndSwap(was, int64(now+rt.ClockSlack))
	}
}

// Clock is the time of the last SetClock, or up to Grain more.
func (rt *Runtime) Clock() time.Duration { return time.Duration(rt.clock.Load()) }

// coarseNow is the clock's next moment.
func (rt *Runtime) coarseNow() coarseTime { return toCoarseTime(rt.Clock()) + 1 }

// The connection's buffers are counted here, with the room that they take.

func (rt *Runtime) getBuffer(capacity int) *Buffer {
	b := rt.Buffers.Get(capacity)
	b.waitingSince = rt.Clock()
	rt.Counters.Add(Buffered, int64(cap(b.bytes)))
	return b
}

// putBuffer takes a buffer back, and those behind it.
func (rt *Runtime) putBuffer(b *Buffer) {
	rt.Counters.Add(Buffered, -int64(b.capacity()))
	for _, piece := range b.rest {
		rt.Buffers.Put(piece)
	}
	b.rest = nil
	rt.Buffers.Put(b)
}

// appendInput appends input.
func (rt *Runtime) appendInput(b *Buffer, p []byte) {
	rt.growBuffer(b, len(p), math.MaxInt)
	b.bytes = append(b.bytes, p...)
}

// growBuffer makes room for n more bytes: that of another buffer if there is one. It counts
// that first: to allocate may take long.
func (rt *Runtime) growBuffer(b *Buffer, n, maxSize int) {
	newCap := b.grownCap(n, maxSize)
	if newCap <= cap(b.bytes) {
		return
	}
	if newCap > maxPooledSize {
		rt.Counters.Add(Buffered, int64(newCap-cap(b.bytes)))
		b.bytes = append(make([]byte, 0, newCap), b.bytes...)
		return
	}
	other := rt.Buffers.Get(newCap)
	if cap(other.bytes) < newCap {
		other.bytes = make([]byte, 0, newCap)
	}
	rt.Counters.Add(Buffered, int64(cap(other.bytes)-cap(b.bytes)))
	b.bytes, other.bytes = append(other.bytes, b.bytes...), b.bytes[:0]
	rt.Buffers.Put(other)
}

// appendOutput appends output: to the last piece, and to new ones.
func appendOutput[T []byte | string](h *Runtime, b *Buffer, p T) {
	for len(p) > 0 {
		last, maxSize := b.lastPiece(), h.maxPieceSize
		n := min(len(p), last.spaceLeft(maxSize))
		if n == 0 {
			last = h.getBuffer(len(p))
			b.rest = append(b.rest, last)
			n = min(len(p), last.spaceLeft(maxSize))
		}
		if last == b {
			h.growBuffer(last, n, maxSize)
		} else {
			h.growBuffer(last, max(n, min(b.Len(), maxSize-len(last.bytes))), maxSize) // twice as much in all
			b.restBytes += n
		}
		last.bytes = append(last.bytes, p[:n]...)
		p = p[n:]
	}
}

// BuildRefusalReply is what a connection gets that is turned away.
func (rt *Runtime) BuildRefusalReply(peer netip.AddrPort, reason error) (answer []byte) {
	if rt.RefusalReply == nil {
		return nil
	}
	returned := false
	defer func() {
		if returned {
			return
		}
		v := recover()
		if v == nil {
			v = ErrGoexit
		}
		rt.Counters.Add(Panics, 1)
		rt.Log.LogAttrs(context.Background(), slog.LevelError, "the answer to a refused connection panicked",
			slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
		answer = nil
	}()
	answer = rt.RefusalReply(peer, reason)
	returned = true
	return answer
}

// timingSampleRate is how many receives there are for one whose handler is timed.
const timingSampleRate = 64

// recordHandlerTime takes how long the handler has taken for what one receive has brought.
func (rt *Runtime) recordHandlerTime(c *Conn, took time.Duration, record bool) {
	took = max(took, 0) // a clock that stands still may go back
	if record {
		rt.Counters.CountHandlerCall(took)
	}
	c.ExtendTimeouts(took)
	rt.reportSlowHandler(c, took)
}

// recordRejected counts a connection that has ended before its handler heard of it, and
// says why, unless its peer has said nothing, as a probe does.
func (rt *Runtime) recordRejected(c *Conn) {
	why := c.extra.closeReason
	rt.Counters.CountRefused(refusalCauseOf(why))
	if _, ok := errors.AsType[*PanicError](why); ok {
		rt.Counters.Add(Panics, 1)
	}
	if why != io.EOF && why != ErrServerClosed {
		rt.Log.LogAttrs(context.Background(), slog.LevelInfo, "connection turned away before its first message",
			slog.String("because", why.Error()), slog.String("peer", c.peerName()), c.Ref().logAttr())
	}
}

// reportSlowHandler reports a handler that has taken long.
func (rt *Runtime) reportSlowHandler(c *Conn, took time.Duration) {
	if took < rt.Limits.SlowHandlerTime || rt.Limits.SlowHandlerTime == 0 {
		return
	}
	rt.Counters.Add(SlowCalls, 1)
	rt.Log.LogAttrs(context.Background(), slog.LevelWarn, "handler has taken long",
		slog.Duration("took", took), slog.Duration("limit", rt.Limits.SlowHandlerTime), slog.String("peer", c.peerName()), c.Ref().logAttr())
}

// Pool runs what would hold up a loop. It is safe for concurrent use.
type Pool interface {
	// TrySubmit has c.Run called by a worker, or c.Dropped if it turns out
	// that none will, each on any goroutine; or it says at once why neither
	// will be.
	TrySubmit(c *Conn) error
	// IsClosedErr says whether an error of TrySubmit, or of Dropped, means that
	// the pool takes nothing any more. Otherwise it means that there was no
	// room, and later there may be.
	IsClosedErr(why error) bool
}

// HandlerTimes counts the calls of handlers by workers, and their time. Those that have
// not returned are counted in two places: one for calls since the last Take, and
// one for those that were out then.
type HandlerTimes struct {
	calls, duration atomic.Int64
	active          [2]atomic.Int64
	currentSlot     atomic.Int32 // the place of those that begin now
}

// TakeTotals gives what was counted, and starts anew. stuck says that a call has been out
// since the Take before the last, or longer.
func (t *HandlerTimes) TakeTotals() (calls int64, took time.Duration, stuck bool) {
	now := t.currentSlot.Load()
	if stuck = t.active[1-now].Load() != 0; !stuck {
		t.currentSlot.Store(1 - now)
	}
	return t.calls.Swap(0), time.Duration(t.duration.Swap(0)), stuck
}

// startCall counts a call that begins, and gives its place.
func (t *HandlerTimes) startCall() (slot int32) {
	slot = t.currentSlot.Load()
	t.active[slot].Add(1)
	return slot
}

// endCall counts a call that has returned.
func (t *HandlerTimes) endCall(slot int32, took time.Duration) {
	t.active[slot].Add(-1)
	t.calls.Add(1)
	t.duration.Add(int64(took))
}

// epoch is the start of Since.
var epoch = time.Now()

// MonotonicNow is the monotonic clock of the real drivers.
func MonotonicNow() time.Duration { return time.Since(epoch) }

// reportPanic logs and counts a panic of a handler, or of code that works for a connection.
func (rt *Runtime) reportPanic(r Ref, peer string, value any, stack []byte) *PanicError {
	err := &PanicError{Value: value, Stack: stack}
	rt.Counters.Add(Panics, 1)
	rt.Log.LogAttrs(context.Background(), slog.LevelError, "handler panicked; its connection is closed",
		slog.Any("panic", value),
		slog.String("peer", peer), r.logAttr(),
		slog.String("stack", string(err.Stack)))
	return err
}
