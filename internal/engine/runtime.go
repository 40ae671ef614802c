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

// Poster queues a request with a connection's owner and wakes it. It is safe for concurrent use.
type Poster interface {
	Post(c *Conn, gen uint32, r Request) error
}

// Loop is an event loop as its connections see it. In the goroutine model each connection is its
// own owner and Runtime.Loop is nil. Methods must be called on the loop unless stated otherwise.
type Loop interface {
	// Conn returns the connection in a slot, which must be in use.
	Conn(slot uint32) *Conn
	// OwnsConn reports whether the loop, and not a worker, owns a connection.
	OwnsConn(c *Conn) bool
	// PerformActionsLater schedules a connection to be driven before the turn ends, because an event of
	// another one has changed it.
	PerformActionsLater(c *Conn)
	// QueueForLaterRead queues a connection that has yielded behind the others with much input.
	QueueForLaterRead(c *Conn)
	// ReturnFromWorker returns a connection from a worker. why is nil if a worker has run it,
	// otherwise why none will. It is safe for concurrent use.
	ReturnFromWorker(c *Conn, why error)
	// OnLoop reports whether the caller runs on a loop of any engine. It is safe for concurrent
	// use.
	OnLoop() bool
	// FetchLocalAddr asks the owner for a connection's local address, which only the owner can read
	// (Runtime.NoDetach). It blocks until the owner answers, except on another loop: there it
	// returns false. It is safe for concurrent use.
	FetchLocalAddr(r Ref) (addr netip.AddrPort, ok bool)
}

// Runtime is the environment of connections. Each loop has one; in the goroutine model all
// connections share one. It does not change after the start unless stated otherwise.
type Runtime struct {
	Config
	Admission        *admission.Controller
	ListenerCounters []*ListenerCounters
	Buffers          BufferPool
	Poster           Poster
	Counters         *Counters
	// Shared, if set, counts the memory of messages to several connections.
	Shared *Counters
	// Now returns the time since an arbitrary start, for timeouts. Deterministic drivers supply
	// their own clock.
	Now  func() time.Duration
	Loop Loop // nil in the goroutine model
	// NoDetach and NoFiles forbid Detach and SendFile, because descriptors are valid on one thread
	// only.
	NoDetach, NoFiles bool
	// LocalAddr, if set, returns the local address of a connection that can't be closed meanwhile.
	// It is safe for concurrent use.
	LocalAddr func(c *Conn) netip.AddrPort
	// Index is the loop's index.
	Index int
	// OnWorkers leaves Opened and Received to MakeDueHandlerCalls on a worker. The owner may change it, and
	// Buffers, between two events.
	OnWorkers bool
	// WorkerCallTimes, if set, records the time that workers take.
	HandlerTimes *WorkerCallTimes
	// SendDirect, if set, sends p, which is not empty, and following immediately in one
	// non-blocking call, and returns the number of bytes sent. It is used from MinDirectSend bytes
	// on, where copying costs more than a system call. The owner may change it between two events.
	SendDirect    func(c *Conn, p []byte, behind [][]byte) int
	MinDirectSend int
	// SendToPartner, if set, is SendDirect for a relay partner with another owner. It does nothing
	// if that is closed.
	SendToPartner func(to *Conn, p []byte) int
	// directSentInEvent is the number of bytes sent directly in this event; see Conn.directSentInEvent.
	directSent int
	// RetainCalls counts calls of Retain, each of which indicates that a goroutine has work.
	RetainCalls atomic.Uint64
	// TimeAllCalls times every handler call. The owner may change it between two events.
	TimeAllCalls bool
	// maxPieceSize is the maximum size of one output buffer.
	maxPieceSize int
	// ClockSlack is how far the clock may run ahead, so that few of the owners that share a Runtime
	// need to write it. It is 0 if there is one owner.
	ClockSlack time.Duration
	// clock is the coarse time; see SetClock.
	clock atomic.Int64
	// For any goroutine:
	refLocks    refLocks
	sendWaiters sendWaiters
}

