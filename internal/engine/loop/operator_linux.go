package loop

import (
	"net/netip"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file implements an administrator's operations on a running engine.
//
// Pausing accept is a flag of the engine that each loop checks once a turn and before each accept. A loop that has seen
// the flag stops watching its listeners and counts in AcceptPausedCount.
//
// QueueCloseOfPeerConns walks the slots of each loop, a limited number per turn. At most maxActiveExpels walks run at a
// time, which limits the functions queued for each loop. Once a proxy has announced a connection's client, the Conn no
// longer contains the proxy's address. With proxies, the loop therefore asks the kernel for the address of each
// connection.

const maxActiveExpels = 16

const walkSlotsPerTurn = chunkSize

func (e *loopEngine) PauseAccept(paused bool) error {
	switch {
	case e.stopping.Load():
		return engine.ErrClosed
	case len(e.listenerFDs) == 0:
		return nil
	}
	e.acceptPaused.Store(paused)
	for _, l := range e.loops {
		l.wake()
	}
	return nil
}

func (l *Loop) applyOperatorPause(paused bool) {
	if paused && !l.accept.paused {
		for _, fd := range l.accept.watchedFDs {
			l.driver.UnwatchListener(fd)
		}
	}
	if l.accept.pausedByOperator = paused; !paused {
		l.WatchChannelsAndUnpausedListeners()
	}
	if l.requestedStopStage.Load() < stageStopping {
		l.counters.SetGaugeBool(engine.AcceptPausedCount, paused)
	}
}

// connWalk is an iteration over the connections of all loops.
type connWalk struct {
	visitFrom func(l *Loop, from uint32) (next uint32) // visits some slots
	onDone    func()
	loopsLeft atomic.Int32 // loops that have not finished
}

// startConnWalk makes every loop visit its connections, some per iteration. The function visitFrom visits connections
// of loop l, beginning at slot from. It returns the slot at which the loop continues in a later iteration. onDone is
// called after all loops have finished.
func (e *loopEngine) startConnWalk(visitFrom func(l *Loop, from uint32) (next uint32), onDone func()) error {
	select {
	case <-e.done:
		return engine.ErrClosed
	default:
	}
	w := &connWalk{visitFrom: visitFrom, onDone: onDone}
	w.loopsLeft.Store(int32(len(e.loops)))
	for _, l := range e.loops {
		l.enqueueWalkStep(w, 0)
	}
	return nil
}

func (l *Loop) enqueueWalkStep(w *connWalk, fromSlot uint32) {
	enqueued := l.enqueueCallAndWake(func() {
		if next := w.visitFrom(l, fromSlot); next < l.conns.slotCount {
			l.enqueueWalkStep(w, next)
		} else {
			w.markLoopDone()
		}
	})
	if !enqueued {
		w.markLoopDone()
	}
}

func (w *connWalk) markLoopDone() {
	if w.loopsLeft.Add(-1) == 0 {
		w.onDone()
	}
}

func (e *loopEngine) QueueCloseOfPeerConns(exactAddrPort netip.AddrPort) error {
	if e.activePeerCloses.Add(1) > maxActiveExpels {
		e.activePeerCloses.Add(-1)
		return engine.ErrFull
	}
	err := e.startConnWalk(func(l *Loop, from uint32) (next uint32) {
		next = from + walkSlotsPerTurn
		l.conns.forEachConnInUse(from, next, func(c *engine.Conn) {
			if c.DriverFlags()&(Connecting|ClosePending) == 0 && (c.Peer() == exactAddrPort || l.isFromProxyAddr(c, exactAddrPort)) {
				l.AbortConnOrFailDial(c, engine.ErrClosedByOperator)
			}
		})
		return next
	}, func() { e.activePeerCloses.Add(-1) })
	if err != nil {
		e.activePeerCloses.Add(-1)
	}
	return err
}

// PostToEveryConn implements engine.ConnVisitor. If the mailbox of a loop is full, the remaining connections of this
// loop get the message in a later iteration. No connection misses the message because of a full mailbox, so onDone is
// called with 0.
func (e *loopEngine) PostToEveryConn(message *engine.Shared, beforePost func(), onDone func(full int)) error {
	return e.startConnWalk(func(l *Loop, from uint32) (next uint32) {
		end := min(from+walkSlotsPerTurn, l.conns.slotCount)
		for next = from; next < end; next++ {
			c := l.conns.conn(next)
			if c.FD() < 0 || c.DriverFlags()&(Connecting|ClosePending) != 0 {
				continue
			}
			beforePost()
			if err := l.mailbox.PutShared(c, engine.RequestDo, message); err != nil {
				message.OnLost()
				if err == engine.ErrFull {
					break // until there is capacity
				}
			}
		}
		return next
	}, func() { onDone(0) })
}

func (l *Loop) isFromProxyAddr(c *engine.Conn, proxyAddr netip.AddrPort) bool {
	if l.engine.cfg.IsProxy == nil {
		return false
	}
	at := sock.PeerAddr(c.FD())
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()) == proxyAddr
}
