package engine

import (
	"slices"
	"sync"
	"sync/atomic"
)

// This file sends values of which only the newest counts.
//
// Values are numbered. A request tells the connection only that there is a newer value. Until the connection has taken
// a value, newer values need no requests and no space. The connection takes a value when it has nothing else to send,
// so that a slow peer gets the newest value when it has caught up. A value that has been sent in part is sent to its
// end. The lock of a LatestSubscription is held while a value is announced or taken. So the newest value is always
// delivered, and no value is sent twice.

// LatestValue holds the newest of a series of values. The caller must serialize calls of Set and announceNewer.
// Connections may take the value concurrently.
type LatestValue struct {
	newest atomic.Pointer[versionedValue]
}

type versionedValue struct {
	bytes  []byte
	number int64
}

// Set replaces the newest value. The bytes must not be changed afterwards.
func (t *LatestValue) Set(value []byte) {
	number := int64(1)
	if last := t.newest.Load(); last != nil {
		number += last.number
	}
	t.newest.Store(&versionedValue{value, number})
}

// LatestSubscription records for one connection which values of a LatestValue were announced and which were taken.
type LatestSubscription struct {
	value   *LatestValue
	request Shared

	mu           sync.Mutex
	requested    bool // a request is posted or the value is queued
	unsubscribed bool
	announced    int64 // number of the last announced value
	taken        int64 // number of the last value taken
	replaced     int64 // values replaced since the last one was taken
}

func NewSubscriptionToLaterValues(v *LatestValue) *LatestSubscription {
	l := &LatestSubscription{value: v}
	l.request.latest = l
	return l
}

func (l *LatestSubscription) Unsubscribe() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsubscribed = true
}

func (l *LatestSubscription) isUnsubscribed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unsubscribed
}

// announceNewer records that there is a newer value. If needsRequest is true, the caller must post a request, which
// makes the connection send the value. If the connection has not taken the previous announced value yet, the newer
// value replaces it, and replaced is 1. Otherwise, replaced is 0.
func (l *LatestSubscription) announceNewer() (needsRequest bool, replaced int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.announced = l.value.newest.Load().number
	switch {
	case l.taken == l.announced:
		return false, 0
	case l.requested:
		l.replaced++
		return false, 1
	}
	l.requested = true
	return true, 0
}

func (l *LatestSubscription) cancelAnnouncement() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requested = false
}

// takeNewest returns the newest value. replaced is the number of values that were skipped since the previous call,
// because newer values replaced them. unannounced is the number of these skipped values that announceNewer has not yet
// reported as replaced.
func (l *LatestSubscription) takeNewest() (p []byte, replaced, unannounced int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	newest := l.value.newest.Load()
	unannounced = newest.number - l.announced // newest may be newer than the last announced value
	replaced = l.replaced + unannounced
	l.requested, l.announced, l.taken, l.replaced = false, newest.number, newest.number, 0
	return newest.bytes, replaced, unannounced
}

// replacedCount returns how many announced values were replaced by newer ones since the connection last took a value.
func (l *LatestSubscription) replacedCount() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replaced
}

// AnnounceLatest tells the connection that there is a newer value of valueSize bytes. If the connection has not taken
// the previous announced value yet, the newer value replaces it.
func (r Ref) AnnounceLatest(sub *LatestSubscription, valueSize int) error {
	switch {
	case r.IsClosed():
		return ErrClosed
	case valueSize > r.c.runtime.Limits.MaxUnsent:
		return ErrTooLarge
	}
	needsRequest, replaced := sub.announceNewer()
	if replaced > 0 {
		r.c.runtime.Counters.Add(Replaced, replaced)
	}
	if !needsRequest {
		return nil
	}
	err := r.post(Request{Kind: RequestLatest, Shared: &sub.request})
	if err != nil {
		sub.cancelAnnouncement()
	}
	return err
}

// queueLatestOrCountDropIfSendClosed queues sub. When the connection has no other output, the newest value of each
// queued subscription is sent. If the sending direction has already been shut down, queueLatestOrCountDropIfSendClosed
// counts the value as dropped instead.
func (c *Conn) queueLatestOrCountDropIfSendClosed(sub *LatestSubscription) {
	x := c.ensureRare()
	if c.isSendClosed() {
		_, replaced, unknown := sub.takeNewest()
		x.droppedMessages += replaced + 1
		c.runtime.Counters.Add(Replaced, unknown)
		c.runtime.Counters.Add(Dropped, 1)
		return
	}
	if len(x.latestQueue) == cap(x.latestQueue) {
		x.latestQueue = slices.DeleteFunc(x.latestQueue, func(sub *LatestSubscription) bool { return sub.isUnsubscribed() })
	}
	x.latestQueue = append(x.latestQueue, sub)
}

func (c *Conn) canWriteLatest() bool {
	return c.extra != nil && len(c.extra.latestQueue) > 0 && !c.hasOutput() && !c.hasPendingLayer()
}

// writeSomeLatestValues writes newest values to the output until about one buffer is full.
func (c *Conn) writeSomeLatestValues() {
	x, n := c.extra, 0
	for n < len(x.latestQueue) && c.UnsentAndDroppedBytes() < maxPieceSize && !c.is(failed) {
		l := x.latestQueue[n]
		n++
		if l.isUnsubscribed() {
			continue
		}
		p, replaced, unknown := l.takeNewest()
		x.droppedMessages += replaced
		c.runtime.Counters.Add(Replaced, unknown)
		if len(p) <= c.runtime.Limits.MaxUnsent {
			c.writeThroughLayerOrBehindFile(p)
		}
	}
	if x.latestQueue = slices.Delete(x.latestQueue, 0, n); len(x.latestQueue) == 0 {
		x.latestQueue = nil
	}
}

// AddDroppedAndScheduleMissed adds count to the number of messages that the connection has missed. It is called for
// messages that were dropped before they reached the connection's owner.
func (c *Conn) AddDroppedAndScheduleMissed(count int64) {
	if count > 0 {
		c.ensureRare().droppedMessages += count
		c.scheduleMissedIfLow()
	}
}

// MissedMessages returns how many messages the connection has lost because its peer reads too slowly. The result
// includes values that newer values have replaced.
func (c *Conn) MissedMessages() (droppedPlusReplaced int64) {
	if c.extra == nil {
		return 0
	}
	droppedPlusReplaced = c.extra.droppedMessages
	for _, l := range c.extra.latestQueue {
		droppedPlusReplaced += l.replacedCount()
	}
	return droppedPlusReplaced
}
