package loop

import (
	"slices"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is how a message goes to all connections. It is kept once; each loop
// has a reference to it in posted, which the loop's lock guards, and walks through
// its connections with all those that wait, some connections in a turn, so that others
// do not wait. What is owed nothing is sent to without a copy; what a connection
// can't take at once is copied to its own output; one that is with a worker gets it
// when it is back. The group counts the bytes of those that are under way on some
// loop, against MaxMailBytes.

// maxCasts is how many broadcasts may be under way.
const maxCasts = 1024

// The bounds of what a turn does of it: connections, and bytes, but for one message.
const (
	castBatch = 256
	castBytes = 1 << 20
	// roundBytes is the most bytes of a round, but for one message.
	roundBytes = 64 << 10
)

// cast is a message to all.
type cast struct {
	group *group
	engine.Shared
	left atomic.Int32 // loops that have not done it
}

// done says that a loop has done its part.
func (c *cast) done() {
	if c.left.Add(-1) == 0 {
		c.group.casting.Add(-int64(len(c.Bytes)))
		c.group.casts.Add(-1)
	}
}

// Broadcast implements engine.Engine.
func (g *group) Broadcast(p []byte) error {
	size := int64(len(p))
	switch {
	case g.stopping.Load():
		return engine.ErrClosed
	case len(p) > g.cfg.Limits.MaxUnsent:
		return engine.ErrTooLarge
	case g.casts.Add(1) > maxCasts:
		g.casts.Add(-1)
		return engine.ErrFull
	case g.casting.Add(size) > max(int64(g.cfg.Limits.MaxMailBytes), size):
		g.casting.Add(-size)
		g.casts.Add(-1)
		return engine.ErrFull
	}
	g.loops[0].counters.Add(engine.Broadcasts, 1)
	c := &cast{group: g, Shared: engine.Shared{Bytes: append([]byte(nil), p...)}}
	c.left.Store(int32(len(g.loops)))
	for _, l := range g.loops {
		l.takeCast(c)
	}
	return nil
}

// takeCast leaves a broadcast for the loop. One that has ended has nobody to give
// it to.
func (l *Loop) takeCast(c *cast) {
	l.mu.Lock()
	ended := l.ended
	if !ended {
		l.posted = append(l.posted, c)
		l.some.Store(true)
	}
	l.mu.Unlock()
	if ended {
		c.done()
		return
	}
	l.rouse()
}

// round is the broadcasts that the loop gives to its connections in one walk: those
// that waited when it began, up to roundBytes, but at least one. Those that come
// meanwhile wait for the next, so each connection gets all in order. Behind a loop that
// has much to do rounds grow, and with them what goes out in one send.
type round struct {
	messages []*engine.Shared
	all      []byte // of all of them
	joined   []byte // the room for that, where they are several
	to       uint32 // the slot that is next
}

// begin makes a round of the first broadcasts.
func (r *round) begin(casts []*cast) {
	size := 0
	for _, c := range casts {
		if size += len(c.Bytes); len(r.messages) > 0 && size > roundBytes {
			break
		}
		r.messages = append(r.messages, &c.Shared)
	}
	if r.all = r.messages[0].Bytes; len(r.messages) > 1 {
		r.joined = r.joined[:0]
		for _, m := range r.messages {
			r.joined = append(r.joined, m.Bytes...)
		}
		r.all = r.joined
	}
}

// end forgets them.
func (r *round) end() {
	clear(r.messages)
	*r = round{messages: r.messages[:0], joined: r.joined}
}

// castSome gives the round to the next connections.
func (l *Loop) castSome() {
	r := &l.round
	if len(r.messages) == 0 {
		r.begin(l.casts)
	}
	end, until := l.slab.made, engine.Since()+slice
	batch := min(castBatch, max(castBytes/max(len(r.all), 1), 1))
	for n := 0; r.to < end && n < batch; r.to++ {
		c := l.slab.at(r.to)
		if c.FD() < 0 || c.Armed()&Connecting != 0 {
			continue
		}
		if n++; engine.Since() >= until {
			n = batch
		}
		l.castOne(c)
	}
	if r.to < end {
		return
	}
	for i := range r.messages {
		l.casts[i].done()
	}
	l.casts = slices.Delete(l.casts, 0, len(r.messages))
	r.end()
}

func (l *Loop) castOne(c *engine.Conn) {
	switch armed := c.Armed(); {
	case armed&Parting != 0:
	case armed&Busy != 0:
		for _, m := range l.round.messages {
			l.castLater(c, m)
		}
	case c.Cast(l.round.all, l.round.messages):
		l.driver.Settle(c)
	}
}

// castLater keeps a broadcast for a connection that is with a worker, where it
// counts as if it had been posted. One that has no room for it loses it, or is
// closed when it is back.
func (l *Loop) castLater(c *engine.Conn, s *engine.Shared) {
	m, err := c.HoldCast(s)
	switch {
	case err == nil:
		l.Later(c, func() { c.Mailed(m, nil) })
	case err != engine.ErrFull:
	case l.host.DropMessages:
		l.counters.Add(engine.Dropped, 1)
	case c.Armed()&Lagging == 0:
		c.SetArmed(c.Armed() | Lagging)
		l.Later(c, func() { c.Kill(engine.ErrSlowConsumer) })
	}
}
