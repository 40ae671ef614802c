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
	"github.com/myriad-go/myriad/internal/overload"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file accepts connections from listeners.
//
// Each engine.Listener has a socket for each loop. A listener that was inherited from a process with more loops has
// more sockets. loopEngine.listenerFDs contains all sockets, grouped by listener. They are assigned to the loops in
// turn.
//
// A shard can be full while other shards are not. Its listeners must neither be closed nor left unserved, because
// connections wait there. Therefore all shards have a descriptor of every listener. A full shard delegates its
// listeners to the shard with the most free capacity, and reclaims them when it has capacity again.
//
// loopEngine.acceptingLoops maps each listener to the loop that accepts from it. The map is changed under
// loopEngine.mu. The other loop is then made to update its watched listeners.
//
// If all shards are full, MaxConns has been reached. A shard then accepts connections and rejects them.

type acceptPauseController struct {
	loop             *Loop
	watchedFDs       []int32 // the listeners from which the loop accepts
	delegated        bool    // the loop was full, so others accept from its listeners
	hasRateToken     bool    // permits one connection under the accept rate
	paused           bool    // until resumeAt
	outOfResources   bool    // paused because an accept has failed, for example without free descriptors
	resumeAt         time.Duration
	lastLogged       time.Duration // when an accept error was last logged
	pausedByOperator bool          // by Engine.PauseAccept
}

func (a *acceptPauseController) nextDue() (at time.Duration, ok bool) {
	if a.loop.engine.acceptPaused.Load() != a.pausedByOperator {
		return 0, true
	}
	return a.resumeAt, a.paused
}

func (a *acceptPauseController) runIfDue(now time.Duration) {
	if pause := a.loop.engine.acceptPaused.Load(); pause != a.pausedByOperator {
		a.loop.applyOperatorPause(pause)
	}
	if a.paused && now >= a.resumeAt {
		a.paused = false
		a.loop.WatchChannelsAndUnpausedListeners()
	}
}

// AcceptAndReceiveConns accepts a limited number of connections from the loop's listeners. During a hand-over, it also
// reads the channels: it receives connections from another process, or confirmations of exported connections.
func (l *Loop) AcceptAndReceiveConns() {
	if l.exporter.onDone != nil {
		l.exporter.readConfirmationsOrEndExport()
	}
	l.importer.receiveWaitingConns()
	for _, fd := range l.accept.watchedFDs {
		if !l.acceptBatchFrom(fd) {
			return
		}
	}
}