// Configure initializes rt from cfg.
func (rt *Runtime) Configure(cfg *Config, admissions *admission.Controller) {
	rt.Config = *cfg
	if rt.Limits.HighWater == 0 {
		rt.Limits.HighWater, rt.Limits.LowWater = rt.Limits.MaxUnsent/2, rt.Limits.MaxUnsent/4
	}
	rt.Admission, rt.Now, rt.maxPieceSize, rt.MinDirectSend = admissions, MonotonicNow, maxPieceSize, minDirectSend
	rt.SetClock(MonotonicNow())
}

// SetClock sets the coarse time. The owner does so before it handles events. With a ClockSlack the
// clock is never behind a time that it was set to and never goes back, so timeouts never fire
// early.
func (rt *Runtime) SetClock(now time.Duration) {
	if rt.ClockSlack == 0 {
		rt.clock.Store(int64(now))
		return
	}
	for was := rt.clock.Load(); was < int64(now); was = rt.clock.Load() {
		rt.clock.CompareAndSwap(was, int64(now+rt.ClockSlack))
	}
}

// Clock returns the time of the last SetClock, or up to ClockSlack more.
func (rt *Runtime) Clock() time.Duration { return time.Duration(rt.clock.Load()) }

// coarseNow returns the coarse time, rounded up.
func (rt *Runtime) coarseNow() coarseTime { return toCoarseTime(rt.Clock()) + 1 }

// Connections allocate their buffers here, and capacities are counted as Buffered.

func (rt *Runtime) allocCountedBuffer(capacity int) *Buffer {
	b := rt.Buffers.Get(capacity)
	b.waitingSince = rt.Clock()
	rt.Counters.Add(Buffered, int64(cap(b.bytes)))
	return b
}

func (rt *Runtime) freeCountedBuffer(b *Buffer) {
	rt.Counters.Add(Buffered, -int64(b.totalCapacity()))
	for _, piece := range b.rest {
		rt.Buffers.Put(piece)
	}
	b.rest = nil
	rt.Buffers.Put(b)
}

func (rt *Runtime) appendToInputBuffer(b *Buffer, p []byte) {
	rt.growBuffer(b, len(p), math.MaxInt)
	b.bytes = append(b.bytes, p...)
}

// growBuffer grows b for n more bytes, if possible with a pooled buffer. It counts the memory
// first, because allocating may take long.
func (rt *Runtime) growBuffer(b *Buffer, extraBytes, maxCap int) {
	newCap := b.grownCap(extraBytes, maxCap)
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

// appendOutput appends to the last piece of b and adds pieces as needed.
func appendOutput[T []byte | string](rt *Runtime, b *Buffer, p T) {
	for len(p) > 0 {
		last, maxSize := b.lastPiece(), rt.maxPieceSize
		n := min(len(p), last.appendableBytes(maxSize))
		if n == 0 {
			last = rt.allocCountedBuffer(len(p))
			b.rest = append(b.rest, last)
			n = min(len(p), last.appendableBytes(maxSize))
		}
		if last == b {
			rt.growBuffer(last, n, maxSize)
		} else {
			rt.growBuffer(last, max(n, min(b.Len(), maxSize-len(last.bytes))), maxSize) // doubles the total size
			b.restBytes += n
		}
		last.bytes = append(last.bytes, p[:n]...)
		p = p[n:]
	}
}

// BuildRefusalReply returns what to send to a connection that is not admitted.
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
		rt.Log.LogAttrs(context.Background(), slog.LevelError, "Server.Refuse panicked",
			slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
		answer = nil
	}()
	answer = rt.RefusalReply(peer, reason)
	returned = true
	return answer
}

// timingSampleRate is the number of reads per read whose handler call is timed.
const timingSampleRate = 64

