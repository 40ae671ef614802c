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
// a turn, as a chore that leaves itself for the next turn. No more than maxExpels
// are under way, so there are no more chores than that for each loop. The core forgets
// where a connection comes from when a proxy tells whose it is; so where there are
// proxies the kernel is asked for that, in a call for each connection.

// maxExpels is how many calls of Expel may be under way.
const maxExpels = 16

// walkBatch is how many slots a turn looks at for one: a chunk of the slab.
const walkBatch = chunkSize

func (g *group) PauseAccept(on bool) error {
	switch {
	case g.stopping.Load():
		return engine.ErrClosed
	case len(g.listeners) == 0:
		return nil
	}
	g.acceptPaused.Store(on)
	for _, l := range g.loops {
		l.wake()
	}
	return nil
}

// pauseAccept turns away from the listeners, or to them again.
func (l *Loop) pauseAccept(on bool) {
	if on && !l.accept.paused {
		for _, fd := range l.accept.watched {
			l.driver.Unlisten(fd)
		}
	}
	if l.accept.byOperator = on; !on {
		l.Relisten()
	}
	if l.wanted.Load() < stopping {
		l.counters.SetBool(engine.AcceptPausedCount, on)
	}
}

// slabWalk is work on all connections of all loops, some in a turn: a chore of each loop
// that leaves itself for the next turn.
type slabWalk struct {
	some func(l *Loop, from uint32) (next uint32) // on slots from one on
	done func()
	left atomic.Int32 // loops that have not done it
}

// walk starts one, unless all loops have ended.
func (g *group) walk(some func(l *Loop, from uint32) (next uint32), done func()) error {
	select {
	case <-g.done:
		return engine.ErrClosed
	default:
	}
	w := &slabWalk{some: some, done: done}
	w.left.Store(int32(len(g.loops)))
	for _, l := range g.loops {
		l.walkNext(w, 0)
	}
	return nil
}

// walkNext leaves the slots from one on for another turn.
func (l *Loop) walkNext(w *slabWalk, from uint32) {
	left := l.addChore(func() {
		if next := w.some(l, from); next < l.slab.made {
			l.walkNext(w, next)
		} else {
			w.end()
		}
	})
	if !left {
		w.end()
	}
}

func (w *slabWalk) end() {
	if w.left.Add(-1) == 0 {
		w.done()
	}
}

func (g *group) ClosePeerConns(peer netip.AddrPort) error {
	if g.expelling.Add(1) > maxExpels {
		g.expelling.Add(-1)
		return engine.ErrFull
	}
	err := g.walk(func(l *Loop, from uint32) (next uint32) {
		next = from + walkBatch
		l.slab.each(from, next, func(c *engine.Conn) {
			if c.DriverFlags()&(Connecting|ClosePending) == 0 && (c.Peer() == peer || l.comesFrom(c, peer)) {
				l.Abort(c, engine.ErrClosedByOperator)
			}
		})
		return next
	}, func() { g.expelling.Add(-1) })
	if err != nil {
		g.expelling.Add(-1)
	}
	return err
}

// VisitConns implements engine.Visitor: it leaves mail for connections, as much as there is
// room for.
func (g *group) VisitConns(s *engine.Shared, beforePost func(), done func(full int)) error {
	return g.walk(func(l *Loop, from uint32) (next uint32) {
		end := min(from+walkBatch, l.slab.made)
		for next = from; next < end; next++ {
			c := l.slab.at(next)
			if c.FD() < 0 || c.DriverFlags()&(Connecting|ClosePending) != 0 {
				continue
			}
			beforePost()
			if err := l.box.PutShared(c, engine.RequestDo, s); err != nil {
				s.OnLost()
				if err == engine.ErrFull {
					break // until there is room
				}
			}
		}
		return next
	}, func() { done(0) })
}

// comesFrom says whether a connection that a proxy may have told another address of comes
// from this one.
func (l *Loop) comesFrom(c *engine.Conn, from netip.AddrPort) bool {
	if l.group.cfg.IsProxy == nil {
		return false
	}
	at := sock.Peer(c.FD())
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()) == from
}
