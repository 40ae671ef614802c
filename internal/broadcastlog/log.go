// Package broadcastlog delivers each broadcast exactly once while a server hands its connections to a new process; see
// tcp.Server.Broadcast.
//
// Normally a Log delivers a broadcast immediately on the caller's goroutine. During an upgrade, Pause makes the Log
// queue broadcasts in order, because a connection in transit would otherwise receive them in both processes or in
// neither. DeliverQueueAndResume delivers the queue and ends the pause. A Peer forwards the queue and later broadcasts
// to the other process's Log. Each process therefore delivers every broadcast once, and broadcasts of one goroutine in
// order. The old process resumes first, so its queue precedes the new one's.
//
// Concurrency: active counts the callers inside BroadcastOrQueue and is negative while the log is paused. A caller
// increments it first; the result shows whether the caller may proceed. Pause waits for earlier callers. mu guards the
// queue and the peers; callers take it only while the log is paused.
package broadcastlog

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Broadcast is a message to all connections, or to the connections that Kind and Group select.
type Broadcast struct {
	All     bool
	Kind    uint32
	Group   string
	Message []byte
}

func (m Broadcast) queueSize() int { return len(m.Group) + len(m.Message) + 64 }

// Queued is a special number of receivers. Log.BroadcastOrQueue returns Queued if it has queued the broadcast.
const Queued = -1

var errNotPaused = errors.New("the broadcast log is not paused")

// pausedOffset is added to Log.active while the log is paused. Log.active is therefore negative during a pause.
const pausedOffset = -1 << 62

// replaySpeedup limits the rate at which queued broadcasts are delivered at the end of a pause. The maximum is
// replaySpeedup times the rate at which the broadcasts were queued.
const replaySpeedup = 8

// retryInterval is the pause before another attempt to deliver a broadcast.
const retryInterval = time.Millisecond

// Log delivers broadcasts. While the log is paused, it queues broadcasts instead. Set the exported fields before use. A
// Log is safe for concurrent use, but Pause must not be called again before the pause has ended.
type Log struct {
	// Deliver sends a broadcast to this process's connections and returns the number of receivers.
	Deliver func(Broadcast) (receivers int, err error)
	// ErrFull is the error that Deliver must return if it has no space for a broadcast. BroadcastOrQueue returns
	// ErrFull if Deliver, the log's queue or a peer's queue has no space.
	ErrFull error
	// OnDropped is called with the error if an accepted broadcast could not be delivered.
	OnDropped func(error)
	// MaxMessages and MaxBytes limit the broadcasts queued during one pause.
	MaxMessages, MaxBytes int

	active   atomic.Int64
	peers    atomic.Pointer[[]*Peer]
	allEnded sync.Cond // signalled when the last active broadcast has ended; uses mu

	mu             sync.Mutex
	resumed        sync.Cond // signalled when a pause ends; uses mu
	queue          []queuedBroadcast
	queuedMessages int // broadcasts accepted in this pause
	queuedBytes    int // total size of these broadcasts
	rejecting      bool
}

type queuedBroadcast struct {
	Broadcast
	origin   *Peer // nil if the broadcast was made in this process
	queuedAt time.Time
}

// IsPausedOrHasPeers reports whether the log is paused or has peers in other processes.
func (g *Log) IsPausedOrHasPeers() bool { return g.active.Load() < 0 || g.peers.Load() != nil }

// BroadcastOrQueue delivers m and forwards it to all peers. If the log is paused, it instead queues a copy of m and
// returns Queued. If there is no space, it does nothing and returns ErrFull.
func (g *Log) BroadcastOrQueue(m Broadcast) (receivers int, err error) {
	for {
		if g.beginBroadcastUnlessPaused() {
			return g.deliverAndForwardIfSpace(m)
		}
		if err = g.enqueueWhilePaused(m, nil); err != errNotPaused {
			return Queued, err
		}
	}
}

func (g *Log) deliverAndForwardIfSpace(m Broadcast) (receivers int, err error) {
	defer g.endBroadcastAndWakePause()
	links := g.peers.Load()
	if links == nil {
		return g.Deliver(m)
	}
	for _, l := range *links {
		if !l.closeWhenFull && !l.isClosedOrHasSpaceFor(m) {
			return 0, g.ErrFull
		}
	}
	if receivers, err = g.Deliver(m); err == nil {
		g.forwardToPeers(m, nil, false)
	}
	return receivers, err
}

// DeliverAndForwardToOtherPeers delivers m, a broadcast that was received from peer, and forwards m to all other peers.
// If the log is paused, it instead queues m. If there is no space, it waits.
func (g *Log) DeliverAndForwardToOtherPeers(m Broadcast, peer *Peer) {
	for {
		if g.beginBroadcastUnlessPaused() {
			defer g.endBroadcastAndWakePause()
			g.deliverWhenSpaceThenForward(context.Background(), m, peer)
			return
		}
		if err := g.enqueueWhilePaused(m, peer); err == nil {
			return
		} else if err != errNotPaused {
			g.waitUntilResumed()
		}
	}
}

// DeliverEvenIfPaused delivers m, a broadcast from another process, and forwards m to all peers. If there is no space,
// it waits.
func (g *Log) DeliverEvenIfPaused(m Broadcast) {
	g.deliverWhenSpaceThenForward(context.Background(), m, nil)
}