// recordHandlerTime accounts for the time that the handler took for one read.
func (rt *Runtime) recordHandlerTime(c *Conn, took time.Duration, countInHistogram bool) {
	took = max(took, 0) // a virtual clock may go back
	if countInHistogram {
		rt.Counters.CountHandlerCall(took)
	}
	c.ExtendTimeouts(took)
	rt.reportIfSlowHandler(c, took)
}

// recordEndBeforeOpened counts and logs a connection that has closed before Opened. Those closed by a
// silent peer, such as a probe, are not logged.
func (rt *Runtime) recordEndBeforeOpened(c *Conn) {
	why := c.extra.closeReason
	rt.Counters.CountRefused(refusalCauseOf(why))
	if _, ok := errors.AsType[*PanicError](why); ok {
		rt.Counters.Add(Panics, 1)
	}
	if why != io.EOF && why != ErrServerClosed {
		rt.Log.LogAttrs(context.Background(), slog.LevelInfo, "connection refused before its first message",
			slog.String("reason", why.Error()), slog.String("peer", c.peerName()), c.Ref().logAttr())
	}
}

func (rt *Runtime) reportIfSlowHandler(c *Conn, took time.Duration) {
	if took < rt.Limits.SlowHandlerTime || rt.Limits.SlowHandlerTime == 0 {
		return
	}
	rt.Counters.Add(SlowCalls, 1)
	rt.Log.LogAttrs(context.Background(), slog.LevelWarn, "slow handler",
		slog.Duration("took", took), slog.Duration("limit", rt.Limits.SlowHandlerTime), slog.String("peer", c.peerName()), c.Ref().logAttr())
}

// Pool runs handlers that would block a loop. It is safe for concurrent use.
type Pool interface {
	// TrySubmit schedules c.Run on a worker, or c.Dropped if none will run it, each on any
	// goroutine. If it returns an error, neither will be called.
	TrySubmit(c *Conn) error
	// IsClosedErr reports whether an error of TrySubmit or Dropped means that the pool is closed
	// for good. Otherwise it was full.
	IsClosedErr(why error) bool
}

// WorkerCallTimes records the calls of handlers by workers and their duration. Active calls are
// counted in two slots: one for calls since the last TakeTotals, one for earlier calls.
type WorkerCallTimes struct {
	calls, duration atomic.Int64
	active          [2]atomic.Int64
	currentSlot     atomic.Int32 // slot of calls that start now
}

// TakeTotals returns the totals and resets them. stuck reports that a call has been active since at
// least the last but one TakeTotals.
func (t *WorkerCallTimes) TakeTotals() (calls int64, took time.Duration, stuck bool) {
	now := t.currentSlot.Load()
	if stuck = t.active[1-now].Load() != 0; !stuck {
		t.currentSlot.Store(1 - now)
	}
	return t.calls.Swap(0), time.Duration(t.duration.Swap(0)), stuck
}

// startCall counts an active call and returns its activeSlot for endCall.
func (t *WorkerCallTimes) startCall() (activeSlot int32) {
	activeSlot = t.currentSlot.Load()
	t.active[activeSlot].Add(1)
	return activeSlot
}

func (t *WorkerCallTimes) endCall(activeSlot int32, took time.Duration) {
	t.active[activeSlot].Add(-1)
	t.calls.Add(1)
	t.duration.Add(int64(took))
}

var epoch = time.Now()

// MonotonicNow returns the monotonic clock of the real drivers.
func MonotonicNow() time.Duration { return time.Since(epoch) }

func (rt *Runtime) logAndCountPanic(r Ref, peer string, value any, stack []byte) *PanicError {
	err := &PanicError{Value: value, Stack: stack}
	rt.Counters.Add(Panics, 1)
	rt.Log.LogAttrs(context.Background(), slog.LevelError, "handler panicked; connection closed",
		slog.Any("panic", value),
		slog.String("peer", peer), r.logAttr(),
		slog.String("stack", string(err.Stack)))
	return err
}