// acceptBatchFrom accepts up to acceptBatch connections from a listener. tryOtherListeners is false if the loop must
// not accept more connections in this turn.
func (l *Loop) acceptBatchFrom(listenerFD int32) (tryOtherListeners bool) {
	listener := l.engine.listenerIndexes[slices.Index(l.engine.listenerFDs, listenerFD)]
	for range acceptBatch {
		if l.engine.acceptPaused.Load() {
			return false
		}
		if l.host.Overload.PausesAccepts() {
			l.pauseAcceptFor(overload.AcceptCheckInterval)
			return false
		}
		if l.isFull() && l.delegateListenersToLeastLoaded() {
			return false
		}
		if !l.acquireAcceptTokenOrPause() {
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
				_ = sock.SetConnNoDelayKeepalive(fd) // an error leaves the connection without its socket options
			}
			l.openOrRejectAcceptedConn(fd, listener, peer, nil)
		case syscall.EAGAIN:
			return true
		case syscall.EINTR, syscall.ECONNABORTED:
		case syscall.EINVAL:
			l.stopAcceptingFromShutListener(listenerFD)
			return true
		case syscall.EMFILE:
			if !l.lowerCapacityToUsed() || !l.delegateListenersToLeastLoaded() {
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

func (l *Loop) acquireAcceptTokenOrPause() (acquired bool) {
	if l.accept.hasRateToken {
		return true
	}
	wait := l.engine.admission.TakeRateToken(engine.MonotonicNow())
	if l.accept.hasRateToken = wait == 0; !l.accept.hasRateToken {
		l.counters.Add(engine.AcceptPauses, 1)
		l.pauseAcceptFor(wait)
	}
	return l.accept.hasRateToken
}

// openOrRejectAcceptedConn opens or rejects an accepted connection. alreadyRead is input that was already read from the
// connection.
func (l *Loop) openOrRejectAcceptedConn(fd int32, listener int, peer netip.AddrPort, alreadyRead []byte) {
	if err := l.host.AdmitAndAcquireSlots(listener, peer); err != nil {
		l.sendRefusalAndClose(fd, peer, err)
		return
	}
	c := l.acquireConnForFD(fd)
	if errno := l.driver.WatchForInputOrConnect(c); errno != 0 {
		l.host.UndoAdmit(listener, peer)
		l.driver.DropUnopened(c)
		l.pauseAcceptOnError(errno)
		return
	}
	c.SetListener(listener)
	c.OnOpen(peer, false)
	if len(alreadyRead) > 0 {
		c.OnRead(alreadyRead)
	}
	l.driver.PerformActions(c)
}

func (l *Loop) sendRefusalAndClose(fd int32, peer netip.AddrPort, reason error) {
	defer sock.Close(fd)
	if answer := l.host.BuildRefusalReply(peer, reason); len(answer) > 0 {
		_, _ = sock.Send(fd, answer) // bytes that the kernel does not accept are lost
		_ = sock.ShutdownWrite(fd)
		var unread [4096]byte
		_, _ = sock.Recv(fd, unread[:]) // unread input causes a reset, which can destroy the answer
	}
}

func (l *Loop) acquireConnForFD(fd int32) *engine.Conn {
	c := l.conns.acquireConn()
	c.SetFD(fd)
	l.connCount.Add(1)
	return c
}

func (l *Loop) pauseAcceptOnError(errno syscall.Errno) {
	l.counters.Add(engine.AcceptErrors, 1)
	now := l.pauseAcceptFor(acceptRetryInterval)
	l.accept.outOfResources = true
	if l.accept.lastLogged == 0 || now-l.accept.lastLogged > time.Second {
		l.accept.lastLogged = now
		l.host.Log.LogAttrs(context.Background(), slog.LevelWarn,
			"cannot accept connections; retrying at intervals and whenever a connection closes",
			slog.String("error", errno.Error()),
			slog.Int64("open", l.engine.admission.OpenConns()))
	}
}

func (l *Loop) pauseAcceptFor(pause time.Duration) (now time.Duration) {
	for _, fd := range l.accept.watchedFDs {
		l.driver.UnwatchListener(fd)
	}
	now = engine.MonotonicNow()
	l.accept.paused, l.accept.outOfResources, l.accept.resumeAt = true, false, now+pause
	return now
}

// stopAcceptingFromShutListener stops accepting from a listener that another loop or other code has shut down.
func (l *Loop) stopAcceptingFromShutListener(listenerFD int32) {
	l.stopAcceptingFrom(listenerFD)
	if !l.engine.stopping.Load() {
		l.host.Log.LogAttrs(context.Background(), slog.LevelWarn,
			"a listener was shut down from outside the server; no more connections are accepted from the listener")
	}
}

func (l *Loop) isAcceptPaused() bool { return l.accept.paused || l.accept.pausedByOperator }

// WatchChannelsAndUnpausedListeners watches all hand-over channels and, unless accepting is paused, all listeners.
func (l *Loop) WatchChannelsAndUnpausedListeners() {
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

func (l *Loop) startAcceptingFrom(listenerFD int32) {
	if l.requestedStopStage.Load() >= stageStopping || slices.Contains(l.accept.watchedFDs, listenerFD) {
		return
	}
	l.accept.watchedFDs = append(l.accept.watchedFDs, listenerFD)
	if !l.isAcceptPaused() {
		l.driver.WatchListener(listenerFD)
	}
}

func (l *Loop) stopAcceptingFrom(listenerFD int32) {
	i := slices.Index(l.accept.watchedFDs, listenerFD)
	if i < 0 {
		return
	}
	l.accept.watchedFDs = slices.Delete(slices.Clone(l.accept.watchedFDs), i, i+1) // AcceptAndReceiveConns may be ranging over it
	if !l.isAcceptPaused() {
		l.driver.UnwatchListener(listenerFD)
	}
}

// closeListeners permanently stops accepting and closes the loop's descriptors of listeners.
func (l *Loop) closeListeners() {
	l.counters.Set(engine.AcceptPausedCount, 0)
	for len(l.accept.watchedFDs) > 0 {
		l.stopAcceptingFrom(l.accept.watchedFDs[0])
	}
	for i, fd := range l.engine.listenerFDs {
		own := l.engine.homeLoopOfListener(i) == l.host.Index
		if own && l.engine.cfg.MaxConnsPerShard > 0 && l.engine.listenerConfigs[l.engine.listenerIndexes[i]].Socket == nil && !l.engine.listenersShared.Load() {
			sock.StopListening(fd) // several descriptor tables contain the listener
		}
		if own || l.engine.cfg.MaxConnsPerShard > 0 {
			sock.Close(fd)
		}
	}
}

// isFull reports whether the loop has its own descriptor table and that table is full.
func (l *Loop) isFull() bool {
	return l.engine.cfg.MaxConnsPerShard > 0 && l.connCount.Load() >= l.capacity.Load()
}

// lowerCapacityToUsed reduces the capacity of the loop's descriptor table to the current number of connections. It
// returns false if the loop has no descriptor table of its own.
func (l *Loop) lowerCapacityToUsed() (isShard bool) {
	if l.engine.cfg.MaxConnsPerShard == 0 {
		return false
	}
	l.capacity.Store(l.connCount.Load())
	return true
}

// leastLoadedLoopUnlessFull returns the loop with the fewest connections, or nil if that loop is full.
func (e *loopEngine) leastLoadedLoopUnlessFull() *Loop {
	best := slices.MinFunc(e.loops, func(a, b *Loop) int { return int(a.connCount.Load() - b.connCount.Load()) })
	if best.isFull() {
		return nil
	}
	return best
}

// delegateListenersToLeastLoaded moves this loop's listeners to the loop with the fewest connections. If that loop is
// full, or if this loop itself has the fewest connections, it moves nothing and returns false.
func (l *Loop) delegateListenersToLeastLoaded() (delegated bool) {
	e := l.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	target := e.leastLoadedLoopUnlessFull()
	if target == nil || target == l {
		return false
	}
	for i, acceptingLoop := range e.acceptingLoops {
		if acceptingLoop == l.host.Index {
			e.acceptingLoops[i] = target.host.Index
			target.enqueueCallAndWake(func() { target.acceptOnlyIfAssigned(i) })
			l.stopAcceptingFrom(e.listenerFDs[i])
		}
	}
	l.accept.delegated = true
	return true
}

func (l *Loop) reclaimListenersIfSpace() {
	e, own := l.engine, l.host.Index
	if capacity := l.capacity.Load(); capacity-l.connCount.Load() <= capacity/16 {
		return
	}
	for i := own; i < len(e.listenerFDs); i += e.cfg.Loops {
		e.mu.Lock()
		acceptingLoop := e.loops[e.acceptingLoops[i]]
		e.acceptingLoops[i] = own
		e.mu.Unlock()
		acceptingLoop.enqueueCallAndWake(func() { acceptingLoop.acceptOnlyIfAssigned(i) })
		l.acceptOnlyIfAssigned(i)
	}
	l.accept.delegated = false
}

func (e *loopEngine) homeLoopOfListener(listenerFDIndex int) (loopIndex int) {
	return listenerFDIndex % e.cfg.Loops
}

func (l *Loop) acceptOnlyIfAssigned(listenerFDIndex int) {
	l.engine.mu.Lock()
	isMine := l.engine.acceptingLoops[listenerFDIndex] == l.host.Index
	l.engine.mu.Unlock()
	if isMine {
		l.startAcceptingFrom(l.engine.listenerFDs[listenerFDIndex])
	} else {
		l.stopAcceptingFrom(l.engine.listenerFDs[listenerFDIndex])
	}
}

// delegateOrFailDial passes one dial to the loop with the fewest connections. If that loop has no capacity for a
// connection, the dial fails. If that loop has capacity but its request queue is full, needsNoRetry is false, and the
// caller must try again.
func (l *Loop) delegateOrFailDial(request engine.DialRequest) (needsNoRetry bool) {
	target := l.engine.leastLoadedLoopUnlessFull()
	if target == nil {
		l.host.NotifyDialFailed(request.Handler, engine.ErrFull)
		return true
	}
	request.Count = 1
	switch err := target.enqueueDialAndWake(request); {
	case errors.Is(err, engine.ErrFull):
		return false
	case err != nil:
		l.host.NotifyDialFailed(request.Handler, err)
	}
	return true
}