// deliverWhenSpaceThenForward delivers m and forwards it to all peers except the peer origin. If there is no space, it
// retries the delivery until ctx ends. If the delivery fails, it calls OnDropped, but still forwards m.
func (g *Log) deliverWhenSpaceThenForward(ctx context.Context, m Broadcast, origin *Peer) {
	err := g.deliverPanicAsError(m)
	for errors.Is(err, g.ErrFull) && ctx.Err() == nil {
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
		}
		err = g.deliverPanicAsError(m)
	}
	if err != nil {
		g.OnDropped(err)
	}
	g.forwardToPeers(m, origin, true)
}

func (g *Log) deliverPanicAsError(m Broadcast) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	_, err = g.Deliver(m)
	return err
}

// forwardToPeers queues m for all peers. It skips the peer that is passed as except, which may be nil.
func (g *Log) forwardToPeers(m Broadcast, except *Peer, waitForSpace bool) {
	links := g.peers.Load()
	if links == nil {
		return
	}
	for _, l := range *links {
		if l != except {
			l.enqueueBroadcastOrApplyFullPolicy(m, waitForSpace)
		}
	}
}

// beginBroadcastUnlessPaused counts the caller as active until the caller calls endBroadcastAndWakePause. If the log is
// paused, it counts nothing and returns false.
func (g *Log) beginBroadcastUnlessPaused() (begun bool) {
	if g.active.Add(1) > 0 {
		return true
	}
	g.endBroadcastAndWakePause()
	return false
}

func (g *Log) endBroadcastAndWakePause() {
	if g.active.Add(-1) == pausedOffset {
		g.mu.Lock()
		g.allEnded.Broadcast()
		g.mu.Unlock()
	}
}

func (g *Log) enqueueWhilePaused(m Broadcast, origin *Peer) (notPausedOrFullErr error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.active.Load() >= 0:
		return errNotPaused
	case g.rejecting, g.queuedMessages >= g.MaxMessages, g.queuedBytes > 0 && g.queuedBytes+m.queueSize() > g.MaxBytes:
		return g.ErrFull
	}
	g.queuedMessages++
	g.queuedBytes += m.queueSize()
	m.Message = slices.Clone(m.Message)
	g.queue = append(g.queue, queuedBroadcast{m, origin, time.Now()})
	return nil
}

func (g *Log) waitUntilResumed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.resumed.L = &g.mu
	for g.active.Load() < 0 {
		g.resumed.Wait()
	}
}

// Pause makes the log queue broadcasts, and returns when all earlier broadcasts have been delivered. If ctx ends first,
// it returns an error, and the log remains paused.
func (g *Log) Pause(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.allEnded.L = &g.mu
	g.queuedMessages, g.queuedBytes, g.rejecting = 0, 0, false
	g.active.Add(pausedOffset)
	defer context.AfterFunc(ctx, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.allEnded.Broadcast()
	})()
	for g.active.Load() != pausedOffset {
		if ctx.Err() == nil {
			g.allEnded.Wait()
			continue
		}
		return context.Cause(ctx)
	}
	return nil
}

// DeliverQueueAndResume delivers the queued broadcasts in order and then ends the pause. If peerToAdd is not nil, the
// log also forwards the queued and all later broadcasts to peerToAdd. If there is no space for a broadcast,
// DeliverQueueAndResume waits. When ctx ends, it stops waiting, aborts peerToAdd, and drops the queued broadcasts that
// do not fit.
func (g *Log) DeliverQueueAndResume(ctx context.Context, peerToAdd *Peer) {
	if peerToAdd != nil {
		g.addPeer(peerToAdd)
		defer context.AfterFunc(ctx, peerToAdd.Abort)()
	}
	var last, due time.Time
	for {
		m, ok := g.dequeueOrResume(ctx.Err() != nil, peerToAdd)
		if !ok {
			return
		}
		if due.IsZero() {
			last, due = m.queuedAt, time.Now()
		}
		due = due.Add(m.queuedAt.Sub(last) / replaySpeedup)
		last = m.queuedAt
		if early := time.Until(due); early >= retryInterval {
			select {
			case <-time.After(early):
			case <-ctx.Done():
			}
		}
		g.deliverWhenSpaceThenForward(ctx, m.Broadcast, m.origin)
	}
}

// dequeueOrResume removes and returns the next queued broadcast. If the queue is empty, it ends the pause and returns
// false. It then also sends a frameResumed to peerToNotify, which may be nil. If rejectNew is true, the log rejects new
// broadcasts until the pause ends.
func (g *Log) dequeueOrResume(rejectNew bool, peerToNotify *Peer) (m queuedBroadcast, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rejecting = rejectNew
	if len(g.queue) > 0 {
		m, g.queue[0] = g.queue[0], queuedBroadcast{}
		g.queue = g.queue[1:]
		return m, true
	}
	g.queue = nil
	if peerToNotify != nil {
		peerToNotify.enqueueResumedOrCountersFrame(frameResumed, nil)
	}
	g.active.Add(-pausedOffset)
	g.resumed.Broadcast()
	return m, false
}

func (g *Log) addPeer(l *Peer) { g.updatePeers(func(all []*Peer) []*Peer { return append(all, l) }) }

func (g *Log) RemovePeer(l *Peer) {
	g.updatePeers(func(all []*Peer) []*Peer { return slices.DeleteFunc(all, func(o *Peer) bool { return o == l }) })
}

func (g *Log) updatePeers(change func([]*Peer) []*Peer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []*Peer
	if old := g.peers.Load(); old != nil {
		all = slices.Clone(*old)
	}
	if all = change(all); len(all) == 0 {
		g.peers.Store(nil)
		return
	}
	g.peers.Store(&all)
}
