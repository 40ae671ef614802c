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
package publish

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

// size is what it counts for, with its place in a queue.
func (m Broadcast) size() int { return len(m.Group) + len(m.Message) + 64 }

// Held is the number of receivers of a message that is held: it is not known yet.
const Held = -1

var errOpen = errors.New("messages are not held any more")

// holding is what state has beside the number of publishers while messages are held.
const holding = -1 << 62

// faster is how many times faster held messages are run than they were published: their subscribers
// have to take them.
const faster = 8

// retryEvery is how often a message is tried again for which there is no room.
const retryEvery = time.Millisecond

// Gate runs broadcasts, or holds them. Its fields are set before it is used. Its methods are safe
// for concurrent use, but that each Hold is followed by one Release before the next.
type Gate struct {
	// Run gives a message to the connections of this process, and says to how many.
	Run func(Broadcast) (receivers int, err error)
	// Full is the error of Run, and of Publish, if there is no room.
	Full error
	// Failed is told why a message that was accepted is not run.
	Failed func(error)
	// MaxMessages and MaxBytes are the most that one Hold takes.
	MaxMessages, MaxBytes int

	state atomic.Int64
	links atomic.Pointer[[]*Link]
	idle  sync.Cond // the last publisher has ended; with mu

	mu     sync.Mutex
	opened sync.Cond // nothing is held any more
	held   []heldBroadcast
	n      int  // how many this Hold has taken,
	bytes  int  // and their size
	late   bool // it takes no more: Release has no time left
}

type heldBroadcast struct {
	Broadcast
	from *Link // nil if it is from here
	at   time.Time
}

// Upgrading reports whether messages are held, or go to another process as well.
func (g *Gate) Upgrading() bool { return g.state.Load() < 0 || g.links.Load() != nil }

// Publish runs a message, or holds a copy of it. Then it says that its receivers are Held.
func (g *Gate) Broadcast(m Broadcast) (receivers int, err error) {
	for {
		if g.enter() {
			return g.broadcast(m)
		}
		if err = g.hold(m, nil); err != errOpen {
			return Held, err
		}
	}
}

// publish runs a message of this process, and leaves.
func (g *Gate) broadcast(m Broadcast) (receivers int, err error) {
	defer g.leave()
	links := g.links.Load()
	if links == nil {
		return g.Run(m)
	}
	for _, l := range *links {
		if !l.mayMiss && !l.room(m) {
			return 0, g.Full
		}
	}
	if receivers, err = g.Run(m); err == nil {
		g.forward(m, nil, false)
	}
	return receivers, err
}

// Forwarded runs a message that has come by a link, or holds it, for which it waits for room.
func (g *Gate) Forwarded(m Broadcast, from *Link) {
	for {
		if g.enter() {
			defer g.leave()
			g.deliver(context.Background(), m, from)
			return
		}
		if err := g.hold(m, from); err == nil {
			return
		} else if err != errOpen {
			g.awaitOpen()
		}
	}
}

// RunNow runs a message that has come by a link while others are held: it is ahead of them.
func (g *Gate) RunNow(m Broadcast) { g.deliver(context.Background(), m, nil) }

// deliver runs a message that was accepted: again until there is room, or ctx ends.
func (g *Gate) deliver(ctx context.Context, m Broadcast, from *Link) {
	err := g.contain(m)
	for errors.Is(err, g.Full) && ctx.Err() == nil {
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
		}
		err = g.contain(m)
	}
	if err != nil {
		g.Failed(err)
	}
	g.forward(m, from, true)
}

// contain runs a message on a goroutine of ours.
func (g *Gate) contain(m Broadcast) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	_, err = g.Run(m)
	return err
}

// forward sends a message by all links but one, and may wait for room there.
func (g *Gate) forward(m Broadcast, from *Link, wait bool) {
	links := g.links.Load()
	if links == nil {
		return
	}
	for _, l := range *links {
		if l != from {
			l.send(m, wait)
		}
	}
}

// enter counts a publisher in, unless messages are held.
func (g *Gate) enter() bool {
	if g.state.Add(1) > 0 {
		return true
	}
	g.leave()
	return false
}

func (g *Gate) leave() {
	if g.state.Add(-1) == holding {
		g.mu.Lock()
		g.idle.Broadcast()
		g.mu.Unlock()
	}
}

// hold keeps a copy of a message.
func (g *Gate) hold(m Broadcast, from *Link) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.state.Load() >= 0:
		return errOpen
	case g.late, g.n >= g.MaxMessages, g.bytes > 0 && g.bytes+m.size() > g.MaxBytes:
		return g.Full
	}
	g.n++
	g.bytes += m.size()
	m.Message = slices.Clone(m.Message)
	g.held = append(g.held, heldBroadcast{m, from, time.Now()})
	return nil
}

func (g *Gate) awaitOpen() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.opened.L = &g.mu
	for g.state.Load() < 0 {
		g.opened.Wait()
	}
}

// Hold has messages held, until Release. It returns when all that were published before have been
// run, or with an error when ctx ends before that.
func (g *Gate) Hold(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.idle.L = &g.mu
	g.n, g.bytes, g.late = 0, 0, false
	g.state.Add(holding)
	defer context.AfterFunc(ctx, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.idle.Broadcast()
	})()
	for g.state.Load() != holding {
		if ctx.Err() == nil {
			g.idle.Wait()
			continue
		}
		return context.Cause(ctx)
	}
	return nil
}

// Release runs what is held, in order, and lets publishers go on. With a link each message goes
// there, too, and what is published from then on. When ctx ends it waits no longer for room, ends
// a link that has none, and holds no more: otherwise it might never catch up with publishers, whom
// nothing else slows down while messages are held.
func (g *Gate) Release(ctx context.Context, to *Link) {
	if to != nil {
		g.link(to)
		defer context.AfterFunc(ctx, to.Abort)()
	}
	var last, due time.Time
	for {
		m, ok := g.next(ctx, to)
		if !ok {
			return
		}
		if due.IsZero() {
			last, due = m.at, time.Now()
		}
		due = due.Add(m.at.Sub(last) / faster)
		last = m.at
		if early := time.Until(due); early >= retryEvery {
			select {
			case <-time.After(early):
			case <-ctx.Done():
			}
		}
		g.deliver(ctx, m.Broadcast, m.from)
	}
}

// next takes the next message that is held. If there is none the gate opens.
func (g *Gate) next(ctx context.Context, to *Link) (m heldBroadcast, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.late = ctx.Err() != nil
	if len(g.held) > 0 {
		m, g.held[0] = g.held[0], heldBroadcast{}
		g.held = g.held[1:]
		return m, true
	}
	g.held = nil
	if to != nil {
		to.sendWord(frameReleased, nil)
	}
	g.state.Add(-holding)
	g.opened.Broadcast()
	return m, false
}

// link adds a link.
func (g *Gate) link(l *Link) { g.setLinks(func(all []*Link) []*Link { return append(all, l) }) }

// Unlink has nothing sent by a link any more.
func (g *Gate) Unlink(l *Link) {
	g.setLinks(func(all []*Link) []*Link { return slices.DeleteFunc(all, func(o *Link) bool { return o == l }) })
}

func (g *Gate) setLinks(change func([]*Link) []*Link) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []*Link
	if old := g.links.Load(); old != nil {
		all = slices.Clone(*old)
	}
	if all = change(all); len(all) == 0 {
		g.links.Store(nil)
		return
	}
	g.links.Store(&all)
}
