package engine

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// MaxBroadcasts is how many broadcasts may be under way in an engine.
const MaxBroadcasts = 1024

// BroadcastTracker has the messages to all that are under way in an engine, with their bounds.
// Its methods are safe for concurrent use.
type BroadcastTracker struct {
	// Counters, if set, counts their memory as Buffered.
	Counters *Counters

	mu    sync.Mutex
	all   []*Broadcast // the oldest first
	bytes int
	ended bool
}

// Broadcast is a message to all. It is under way until each owner of connections has
// called Done.
type Broadcast struct {
	Shared
	in    *BroadcastTracker
	size  int
	began time.Duration
	left  atomic.Int32
}

// Begin takes a copy of p that so many owners give to their connections. It fails with
// ErrFull when MaxBroadcasts are under way, or would be more bytes than MaxMailBytes; one
// may be larger if it is alone.
func (b *BroadcastTracker) Begin(p []byte, owners int, l *Limits) (*Broadcast, error) {
	c := &Broadcast{in: b, size: len(p), began: Since()}
	c.left.Store(int32(owners))
	if err := b.admit(c, l); err != nil {
		return nil, err
	}
	c.Bytes, c.counters = append([]byte(nil), p...), b.Counters
	c.hold()
	return c, nil
}

func (b *BroadcastTracker) admit(c *Broadcast, l *Limits) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.ended:
		return ErrClosed
	case c.size > l.MaxUnsent:
		return ErrTooLarge
	case len(b.all) == MaxBroadcasts, b.bytes > 0 && b.bytes+c.size > l.MaxMailBytes:
		return ErrFull
	}
	b.all = append(b.all, c)
	b.bytes += c.size
	return nil
}

// Done says that an owner has given it to its connections.
func (c *Broadcast) Done() {
	if c.left.Add(-1) > 0 {
		return
	}
	c.release()
	b := c.in
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = slices.DeleteFunc(b.all, func(o *Broadcast) bool { return o == c })
	b.bytes -= c.size
}

// End has no more begin.
func (b *BroadcastTracker) End() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
}

// UnderWay is how many there are.
func (b *BroadcastTracker) UnderWay() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.all)
}

// Count adds those under way to a sum.
func (b *BroadcastTracker) Count(sum *Counts) {
	b.mu.Lock()
	defer b.mu.Unlock()
	sum[Casting], sum[CastBytes] = int64(len(b.all)), int64(b.bytes)
	if len(b.all) > 0 {
		sum[CastAge] = int64(Since() - b.all[0].began)
	}
}
