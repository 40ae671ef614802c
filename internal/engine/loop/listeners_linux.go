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

// acceptState is what a loop knows of accepting.
type acceptState struct {
	loop             *Loop
	watchedFDs       []int32       // the listeners that it accepts from
	delegated        bool          // the loop was full, and others accept from its listener
	hasRateToken     bool          // of the accept rate, for one connection
	paused           bool          // until resume
	outOfResources   bool          // because descriptors have run out
	resumeAt         time.Duration // when to try again
	lastLogged       time.Duration // when that was last logged
	pausedByOperator bool          // by Engine.Hold
}

func (a *acceptState) nextDue() (at time.Duration, ok bool) {
	if a.loop.engine.acceptPaused.Load() != a.pausedByOperator {
		return 0, true
	}
	return a.resumeAt, a.paused
}

// runIfDue pauses and resumes accepting.
func (a *acceptState) runIfDue(now time.Duration) {
	if pause := a.loop.engine.acceptPaused.Load(); pause != a.pausedByOperator {
		a.loop.setOperatorPause(pause)
	}
	if a.paused && now >= a.resumeAt {
		a.paused = false
		a.loop.WatchListeners()
	}
}

// AcceptConns takes what waits at the listeners, up to a batch at each.
func (l *Loop) AcceptConns() {
	if l.exporter.onDone != nil {
		l.exporter.readChannels()
	}
	l.importer.receiveConns()
	for _, fd := range l.accept.watchedFDs {
		if !l.acceptBatchFrom(fd) {
			return
		}
	}
}

// acceptBatchFrom says whether to go on with other listeners.
func (l *Loop) acceptBatchFrom(listenerFD int32) bool {
	listener := l.engine.listenerIndexes[slices.Index(l.engine.listenerFDs, listenerFD)]
	for range acceptBatch {
		if l.engine.acceptPaused.Load() {
			return false
		}
		if l.isFull() && l.delegateListeners() {
			return false
		}
		if !l.acquireAcceptToken() {
			return false
		}
		fd, peer, errno := l.acceptor.Accept(listenerFD)
		if errno == 0 && fd >= engine.MaxFD {
			sock.Close(fd)
			errno = syscall.EMFILE
		}
		switch errno {
		case 0:
			l.accept.hasRateToken = false
			if l.engine.listenerConfigs[listener].Socket != nil {
				_ = sock.PrepareConn(fd) // without its options it serves all the same
			}
			l.addAcceptedConn(fd, listener, peer, nil)
		case syscall.EAGAIN:
			return true
		case syscall.EINTR, syscall.ECONNABORTED:
		case syscall.EINVAL:
			l.handleListenerShutdown(listenerFD)
			return true
		case syscall.EMFILE:
			if !l.lowerCapacityToUsed() || !l.delegateListeners() {
				l.pauseAcceptOnError(errno)
			}
		default:
			l.pauseAcceptOnError(errno)
		}
		if l.accept.paused || len(l.accept.watchedFDs) == 0 {
			return false
		}
	}
	return true
}

// acquireAcceptToken says whether the rate of accepting allows for one more; if not it
// pauses.
func (l *Loop) acquireAcceptToken() bool {
	if l.accept.hasRateToken {
		return true
	}
	wait := l.engine.admission.TakeToken(engine.Since())
	if l.accept.hasRateToken = wait == 0; !l.accept.hasRateToken {
		l.counters.Add(engine.AcceptPauses, 1)
		l.pauseAcceptFor(wait)
	}
	return l.accept.hasRateToken
}

// addAcceptedConn makes a connection of an accepted descriptor, from which something may have been
// read already, or turns it away.
func (l *Loop) addAcceptedConn(fd int32, listener int, peer netip.AddrPort, received []byte) {
	if err := l.host.Admit(listener, peer); err != nil {
		l.rejectConn(fd, peer, err)
		return
	}
	c := l.addConn(fd)
	if errno := l.driver.WatchConn(c); errno != 0 {
		l.host.Disown(listener, peer)
		l.driver.DropUnopened(c)
		l.pauseAcceptOnError(errno)
		return
	}
	c.SetListener(listener)
	c.Open(peer, false)
	if len(received) > 0 {
		c.Arrived(received)
	}
	l.driver.PerformActions(c)
}

