package loop

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file is how connections come to a loop from listeners.
//
// Of each engine.Listener there is a socket for each loop, which accepts from it alone, and
// more where they are another process's that had more loops: group.listeners has them, first
// those of the first one, and the loops have them in turn. A shard can be
// full while others have room: its listener must not be closed then, because
// connections wait at it, nor be left alone. So all shards have a descriptor of
// every listener, and who is full passes what it accepts from on to the shard
// that has most room. When it has room again it takes its own back. Who accepts
// from which listener is written in group.keepers, which is changed under
// group.mu; a chore tells the other loop to look. There are no more chores than
// changes since that loop last looked.
//
// Only when all are full, and so MaxConns is reached, a shard goes on accepting:
// in order to refuse.

// accept is what a loop knows of accepting.
type accept struct {
	loop             *Loop
	watched          []int32       // the listeners that it accepts from
	passedOn         bool          // the loop was full, and others accept from its listener
	hasToken         bool          // of the accept rate, for one connection
	paused           bool          // until resume
	outOfDescriptors bool          // because descriptors have run out
	resume           time.Duration // when to try again
	complained       time.Duration // when that was last logged
	byOperator       bool          // by Engine.Hold
}

func (a *accept) next() (at time.Duration, ok bool) {
	if a.loop.group.acceptPaused.Load() != a.byOperator {
		return 0, true
	}
	return a.resume, a.paused
}

// run pauses and resumes accepting.
func (a *accept) run(now time.Duration) {
	if held := a.loop.group.acceptPaused.Load(); held != a.byOperator {
		a.loop.pauseAccept(held)
	}
	if a.paused && now >= a.resume {
		a.paused = false
		a.loop.Relisten()
	}
}

// Accept takes what waits at the listeners, up to a batch at each.
func (l *Loop) Accept() {
	if l.departure.done != nil {
		l.departure.receive()
	}
	l.arrivals.receive()
	for _, fd := range l.accept.watched {
		if !l.acceptFrom(fd) {
			return
		}
	}
}

// acceptFrom says whether to go on with other listeners.
func (l *Loop) acceptFrom(listener int32) bool {
	number := l.group.numbers[slices.Index(l.group.listeners, listener)]
	for range acceptBatch {
		if l.group.acceptPaused.Load() {
			return false
		}
		if l.full() && l.passOn() {
			return false
		}
		if !l.mayAccept() {
			return false
		}
		fd, peer, errno := l.acceptor.Accept(listener)
		if errno == 0 && fd >= engine.MaxFD {
			sock.Close(fd)
			errno = syscall.EMFILE
		}
		switch errno {
		case 0:
			l.accept.hasToken = false
			if l.group.where[number].Socket != nil {
				_ = sock.PrepareConn(fd) // without its options it serves all the same
			}
			l.addAccepted(fd, number, peer, nil)
		case syscall.EAGAIN:
			return true
		case syscall.EINTR, syscall.ECONNABORTED:
		case syscall.EINVAL:
			l.listenerStopped(listener)
			return true
		case syscall.EMFILE:
			if !l.noteTableFull() || !l.passOn() {
				l.pause(errno)
			}
		default:
			l.pause(errno)
		}
		if l.accept.paused || len(l.accept.watched) == 0 {
			return false
		}
	}
	return true
}

// mayAccept says whether the rate of accepting allows for one more; if not it
// pauses.
func (l *Loop) mayAccept() bool {
	if l.accept.hasToken {
		return true
	}
	wait := l.group.admission.TakeRateToken(engine.Since())
	if l.accept.hasToken = wait == 0; !l.accept.hasToken {
		l.counters.Add(engine.AcceptPauses, 1)
		l.rest(wait)
	}
	return l.accept.hasToken
}

// addAccepted makes a connection of an accepted descriptor, from which something may have been
// read already, or turns it away.
func (l *Loop) addAccepted(fd int32, listener int, peer netip.AddrPort, read []byte) {
	if err := l.host.Admit(listener, peer); err != nil {
		l.turnAway(fd, peer, err)
		return
	}
	c := l.take(fd)
	if errno := l.driver.Watch(c); errno != 0 {
		l.host.Disown(listener, peer)
		l.driver.Drop(c)
		l.pause(errno)
		return
	}
	c.SetListener(listener)
	c.Open(peer, false)
	if len(read) > 0 {
		c.Arrived(read)
	}
	l.driver.Settle(c)
}

// turnAway closes a connection, with an answer if there is one. Input that has
// come is thrown away first: otherwise the kernel would send a reset, which can
// destroy the answer.
func (l *Loop) turnAway(fd int32, peer netip.AddrPort, why error) {
	defer sock.Close(fd)
	if answer := l.host.Answer(peer, why); len(answer) > 0 {
		_, _ = sock.Send(fd, answer) // what it does not take is lost
		_ = sock.ShutdownWrite(fd)
		var unread [4096]byte
		_, _ = sock.Recv(fd, unread[:])
	}
}

// take gives a descriptor a slot.
func (l *Loop) take(fd int32) *engine.Conn {
	c := l.slab.take()
	c.SetFD(fd)
	l.used.Add(1)
	return c
}

// pause stops accepting for want of descriptors or memory, so that the loop
// does not spin on what it cannot take.
func (l *Loop) pause(errno syscall.Errno) {
	l.counters.Add(engine.AcceptErrors, 1)
	now := l.rest(acceptRetry)
	l.accept.outOfDescriptors = true
	if l.accept.complained == 0 || now-l.accept.complained > time.Second {
		l.accept.complained = now
		l.host.Log.LogAttrs(context.Background(), slog.LevelWarn,
			"cannot accept; trying again when a connection has closed, and regularly",
			slog.String("error", errno.Error()),
			slog.Int64("open", l.group.admission.OpenConns()))
	}
}

