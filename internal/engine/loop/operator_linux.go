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

// expelBatch is how many slots a turn looks at for one: a chunk of the slab.
const expelBatch = chunkSize

// Hold implements engine.Engine.
func (g *group) Hold(on bool) error {
	switch {
	case g.stopping.Load():
		return engine.ErrClosed
	case len(g.listeners) == 0:
		return nil
	}
	g.held.Store(on)
	for _, l := range g.loops {
		l.wake()
	}
	return nil
}

// hold turns away from the listeners, or to them again.
func (l *Loop) hold(on bool) {
	if on && !l.accept.paused {
		for _, fd := range l.accept.watched {
			l.driver.Unlisten(fd)
		}
	}
	if l.accept.held = on; !on {
		l.Relisten()
	}
	if l.told.Load() < stopping {
		l.counters.Set(engine.Holding, int64(bit(on)))
	}
}

func bit(on bool) int {
	if on {
		return 1
	}
	return 0
}

// expulsion is a call of Expel.
type expulsion struct {
	group *group
	peer  netip.AddrPort
	left  atomic.Int32 // loops that have not done it
}

// Expel implements engine.Engine.
func (g *group) Expel(peer netip.AddrPort) error {
	select {
	case <-g.done:
		return engine.ErrClosed
	default:
	}
	if g.expelling.Add(1) > maxExpels {
		g.expelling.Add(-1)
		return engine.ErrFull
	}
	e := &expulsion{group: g, peer: peer}
	e.left.Store(int32(len(g.loops)))
	for _, l := range g.loops {
		l.goOnExpelling(e, 0)
	}
	return nil
}

func (e *expulsion) done() {
	if e.left.Add(-1) == 0 {
		e.group.expelling.Add(-1)
	}
}

// goOnExpelling leaves the slots from one on for another turn.
func (l *Loop) goOnExpelling(e *expulsion, from uint32) {
	if !l.ask(func() { l.expelSome(e, from) }) {
		e.done()
	}
}

// expelSome looks at the next slots.
func (l *Loop) expelSome(e *expulsion, from uint32) {
	to := from + expelBatch
	l.slab.each(from, to, func(c *engine.Conn) {
		if c.Armed()&(Connecting|Parting) == 0 && (c.Peer() == e.peer || l.comesFrom(c, e.peer)) {
			l.expel(c)
		}
	})
	if to >= l.slab.made {
		e.done()
		return
	}
	l.goOnExpelling(e, to)
}

// visit is a call of Visit.
type visit struct {
	*engine.Shared
	put  func()
	done func(full int)
	left atomic.Int32 // loops that have not done it
}

// Visit implements engine.Visitor.
func (g *group) Visit(s *engine.Shared, put func(), done func(full int)) error {
	select {
	case <-g.done:
		return engine.ErrClosed
	default:
	}
	v := &visit{Shared: s, put: put, done: done}
	v.left.Store(int32(len(g.loops)))
	for _, l := range g.loops {
		l.goOnVisiting(v, 0)
	}
	return nil
}

// goOnVisiting leaves the slots from one on for another turn.
func (l *Loop) goOnVisiting(v *visit, from uint32) {
	if !l.ask(func() { l.visitSome(v, from) }) {
		v.end()
	}
}

// visitSome leaves mail for the next connections, as much as there is room for.
func (l *Loop) visitSome(v *visit, from uint32) {
	slot, to := from, min(from+expelBatch, l.slab.made)
	for ; slot < to; slot++ {
		c := l.slab.at(slot)
		if c.FD() < 0 || c.Armed()&(Connecting|Parting) != 0 {
			continue
		}
		v.put()
		if err := l.box.PutDo(c, v.Shared); err != nil {
			v.Lost()
			if err == engine.ErrFull {
				break // until there is room
			}
		}
	}
	if slot >= l.slab.made {
		v.end()
		return
	}
	l.goOnVisiting(v, slot)
}

func (v *visit) end() {
	if v.left.Add(-1) == 0 {
		v.done(0)
	}
}

// comesFrom says whether a connection that a proxy may have told another address of comes
// from this one.
func (l *Loop) comesFrom(c *engine.Conn, from netip.AddrPort) bool {
	if l.group.cfg.Proxied == nil {
		return false
	}
	at := sock.Peer(c.FD())
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()) == from
}

// expel closes a connection, when it is back if it is with a worker.
func (l *Loop) expel(c *engine.Conn) {
	if c.Armed()&Busy != 0 {
		l.Later(c, func() { c.Kill(engine.ErrExpelled) })
		return
	}
	if c.IsOpen() {
		c.Kill(engine.ErrExpelled)
		l.driver.Settle(c)
	}
}
