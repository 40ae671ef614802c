// Package publish delivers each broadcast exactly once while a server hands its connections to a new
// process: see tcp.Server.Broadcast.
//
// A Gate runs each broadcast at once, on the caller's goroutine, until Hold. Then it queues them, in
// order, because a connection on its way would get them in both processes or in neither. Release runs
// the queue and opens the gate. A Link takes broadcasts to the gate of the other process: the queue,
// and from then on what is broadcast here. So each process runs each broadcast once, and those of one
// goroutine in its order. The old process is released first; what the new one has queued follows.
//
// Concurrency: state counts the callers inside Broadcast and is negative while broadcasts are held. A
// caller increments it first; the result tells it whether it may proceed. Hold waits for earlier
// callers. mu guards the queue and the links; callers take it only while broadcasts are held.
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

// Broadcast is a message to all connections, or to those that the application finds by Kind and Group.
type Broadcast struct {
	All     bool
	Kind    uint32
	Group   string
	Message []byte
}

// queueSize is what it counts for, with its place in a queue.
func (m Broadcast) queueSize() int { return len(m.Group) + len(m.Message) + 64 }

// Queued is the number of receivers of a message that is held: it is not known yet.
const Queued = -1

var errNotPaused = errors.New("messages are not held any more")

// pausedOffset is what state has beside the number of publishers while messages are held.
const pausedOffset = -1 << 62

// replaySpeedup is how many times faster held messages are run than they were published: their subscribers
// have to take them.
const replaySpeedup = 8

// retryInterval is how often a message is tried again for which there is no room.
const retryInterval = time.Millisecond

// Log runs broadcasts, or holds them. Its fields are set before it is used. Its methods are safe
// for concurrent use, but that each Hold is followed by one Release before the next.
type Log struct {
	// Deliver gives a message to the connections of this process, and says to how many.
	Deliver func(Broadcast) (receivers int, err error)
	// ErrFull is the error of Run, and of Publish, if there is no room.
	ErrFull error
	// OnDropped is told why a message that was accepted is not run.
	OnDropped func(error)
	// MaxMessages and MaxBytes are the most that one Hold takes.
	MaxMessages, MaxBytes int

	active   atomic.Int64
	peers    atomic.Pointer[[]*Peer]
	allEnded sync.Cond // the last publisher has ended; with mu

	mu             sync.Mutex
	resumed        sync.Cond // nothing is held any more
	queue          []queuedBroadcast
	queuedMessages int  // how many this Hold has taken,
	queuedBytes    int  // and their size
	rejecting      bool // it takes no more: Release has no time left
}

type queuedBroadcast struct {
	Broadcast
	origin   *Peer // nil if it is from here
	queuedAt time.Time
}

// IsUpgrading reports whether messages are held, or go to another process as well.
func (g *Log) IsUpgrading() bool { return g.active.Load() < 0 || g.peers.Load() != nil }

// Publish runs a message, or holds a copy of it. Then it says that its receivers are Held.
func (g *Log) Broadcast(m Broadcast) (receivers int, err error) {
	for {
		if g.beginBroadcast() {
			return g.deliverAndForward(m)
		}
		if err = g.enqueue(m, nil); err != errNotPaused {
			return Queued, err
		}
	}
}

// publish runs a message of this process, and leaves.
func (g *Log) deliverAndForward(m Broadcast) (receivers int, err error) {
	defer g.endBroadcast()
	links := g.peers.Load()
	if links == nil {
		return g.Deliver(m)
	}
	for _, l := range *links {
		if !l.closeWhenFull && !l.hasSpace(m) {
			return 0, g.ErrFull
		}
	}
	if receivers, err = g.Deliver(m); err == nil {
		g.forwardToPeers(m, nil, false)
	}
	return receivers, err
}

// BroadcastFromPeer runs a message that has come by a link, or holds it, for which it waits for room.
func (g *Log) BroadcastFromPeer(m Broadcast, peer *Peer) {
	for {
		if g.beginBroadcast() {
			defer g.endBroadcast()
			g.deliverRetrying(context.Background(), m, peer)
			return
		}
		if err := g.enqueue(m, peer); err == nil {
			return
		} else if err != errNotPaused {
			g.waitResumed()
		}
	}
}

// DeliverNow runs a message that has come by a link while others are held: it is ahead of them.
func (g *Log) DeliverNow(m Broadcast) { g.deliverRetrying(context.Background(), m, nil) }

// deliverRetrying runs a message that was accepted: again until there is room, or ctx ends.
func (g *Log) deliverRetrying(ctx context.Context, m Broadcast, origin *Peer) {
	err := g.deliverRecovered(m)
	for errors.Is(err, g.ErrFull) && ctx.Err() == nil {
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
		}
		err = g.deliverRecovered(m)
	}
	if err != nil {
		g.OnDropped(err)
	}
	g.forwardToPeers(m, origin, true)
}

// deliverRecovered runs a message on a goroutine of ours.
func (g *Log) deliverRecovered(m Broadcast) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	_, err = g.Deliver(m)
	return err
}

// forwardToPeers sends a message by all links but one, and may wait for room there.
func (g *Log) forwardToPeers(m Broadcast, except *Peer, wait bool) {
	links := g.peers.Load()
	if links == nil {
		return
	}
	for _, l := range *links {
		if l != except {
			l.enqueueBroadcast(m, wait)
		}
	}
}

// beginBroadcast counts a publisher in, unless messages are held.
func (g *Log) beginBroadcast() bool {
	if g.active.Add(1) > 0 {
		return true
	}
	g.endBroadcast()
	return false
}

func (g *Log) endBroadcast() {
	if g.active.Add(-1) == pausedOffset {
		g.mu.Lock()
		g.allEnded.Broadcast()
		g.mu.Unlock()
	}
}

// enqueue keeps a copy of a message.
func (g *Log) enqueue(m Broadcast, origin *Peer) error {
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

func (g *Log) waitResumed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.resumed.L = &g.mu
	for g.active.Load() < 0 {
		g.resumed.Wait()
	}
}

// Pause has messages held, until Release. It returns when all that were published before have been
// run, or with an error when ctx ends before that.
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

// Resume runs what is held, in order, and lets publishers go on. With a link each message goes
// there, too, and what is published from then on. When ctx ends it waits no longer for room, ends
// a link that has none, and holds no more: otherwise it might never catch up with publishers, whom
// nothing else slows down while messages are held.
func (g *Log) Resume(ctx context.Context, peer *Peer) {
	if peer != nil {
		g.addPeer(peer)
		defer context.AfterFunc(ctx, peer.Abort)()
	}
	var last, due time.Time
	for {
		m, ok := g.dequeueOrResume(ctx, peer)
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
		g.deliverRetrying(ctx, m.Broadcast, m.origin)
	}
}

// dequeueOrResume takes the next message that is held. If there is none the gate opens.
func (g *Log) dequeueOrResume(ctx context.Context, peer *Peer) (m queuedBroadcast, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rejecting = ctx.Err() != nil
	if len(g.queue) > 0 {
		m, g.queue[0] = g.queue[0], queuedBroadcast{}
		g.queue = g.queue[1:]
		return m, true
	}
	g.queue = nil
	if peer != nil {
		peer.enqueueFrame(frameResumed, nil)
	}
	g.active.Add(-pausedOffset)
	g.resumed.Broadcast()
	return m, false
}

// addPeer adds a link.
func (g *Log) addPeer(l *Peer) { g.updatePeers(func(all []*Peer) []*Peer { return append(all, l) }) }

// RemovePeer has nothing sent by a link any more.
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
