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

// Poster queues requests for a connection's owner and wakes the owner. It is safe for concurrent use.
type Poster interface {
	Post(c *Conn, gen uint32, r Request) error
}

// Loop contains the methods of an event loop that its connections need. Connections of the goroutine model have no
// Loop. The methods must be called on the loop's goroutine unless documented otherwise.
type Loop interface {
	// Conn returns the connection in a slot. The slot must be in use.
	Conn(slot uint32) *Conn
	// OwnsConn reports whether the loop owns a connection. If not, a worker owns the connection.
	OwnsConn(c *Conn) bool
	// PerformActionsLater makes the loop perform the actions of c before the turn ends. It is called when an event of
	// another connection has changed the state of c.
	PerformActionsLater(c *Conn)
	// QueueForLaterRead queues c, which has yielded, behind other connections that have much input.
	QueueForLaterRead(c *Conn)
	// ReturnFromWorker returns c to the loop. If no worker has run c, reason says why; otherwise, reason is nil.
	// ReturnFromWorker is safe for concurrent use.
	ReturnFromWorker(c *Conn, reason error)
	// QueueJobOnLoop makes the loop run the job, which answers the given number of requests, after the current turn. It
	// returns false if no other goroutine could continue the loop while the job blocks. See LoopJob.
	QueueJobOnLoop(job LoopJob, requests int) (queued bool)
	// OnLoop reports whether the caller runs on a loop of any engine. It is safe for concurrent use.
	OnLoop() bool
	// LeaveToWait must be called before the caller waits. If the caller is a job of a loop, another goroutine continues
	// the loop; see LoopHold.Leave. If the caller is a loop in a turn, it must not wait, and mayWait is false.
	// LeaveToWait is safe for concurrent use.
	LeaveToWait() (mayWait bool)
	// FetchLocalAddr asks the owner of a connection for the local address and blocks until the owner answers. It is for
	// loops whose descriptors only the owner can use (Runtime.NoDetach). If the caller is another loop, FetchLocalAddr
	// returns false instead of blocking. It is safe for concurrent use.
	FetchLocalAddr(r Ref) (addr netip.AddrPort, ok bool)
}