// rejectConn closes a connection, with an answer if there is one. Input that has
// come is thrown away first: otherwise the kernel would send a reset, which can
// destroy the answer.
func (l *Loop) rejectConn(fd int32, peer netip.AddrPort, reason error) {
	defer sock.Close(fd)
	if answer := l.host.Answer(peer, reason); len(answer) > 0 {
		_, _ = sock.Send(fd, answer) // what it does not take is lost
		_ = sock.ShutWrite(fd)
		var unread [4096]byte
		_, _ = sock.Recv(fd, unread[:])
	}
}

// addConn gives a descriptor a slot.
func (l *Loop) addConn(fd int32) *engine.Conn {
	c := l.conns.acquireConn()
	c.SetFD(fd)
	l.connCount.Add(1)
	return c
}

// pauseAcceptOnError stops accepting for want of descriptors or memory, so that the loop
// does not spin on what it cannot take.
func (l *Loop) pauseAcceptOnError(errno syscall.Errno) {
	l.counters.Add(engine.AcceptErrors, 1)
	now := l.pauseAcceptFor(acceptRetryInterval)
	l.accept.outOfResources = true
	if l.accept.lastLogged == 0 || now-l.accept.lastLogged > time.Second {
		l.accept.lastLogged = now
		l.host.Log.LogAttrs(context.Background(), slog.LevelWarn,
			"cannot accept; trying again when a connection has closed, and regularly",
			slog.String("error", errno.Error()),
			slog.Int64("open", l.engine.admission.Open()))
	}
}

// pauseAcceptFor stops accepting for a while.
func (l *Loop) pauseAcceptFor(pause time.Duration) (now time.Duration) {
	for _, fd := range l.accept.watchedFDs {
		l.driver.UnwatchListener(fd)
	}
	now = engine.Since()
	l.accept.paused, l.accept.outOfResources, l.accept.resumeAt = true, false, now+pause
	return now
}

// handleListenerShutdown turns away from a listener that does not listen any more:
// another shard has stopped it, or the caller has, whose it was.
func (l *Loop) handleListenerShutdown(listenerFD int32) {
	l.stopAcceptingFrom(listenerFD)
	if !l.engine.stopping.Load() {
		l.host.Log.LogAttrs(context.Background(), slog.LevelWarn,
			"a listener has been shut down from outside; nothing is accepted from it any more")
	}
}

// isAcceptPaused says whether the listeners are not watched for now.
func (l *Loop) isAcceptPaused() bool { return l.accept.paused || l.accept.pausedByOperator }

// WatchListeners watches the listeners anew.
func (l *Loop) WatchListeners() {
	for _, o := range l.exporter.sender.Channels {
		l.driver.WatchListener(o.FD)
	}
	for _, in := range l.importer.channels {
		l.driver.WatchListener(in.FD)
	}
	if l.isAcceptPaused() {
		return
	}
	for _, fd := range l.accept.watchedFDs {
		l.driver.WatchListener(fd)
	}
}

// startAcceptingFrom begins to accept from a listener, unless it does so already.
func (l *Loop) startAcceptingFrom(listenerFD int32) {
	if l.requestedStage.Load() >= stageStopping || slices.Contains(l.accept.watchedFDs, listenerFD) {
		return
	}
	l.accept.watchedFDs = append(l.accept.watchedFDs, listenerFD)
	if !l.isAcceptPaused() {
		l.driver.WatchListener(listenerFD)
	}
}

// stopAcceptingFrom ends it.
func (l *Loop) stopAcceptingFrom(listenerFD int32) {
	i := slices.Index(l.accept.watchedFDs, listenerFD)
	if i < 0 {
		return
	}
	l.accept.watchedFDs = slices.Delete(slices.Clone(l.accept.watchedFDs), i, i+1) // Accept may be going through it
	if !l.isAcceptPaused() {
		l.driver.UnwatchListener(listenerFD)
	}
}

