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
	// HasConn reports whether the owner has a connection itself, and no worker.
	HasConn(c *Conn) bool
	// SettleLater has a connection settled before the turn ends: an event of another one has changed it.
	SettleLater(c *Conn)
	// QueueRead has a connection that has yielded take its turn with those that send much.
	QueueRead(c *Conn)
	// TakeBack takes a connection back from a worker. why is nil if a worker has run it, and otherwise the
	// reason why none will. It is safe for concurrent use.
	TakeBack(c *Conn, why error)
	// OnLoop reports whether the caller is on a loop, of this engine or another. It is safe for
	// concurrent use.
	OnLoop() bool
	// AskLocalAddr returns our side's address of a connection where only the owner can tell
	// (Host.NoDetach). It waits for the owner, but not on another loop: there it reports false. It is safe for
	// concurrent use.
	AskLocalAddr(r Ref) (addr netip.AddrPort, ok bool)
}

// Host is what connections share with their owner. A loop has one of its own;
// in the goroutine model all connections share one. It does not change after
// the start but where that is said.
type Host struct {
	// Config is what the engine was started with.
	Config
	Admission *admission.Controller
	Entrances []*Entrance // of the listeners
	Buffers   Buffers
	Poster    Poster
	Counters  *Counters
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
	// Times, if set, counts how long workers take.
	Times *RunTimes
	// Direct, if set, sends what a handler writes on its connection's owner at
	// once: p, which is not empty, and what is behind it, in one call, without
	// waiting, as far as the kernel takes it, and says how much that was. It is
	// for DirectSize bytes or more, which copying costs more than a call. The
	// owner may change it between two events.
	Direct     func(c *Conn, p []byte, behind [][]byte) int
	DirectSize int
	// Pass, if set, is Direct for the partner of a relay that has another owner: sockets
	// are for any goroutine. It does nothing for one that is closed.
	Pass func(to *Conn, p []byte) int
	// direct is how much was sent so in this event: see Conn.direct.
	direct int
	// Retained counts calls of Retain: each tells that a goroutine has something to do.
	Retained atomic.Uint64
	// Timing has every call of the handler timed. The owner may change it
	// between two events.
	Timing bool
	// piece is the most that one buffer of output holds.
	piece int
	// Grain is how far the clock may run ahead: for a host that many owners
	// share, so that few of them write it. It is 0 where there is one.
	Grain time.Duration
	// clock is the coarse time; see SetClock.
	clock atomic.Int64
	// For everyone:
	guards  guards
	senders senders
}

// SetUp takes what the host has from the configuration.
func (h *Host) SetUp(cfg *Config, control *admission.Controller) {
	h.Config = *cfg
	if h.Limits.HighWater == 0 {
		h.Limits.HighWater, h.Limits.LowWater = h.Limits.MaxUnsent/2, h.Limits.MaxUnsent/4
	}
	h.Admission, h.Now, h.piece, h.DirectSize = control, Since, pieceSize, directSize
	h.SetClock(Since())
}

// SetClock says what time it is, for all that needs no more than to know it
// roughly. The owner does so before it handles events. With a Grain the clock is not
// behind any time that it was set to, and never goes back: what begins by it is
// not over too early.
func (h *Host) SetClock(now time.Duration) {
	if h.Grain == 0 {
		h.clock.Store(int64(now))
		return
	}
	for was := h.clock.Load(); was < int64(now); was = h.clock.Load() {
		h.clock.CompareAndSwap(was, int64(now+h.Grain))
	}
}

// Clock is the time of the last SetClock, or up to Grain more.
func (h *Host) Clock() time.Duration { return time.Duration(h.clock.Load()) }

// coarseNow is the clock's next moment.
func (h *Host) coarseNow() coarseTime { return coarseOf(h.Clock()) + 1 }

// The connection's buffers are counted here, with the room that they take.

func (h *Host) get(n int) *Buffer {
	b := h.Buffers.Get(n)
	b.since = h.Clock()
	h.Counters.Add(Buffered, int64(cap(b.bytes)))
	return b
}

// put takes a buffer back, and those behind it.
func (h *Host) put(b *Buffer) {
	h.Counters.Add(Buffered, -int64(b.room()))
	for _, piece := range b.rest {
		h.Buffers.Put(piece)
	}
	b.rest = nil
	h.Buffers.Put(b)
}

// append appends input.
func (h *Host) append(b *Buffer, p []byte) {
	h.grow(b, len(p), math.MaxInt)
	b.bytes = append(b.bytes, p...)
}

// grow makes room for n more bytes: that of another buffer if there is one. It counts
// that first: to allocate may take long.
func (h *Host) grow(b *Buffer, n, size int) {
	room := b.grown(n, size)
	if room <= cap(b.bytes) {
		return
	}
	if room > keepSize {
		h.Counters.Add(Buffered, int64(room-cap(b.bytes)))
		b.bytes = append(make([]byte, 0, room), b.bytes...)
		return
	}
	other := h.Buffers.Get(room)
	if cap(other.bytes) < room {
		other.bytes = make([]byte, 0, room)
	}
	h.Counters.Add(Buffered, int64(cap(other.bytes)-cap(b.bytes)))
	b.bytes, other.bytes = append(other.bytes, b.bytes...), b.bytes[:0]
	h.Buffers.Put(other)
}