// Runtime contains what the connections of one owner share. Each loop has a Runtime. In the goroutine model, all
// connections share one Runtime. Fields do not change after the engine's start unless documented otherwise.
type Runtime struct {
	Config
	Admission        *admission.Controller
	ListenerCounters []*ListenerCounters
	Buffers          BufferPool
	Poster           Poster
	Counters         *Counters
	Shared           *Counters
	// Now returns the current time for timeouts, as the time since an arbitrary start. Engines with simulated time
	// replace this function.
	Now  func() time.Duration
	Loop Loop // nil in the goroutine model
	// NoDetach forbids Detach. NoFiles forbids SendFile. They are set if descriptors are valid on one thread only.
	NoDetach, NoFiles bool
	// LocalAddr, if set, returns the local address of c. Any goroutine may call it. c must not be closed during the
	// call.
	LocalAddr func(c *Conn) netip.AddrPort
	Index     int
	// OnWorkers means that workers call the handlers. If OnWorkers is false, the connections' owner calls the handlers.
	// See MakeDeferredHandlerCalls. The owner may change OnWorkers and Buffers between two events.
	OnWorkers bool
	// HandlerTimes, if set, records the duration of handler calls by workers.
	HandlerTimes *WorkerCallTimes
	// SendDirect, if set, sends p and then the slices in behind with one non-blocking call, and returns the number of
	// bytes sent. p must not be empty. SendDirect is used for writes of at least MinDirectSend bytes. The owner may
	// change SendDirect between two events.
	SendDirect    func(c *Conn, p []byte, behind [][]byte) int
	MinDirectSend int
	// ReceiveDirect, if set, receives bytes into p without blocking. It returns 0 if no bytes are available, at EOF and
	// after an error. Any goroutine may call it. c must not be closed during the call. See
	// Ref.ReceiveAssumingReadingOff.
	ReceiveDirect func(c *Conn, p []byte) (n int)
	// SendFromOthers, if set, is like SendDirect, but any goroutine may call it. c must not be closed during the call.
	// See Ref.SendAssumingEmptyOutput.
	SendFromOthers func(c *Conn, p []byte, behind [][]byte) (n int)
	// SendToPartner, if set, sends p to a relay partner that has another owner, without blocking. It returns the number
	// of bytes sent. If the partner is closed, it returns 0.
	SendToPartner func(to *Conn, p []byte) int
	// directSent is the number of bytes sent directly in the current event; see Conn.directSentInEvent.
	directSent int
	// RetainCalls counts calls of Conn.Retain.
	RetainCalls atomic.Uint64
	// TimeAllCalls makes the engine measure the duration of every handler call. If TimeAllCalls is false, the engine
	// measures only a sample of the calls. The owner may change TimeAllCalls between two events.
	TimeAllCalls bool
	maxPieceSize int
	// ClockSlack, if positive, makes SetClock set the clock ahead by ClockSlack. Further calls of SetClock then do not
	// write until that time has come. This is faster if many owners share the Runtime. If the Runtime has a single
	// owner, ClockSlack is 0.
	ClockSlack time.Duration
	clock      atomic.Int64
	// LookAhead is how early timeouts may fire. Engines with simulated time set LookAhead, because times are rounded to
	// units of coarseTime. If LookAhead is 0, timeouts never fire early, but may fire up to 34 ms late, which is two
	// units of coarseTime.
	LookAhead time.Duration
	// SweepsHeartbeats means that a HeartbeatSweep sends the heartbeats. If SweepsHeartbeats is false, CheckTimeouts
	// sends the heartbeats.
	SweepsHeartbeats bool
	// The following are safe for concurrent use.
	refLocks    refLocks
	sendWaiters sendWaiters
}

func (rt *Runtime) Configure(cfg *Config, admissions *admission.Controller) {
	rt.Config = *cfg
	rt.setInactiveOverloadIfNil()
	if rt.Limits.HighWater == 0 {
		rt.Limits.HighWater, rt.Limits.LowWater = rt.Limits.MaxUnsent/2, rt.Limits.MaxUnsent/4
	}
	rt.Admission, rt.Now, rt.maxPieceSize, rt.MinDirectSend = admissions, MonotonicNow, maxPieceSize, minDirectSend
	rt.SetClock(MonotonicNow())
}

// SetClock sets the time that Clock returns. If ClockSlack is 0, Clock then returns now. If ClockSlack is positive,
// Clock may return a later time, at most now+ClockSlack, and this time never goes back. The owner must call SetClock
// before it handles events.
func (rt *Runtime) SetClock(now time.Duration) {
	if rt.ClockSlack == 0 {
		rt.clock.Store(int64(now))
		return
	}
	for was := rt.clock.Load(); was < int64(now); was = rt.clock.Load() {
		rt.clock.CompareAndSwap(was, int64(now+rt.ClockSlack))
	}
}

// Clock returns the time of the last SetClock call, or a time that is up to ClockSlack later.
func (rt *Runtime) Clock() time.Duration { return time.Duration(rt.clock.Load()) }

// coarseNow returns the time of Clock as a coarseTime, rounded up.
func (rt *Runtime) coarseNow() coarseTime { return toCoarseTime(rt.Clock()) + 1 }

// The following methods allocate the buffers of connections and count their capacity as Buffered.