// closeListeners ends accepting for good. Those that shards have made are stopped,
// because descriptors of them are in other tables too; one that a caller has made
// may be in use by another process, and ends with its last descriptor.
func (l *Loop) closeListeners() {
	l.counters.Set(engine.Holding, 0)
	for len(l.accept.watchedFDs) > 0 {
		l.stopAcceptingFrom(l.accept.watchedFDs[0])
	}
	for i, fd := range l.engine.listenerFDs {
		own := l.engine.homeLoop(i) == l.host.Index
		if own && l.engine.cfg.Shard > 0 && l.engine.listenerConfigs[l.engine.listenerIndexes[i]].Socket == nil && !l.engine.listenersShared.Load() {
			sock.StopListening(fd)
		}
		if own || l.engine.cfg.Shard > 0 {
			sock.Close(fd)
		}
	}
}

// isFull says whether a shard has as many connections as its table has room for.
func (l *Loop) isFull() bool {
	return l.engine.cfg.Shard > 0 && l.connCount.Load() >= l.capacity.Load()
}

// lowerCapacityToUsed notes that a shard's table is full, before it was to be: something else
// has descriptors in it too, or the limit has been lowered.
func (l *Loop) lowerCapacityToUsed() bool {
	if l.engine.cfg.Shard == 0 {
		return false
	}
	l.capacity.Store(l.connCount.Load())
	return true
}

// leastLoadedLoop is the loop with the fewest connections, nil if that is full.
func (e *loopEngine) leastLoadedLoop() *Loop {
	best := slices.MinFunc(e.loops, func(a, b *Loop) int { return int(a.connCount.Load() - b.connCount.Load()) })
	if best.isFull() {
		return nil
	}
	return best
}

// delegateListeners has another loop accept from what this one accepts from. It fails when
// all are full.
func (l *Loop) delegateListeners() bool {
	e := l.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	target := e.leastLoadedLoop()
	if target == nil || target == l {
		return false
	}
	for i, acceptingLoop := range e.acceptingLoops {
		if acceptingLoop == l.host.Index {
			e.acceptingLoops[i] = target.host.Index
			target.enqueueCall(func() { target.updateListenerWatch(i) })
			l.stopAcceptingFrom(e.listenerFDs[i])
		}
	}
	l.accept.delegated = true
	return true
}

// reclaimListeners does so when there is some room again.
func (l *Loop) reclaimListeners() {
	e, own := l.engine, l.host.Index
	if capacity := l.capacity.Load(); capacity-l.connCount.Load() <= capacity/16 {
		return
	}
	for i := own; i < len(e.listenerFDs); i += e.cfg.Loops {
		e.mu.Lock()
		acceptingLoop := e.loops[e.acceptingLoops[i]]
		e.acceptingLoops[i] = own
		e.mu.Unlock()
		acceptingLoop.enqueueCall(func() { acceptingLoop.updateListenerWatch(i) })
		l.updateListenerWatch(i)
	}
	l.accept.delegated = false
}

// homeLoop is the loop whose listener it is, as long as that has room.
func (e *loopEngine) homeLoop(listenerFDIndex int) (loopIndex int) {
	return listenerFDIndex % e.cfg.Loops
}

// updateListenerWatch sees whether this loop is to accept from a listener.
func (l *Loop) updateListenerWatch(listenerFDIndex int) {
	l.engine.mu.Lock()
	mine := l.engine.acceptingLoops[listenerFDIndex] == l.host.Index
	l.engine.mu.Unlock()
	if mine {
		l.startAcceptingFrom(l.engine.listenerFDs[listenerFDIndex])
	} else {
		l.stopAcceptingFrom(l.engine.listenerFDs[listenerFDIndex])
	}
}

// delegateDial gives a dial to a loop that has room. Without one it is refused;
// when that one has too many orders, it is to be tried again.
func (l *Loop) delegateDial(request engine.Dial) (done bool) {
	target := l.engine.leastLoadedLoop()
	if target == nil {
		l.host.DialFailed(request.Owned, engine.ErrFull)
		return true
	}
	request.Count = 1
	switch err := target.requestDial(request); {
	case errors.Is(err, engine.ErrFull):
		return false
	case err != nil:
		l.host.DialFailed(request.Owned, err)
	}
	return true
}
