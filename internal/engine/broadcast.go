package engine

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// MaxBroadcasts is the maximum number of broadcasts that an engine can have in progress.
const MaxBroadcasts = 1024

// BroadcastTracker tracks and limits an engine's broadcasts in progress. It is safe for concurrent use.
type BroadcastTracker struct {
	// Counters, if not nil, counts the memory of the broadcasts in progress in its counter Buffered.
	Counters *Counters

	mu     sync.Mutex
	active []*Broadcast // the oldest first
	bytes  int
	closed bool
}

// Broadcast is a message to all connections. It is in progress until MarkOneOwnerDone has been called numOwners times;
// see RegisterBroadcast.
type Broadcast struct {
	Shared
	tracker    *BroadcastTracker
	size       int
	started    time.Duration
	ownersLeft atomic.Int32
}

// RegisterBroadcast starts a broadcast of a copy of p. numOwners is the number of loops that deliver the broadcast to
// their connections. In a model without loops, it is 1, because a single goroutine delivers the broadcast. When a loop
// or this goroutine has delivered the broadcast, it must call MarkOneOwnerDone.
//
// RegisterBroadcast fails with ErrFull if MaxBroadcasts broadcasts are in progress, or if the total size of all
// broadcasts would exceed limits.MaxMailBytes. A single broadcast may exceed MaxMailBytes if no other broadcast is in
// progress. RegisterBroadcast fails with ErrTooLarge if p exceeds limits.MaxUnsent, and with ErrClosed after
// RejectNewBroadcasts.
func (b *BroadcastTracker) RegisterBroadcast(p []byte, numOwners int, limits *Limits) (*Broadcast, error) {
	c := &Broadcast{tracker: b, size: len(p), started: MonotonicNow()}
	c.ownersLeft.Store(int32(numOwners))
	if err := b.addWithinLimits(c, limits); err != nil {
		return nil, err
	}
	c.Bytes, c.counters = append([]byte(nil), p...), b.Counters
	c.addHolderAndCountMemory()
	return c, nil
}

func (b *BroadcastTracker) addWithinLimits(c *Broadcast, limits *Limits) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return ErrClosed
	case c.size > limits.MaxUnsent:
		return ErrTooLarge
	case len(b.active) == MaxBroadcasts, b.bytes > 0 && b.bytes+c.size > limits.MaxMailBytes:
		return ErrFull
	}
	b.active = append(b.active, c)
	b.bytes += c.size
	return nil
}

// MarkOneOwnerDone records that one of the numOwners loops or goroutines has passed the message to all of its
// connections.
func (c *Broadcast) MarkOneOwnerDone() {
	if c.ownersLeft.Add(-1) > 0 {
		return
	}
	c.removeHolderAndUncountMemory()
	b := c.tracker
	b.mu.Lock()
	defer b.mu.Unlock()
	b.active = slices.DeleteFunc(b.active, func(o *Broadcast) bool { return o == c })
	b.bytes -= c.size
}

// RejectNewBroadcasts makes all later calls of RegisterBroadcast fail with ErrClosed.
func (b *BroadcastTracker) RejectNewBroadcasts() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
}

func (b *BroadcastTracker) ActiveCount() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.active)
}

func (b *BroadcastTracker) SetBroadcastGauges(counts *Counts) {
	b.mu.Lock()
	defer b.mu.Unlock()
	counts[ActiveBroadcasts], counts[ActiveBroadcastBytes] = int64(len(b.active)), int64(b.bytes)
	if len(b.active) > 0 {
		counts[OldestBroadcastAge] = int64(MonotonicNow() - b.active[0].started)
	}
}