func (rt *Runtime) getOrNewCountedBuffer(capacity int) *Buffer {
	b := rt.Buffers.GetOrNew(capacity)
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

func (rt *Runtime) growBuffer(b *Buffer, extraBytes, softMaxCap int) {
	newCap := b.grownCap(extraBytes, softMaxCap)
	if newCap <= cap(b.bytes) {
		return
	}
	if newCap > maxPooledSize {
		rt.Counters.Add(Buffered, int64(newCap-cap(b.bytes)))
		b.bytes = append(make([]byte, 0, newCap), b.bytes...)
		return
	}
	other := rt.Buffers.GetOrNew(newCap)
	if cap(other.bytes) < newCap {
		other.bytes = make([]byte, 0, newCap)
	}
	rt.Counters.Add(Buffered, int64(cap(other.bytes)-cap(b.bytes)))
	b.bytes, other.bytes = append(other.bytes, b.bytes...), b.bytes[:0]
	rt.Buffers.Put(other)
}

func appendOutput[T []byte | string](rt *Runtime, b *Buffer, p T) {
	for len(p) > 0 {
		last, maxSize := b.lastPiece(), rt.maxPieceSize
		n := min(len(p), last.appendableBytes(maxSize))
		if n == 0 {
			last = rt.getOrNewCountedBuffer(len(p))
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

// appendOutputSpace appends n contiguous, uninitialized bytes to b and returns them.
func appendOutputSpace(rt *Runtime, b *Buffer, n int) []byte {
	last, maxSize := b.lastPiece(), rt.maxPieceSize
	if last.appendableBytes(maxSize) < n && (last.inKernel || last.Len() > 0) {
		last = rt.getOrNewCountedBuffer(n)
		b.rest = append(b.rest, last)
	}
	if last == b {
		rt.growBuffer(last, n, maxSize)
	} else {
		rt.growBuffer(last, max(n, min(b.Len(), maxSize-len(last.bytes))), maxSize)
		b.restBytes += n
	}
	start := len(last.bytes)
	last.bytes = last.bytes[:start+n]
	return last.bytes[start:]
}

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

// timingSampleRate determines how often handler calls are timed: once in timingSampleRate reads.
const timingSampleRate = 64

func (rt *Runtime) recordTimeAndExtendTimeouts(c *Conn, took time.Duration, countInHistogram bool) {
	took = max(took, 0) // a virtual clock may go back
	if countInHistogram {
		rt.Counters.CountHandlerCall(took)
	}
	c.ExtendTimeouts(took)
	rt.reportIfSlowHandler(c, took)
}

func (rt *Runtime) logAndCountEndBeforeOpened(c *Conn) {
	reason := c.extra.closeReason
	rt.Counters.CountRefused(refusalCauseOf(reason))
	if _, ok := errors.AsType[*PanicError](reason); ok {
		rt.Counters.Add(Panics, 1)
	}
	if reason != io.EOF && reason != ErrServerClosed && reason != ErrOverloaded { // the overload manager logs ErrOverloaded
		rt.Log.LogAttrs(context.Background(), slog.LevelInfo, "connection refused before its first message",
			slog.String("reason", reason.Error()), slog.String("peer", c.peerName()), c.Ref().logAttr())
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
	// TrySubmit schedules c.Run on a worker, or c.Dropped if no worker will run c. Both may be called on any goroutine.
	// If TrySubmit returns an error, neither is called.
	TrySubmit(c *Conn) error
	// IsClosedErr reports whether an error of TrySubmit or Dropped means that the pool is permanently closed. Any
	// other error means that the pool was full.
	IsClosedErr(reason error) bool
}

// WorkerCallTimes records the number and the duration of handler calls on workers. It also detects calls that do not
// return; see TakeTotals.
type WorkerCallTimes struct {
	calls, duration atomic.Int64
	active          [2]atomic.Int64
	currentSlot     atomic.Int32 // index of the counter in active for calls that start now
}

// TakeTotals returns the number and the total duration of the calls that have finished since the previous call of
// TakeTotals. stuck reports whether a handler call that began before that previous call is still running.
func (t *WorkerCallTimes) TakeTotals() (calls int64, took time.Duration, stuck bool) {
	now := t.currentSlot.Load()
	if stuck = t.active[1-now].Load() != 0; !stuck {
		t.currentSlot.Store(1 - now)
	}
	return t.calls.Swap(0), time.Duration(t.duration.Swap(0)), stuck
}

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

// MonotonicNow returns the time since the process started, from the monotonic clock.
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