// push appends output: to the last piece, and to new ones.
func push[T []byte | string](h *Host, b *Buffer, p T) {
	for len(p) > 0 {
		last, size := b.last(), h.piece
		n := min(len(p), last.fits(size))
		if n == 0 {
			last = h.get(len(p))
			b.rest = append(b.rest, last)
			n = min(len(p), last.fits(size))
		}
		if last == b {
			h.grow(last, n, size)
		} else {
			h.grow(last, max(n, min(b.Len(), size-len(last.bytes))), size) // twice as much in all
			b.behind += n
		}
		last.bytes = append(last.bytes, p[:n]...)
		p = p[n:]
	}
}

// Answer is what a connection gets that is turned away.
func (h *Host) Answer(peer netip.AddrPort, why error) (answer []byte) {
	if h.Refuse == nil {
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
		h.Counters.Add(Panics, 1)
		h.Log.LogAttrs(context.Background(), slog.LevelError, "the answer to a refused connection panicked",
			slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
		answer = nil
	}()
	answer = h.Refuse(peer, why)
	returned = true
	return answer
}

// sampling is how many receives there are for one whose handler is timed.
const sampling = 64

// called takes how long the handler has taken for what one receive has brought.
func (h *Host) called(c *Conn, took time.Duration, sample bool) {
	took = max(took, 0) // a clock that stands still may go back
	if sample {
		h.Counters.Called(took)
	}
	c.ExtendTimes(took)
	h.judge(c, took)
}

// turnedAway counts a connection that has ended before its handler heard of it, and
// says why, unless its peer has said nothing, as a probe does.
func (h *Host) turnedAway(c *Conn) {
	why := c.more.why
	h.Counters.Refuse(refuseCause(why))
	if _, ok := errors.AsType[*PanicError](why); ok {
		h.Counters.Add(Panics, 1)
	}
	if why != io.EOF && why != ErrServerClosed {
		h.Log.LogAttrs(context.Background(), slog.LevelInfo, "connection turned away before its first message",
			slog.String("because", why.Error()), slog.String("peer", c.name()), c.Ref().attr())
	}
}

// judge reports a handler that has taken long.
func (h *Host) judge(c *Conn, took time.Duration) {
	if took < h.Limits.HandlerTime || h.Limits.HandlerTime == 0 {
		return
	}
	h.Counters.Add(Slow, 1)
	h.Log.LogAttrs(context.Background(), slog.LevelWarn, "handler has taken long",
		slog.Duration("took", took), slog.Duration("limit", h.Limits.HandlerTime), slog.String("peer", c.name()), c.Ref().attr())
}

// Pool runs what would hold up a loop. It is safe for concurrent use.
type Pool interface {
	// TrySubmit has c.Run called by a worker, or c.Dropped if it turns out
	// that none will, each on any goroutine; or it says at once why neither
	// will be.
	TrySubmit(c *Conn) error
	// Closed says whether an error of TrySubmit, or of Dropped, means that
	// the pool takes nothing any more. Otherwise it means that there was no
	// room, and later there may be.
	Closed(why error) bool
}

// RunTimes counts the calls of handlers by workers, and their time. Those that have
// not returned are counted in two places: one for calls since the last Take, and
// one for those that were out then.
type RunTimes struct {
	runs, took atomic.Int64
	out        [2]atomic.Int64
	current    atomic.Int32 // the place of those that begin now
}

// Take gives what was counted, and starts anew. stuck says that a call has been out
// since the Take before the last, or longer.
func (t *RunTimes) Take() (runs int64, took time.Duration, stuck bool) {
	now := t.current.Load()
	if stuck = t.out[1-now].Load() != 0; !stuck {
		t.current.Store(1 - now)
	}
	return t.runs.Swap(0), time.Duration(t.took.Swap(0)), stuck
}

// begin counts a call that begins, and gives its place.
func (t *RunTimes) begin() (place int32) {
	place = t.current.Load()
	t.out[place].Add(1)
	return place
}

// end counts a call that has returned.
func (t *RunTimes) end(place int32, took time.Duration) {
	t.out[place].Add(-1)
	t.runs.Add(1)
	t.took.Add(int64(took))
}

// epoch is the start of Since.
var epoch = time.Now()

// Since is the monotonic clock of the real drivers.
func Since() time.Duration { return time.Since(epoch) }

// panicked logs and counts a panic of a handler, or of code that works for a connection.
func (h *Host) panicked(r Ref, peer string, value any, stack []byte) *PanicError {
	err := &PanicError{Value: value, Stack: stack}
	h.Counters.Add(Panics, 1)
	h.Log.LogAttrs(context.Background(), slog.LevelError, "handler panicked; its connection is closed",
		slog.Any("panic", value),
		slog.String("peer", peer), r.attr(),
		slog.String("stack", string(err.Stack)))
	return err
}