// rest stops accepting for a while.
func (l *Loop) rest(wait time.Duration) (now time.Duration) {
	for _, fd := range l.accept.watched {
		l.driver.Unlisten(fd)
	}
	now = engine.Since()
	l.accept.paused, l.accept.outOfDescriptors, l.accept.resume = true, false, now+wait
	return now
}

// listenerStopped turns away from a listener that does not listen any more:
// another shard has stopped it, or the caller has, whose it was.
func (l *Loop) listenerStopped(fd int32) {
	l.unwatch(fd)
	if !l.group.stopping.Load() {
		l.host.Log.LogAttrs(context.Background(), slog.LevelWarn,
			"a listener has been shut down from outside; nothing is accepted from it any more")
	}
}

// acceptStopped says whether the listeners are not watched for now.
func (l *Loop) acceptStopped() bool { return l.accept.paused || l.accept.byOperator }

// Relisten watches the listeners anew.
func (l *Loop) Relisten() {
	for _, o := range l.departure.sender.Channels {
		l.driver.Listen(o.FD)
	}
	for _, in := range l.arrivals.inlets {
		l.driver.Listen(in.FD)
	}
	if l.acceptStopped() {
		return
	}
	for _, fd := range l.accept.watched {
		l.driver.Listen(fd)
	}
}

// watch begins to accept from a listener, unless it does so already.
func (l *Loop) watch(fd int32) {
	if l.wanted.Load() >= stopping || slices.Contains(l.accept.watched, fd) {
		return
	}
	l.accept.watched = append(l.accept.watched, fd)
	if !l.acceptStopped() {
		l.driver.Listen(fd)
	}
}

// unwatch ends it.
func (l *Loop) unwatch(fd int32) {
	i := slices.Index(l.accept.watched, fd)
	if i < 0 {
		return
	}
	l.accept.watched = slices.Delete(slices.Clone(l.accept.watched), i, i+1) // Accept may be going through it
	if !l.acceptStopped() {
		l.driver.Unlisten(fd)
	}
}

// closeListeners ends accepting for good. Those that shards have made are stopped,
// because descriptors of them are in other tables too; one that a caller has made
// may be in use by another process, and ends with its last descriptor.
func (l *Loop) closeListeners() {
	l.counters.Set(engine.Holding, 0)
	for len(l.accept.watched) > 0 {
		l.unwatch(l.accept.watched[0])
	}
	for i, fd := range l.group.listeners {
		own := l.group.ownerOf(i) == l.host.Index
		if own && l.group.cfg.Shard > 0 && l.group.where[l.group.numbers[i]].Socket == nil && !l.group.sharedListeners.Load() {
			sock.StopListening(fd)
		}
		if own || l.group.cfg.Shard > 0 {
			sock.Close(fd)
		}
	}
}

// full says whether a shard has as many connections as its table has room for.
func (l *Loop) full() bool { return l.group.cfg.Shard > 0 && l.used.Load() >= l.room.Load() }

// noteTableFull notes that a shard's table is full, before it was to be: something else
// has descriptors in it too, or the limit has been lowered.
func (l *Loop) noteTableFull() bool {
	if l.group.cfg.Shard == 0 {
		return false
	}
	l.room.Store(l.used.Load())
	return true
}

// roomiest is the loop with the fewest connections, nil if that is full.
func (g *group) roomiest() *Loop {
	best := slices.MinFunc(g.loops, func(a, b *Loop) int { return int(a.used.Load() - b.used.Load()) })
	if best.full() {
		return nil
	}
	return best
}

// passOn has another loop accept from what this one accepts from. It fails when
// all are full.
func (l *Loop) passOn() bool {
	g := l.group
	g.mu.Lock()
	defer g.mu.Unlock()
	to := g.roomiest()
	if to == nil || to == l {
		return false
	}
	for i, keeper := range g.keepers {
		if keeper == l.host.Index {
			g.keepers[i] = to.host.Index
			to.addChore(func() { to.inspect(i) })
			l.unwatch(g.listeners[i])
		}
	}
	l.accept.passedOn = true
	return true
}

// reclaimListeners does so when there is some room again.
func (l *Loop) reclaimListeners() {
	g, own := l.group, l.host.Index
	if most := l.room.Load(); most-l.used.Load() <= most/16 {
		return
	}
	for i := own; i < len(g.listeners); i += g.cfg.Loops {
		g.mu.Lock()
		keeper := g.loops[g.keepers[i]]
		g.keepers[i] = own
		g.mu.Unlock()
		keeper.addChore(func() { keeper.inspect(i) })
		l.inspect(i)
	}
	l.accept.passedOn = false
}

// ownerOf is the loop whose listener it is, as long as that has room.
func (g *group) ownerOf(listener int) (loop int) { return listener % g.cfg.Loops }

// inspect sees whether this loop is to accept from a listener.
func (l *Loop) inspect(i int) {
	l.group.mu.Lock()
	mine := l.group.keepers[i] == l.host.Index
	l.group.mu.Unlock()
	if mine {
		l.watch(l.group.listeners[i])
	} else {
		l.unwatch(l.group.listeners[i])
	}
}

// passDialOn gives a dial to a loop that has room. Without one it is refused;
// when that one has too many orders, it is to be tried again.
func (l *Loop) passDialOn(d engine.Dial) (done bool) {
	to := l.group.roomiest()
	if to == nil {
		l.host.DialFailed(d.Owned, engine.ErrFull)
		return true
	}
	d.Count = 1
	switch err := to.order(d); {
	case errors.Is(err, engine.ErrFull):
		return false
	case err != nil:
		l.host.DialFailed(d.Owned, err)
	}
	return true
}
