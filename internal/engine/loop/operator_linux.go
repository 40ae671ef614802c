package loop

import (
	"net/netip"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file is what an operator may do to loops that run.
//
// That nothing is to be accepted is a flag of the group, at which each loop looks
// once a turn, and before each connection that it accepts. A loop that has seen it
// turns away from its listeners; it counts as Holding then.
//
// To close the connections of a peer each loop goes through its slab, so many slots
// a turn, as a chore that leaves itself for the next turn. No more than maxActiveExpels
// are under way, so there are no more chores than that for each loop. The core forgets
// where a connection comes from when a proxy tells whose it is; so where there are
// proxies the kernel is asked for that, in a call for each connection.

// maxActiveExpels is how many calls of Expel may be under way.
const maxActiveExpels = 16

// walkSlotsPerTurn is how many slots a turn looks at for one: a chunk of the slab.
const walkSlotsPerTurn = chunkSize

func (e *loopEngine) Hold(paused bool) error {
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

// setOperatorPause turns away from the listeners, or to them again.
func (l *Loop) setOperatorPause(paused bool) {
	if paused && !l.accept.paused {
		for _, fd := range l.accept.watchedFDs {
			l.driver.UnwatchListener(fd)
		}
	}
	if l.accept.pausedByOperator = paused; !paused {
		l.WatchListeners()
	}
	if l.requestedStage.Load() < stageStopping {
		l.counters.SetFlag(engine.Holding, paused)
	}
}

// connWalk is work on all connections of all loops, some in a turn: a chore of each loop
// that leaves itself for the next turn.
type connWalk struct {
	visitFrom func(l *Loop, from uint32) (next uint32) // on slots from one on
	onDone    func()
	loopsLeft atomic.Int32 // loops that have not done it
}

// walkConns starts one, unless all loops have ended.
func (e *loopEngine) walkConns(visitFrom func(l *Loop, from uint32) (next uint32), onDone func()) error {
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

// enqueueWalkStep leaves the slots from one on for another turn.
func (l *Loop) enqueueWalkStep(w *connWalk, fromSlot uint32) {
	enqueued := l.enqueueCall(func() {
		if next := w.visitFrom(l, fromSlot); next < l.conns.slotCount {
			l.enqueueWalkStep(w, next)
		} else {
			w.finishLoop()
		}
	})
	if !enqueued {
		w.finishLoop()
	}
}

func (w *connWalk) finishLoop() {
	if w.loopsLeft.Add(-1) == 0 {
		w.onDone()
	}
}

func (e *loopEngine) Expel(peer netip.AddrPort) error {
	if e.activeExpels.Add(1) > maxActiveExpels {
		e.activeExpels.Add(-1)
		return engine.ErrFull
	}
	err := e.walkConns(func(l *Loop, from uint32) (next uint32) {
		next = from + walkSlotsPerTurn
		l.conns.forEach(from, next, func(c *engine.Conn) {
			if c.Armed()&(Connecting|ClosePending) == 0 && (c.Peer() == peer || l.hasSourceAddr(c, peer)) {
				l.AbortConn(c, engine.ErrExpelled)
			}
		})
		return next
	}, func() { e.activeExpels.Add(-1) })
	if err != nil {
		e.activeExpels.Add(-1)
	}
	return err
}

// Visit implements engine.Visitor: it leaves mail for connections, as much as there is
// room for.
func (e *loopEngine) Visit(s *engine.Shared, beforePut func(), onDone func(full int)) error {
	return e.walkConns(func(l *Loop, from uint32) (next uint32) {
		end := min(from+walkSlotsPerTurn, l.conns.slotCount)
		for next = from; next < end; next++ {
			c := l.conns.conn(next)
			if c.FD() < 0 || c.Armed()&(Connecting|ClosePending) != 0 {
				continue
			}
			beforePut()
			if err := l.mailbox.PutShared(c, engine.MailDo, s); err != nil {
				s.Lost()
				if err == engine.ErrFull {
					break // until there is room
				}
			}
		}
		return next
	}, func() { onDone(0) })
}

// hasSourceAddr says whether a connection that a proxy may have told another address of comes
// from this one.
func (l *Loop) hasSourceAddr(c *engine.Conn, addr netip.AddrPort) bool {
	if l.engine.cfg.Proxied == nil {
		return false
	}
	at := sock.Peer(c.FD())
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()) == addr
}
