package loop

import (
	"slices"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is how a message goes to all connections. It is kept once; each loop
// has a reference to it in posted, which the loop's lock guards, and walks through
// its connections with all those that wait, some connections in a turn, so that others
// do not wait. A connection with nothing unsent is sent to without a copy; what a connection
// can't take at once is copied to its own output; one that is with a worker gets it
// when it is back.

// The bounds of what a turn does of it: connections, and bytes, but for one message.
const (
	castBatch = 256
	castBytes = 1 << 20
	castLook  = 8 // after so many it looks at the clock
	// walkBytes is the most bytes of those that walk together, but for one message.
	walkBytes = 64 << 10
)

func (g *group) Broadcast(p []byte) error {
	b, err := g.broadcasts.StartBroadcast(p, len(g.loops), &g.cfg.Limits)
	if err != nil {
		return err
	}
	g.loops[0].counters.Add(engine.Broadcasts, 1)
	for _, l := range g.loops {
		l.takeBroadcast(b)
	}
	return nil
}

// takeBroadcast leaves a broadcast for the loop. One that has ended has nobody to give
// it to.
func (l *Loop) takeBroadcast(b *engine.Broadcast) {
	l.mu.Lock()
	ended := l.ended
	if !ended {
		l.posted = append(l.posted, b)
		l.hasOrders.Store(true)
	}
	l.mu.Unlock()
	if ended {
		b.OwnerDone()
		return
	}
	l.wake()
}

// walk is how a loop gives broadcasts to its connections: round and round, as long as
// there are any. One that comes joins in where the walk is, behind those that are
// under way, and has reached all when it comes there again. So a connection gets in one
// send all that have come since the walk was there before, in order, and the longer a
// round takes, the more that is.
type walk struct {
	to     uint32           // the slot that is next
	each   []*engine.Shared // those under way, which are the loop's first casts
	all    []byte           // of all of them
	joined []byte           // the room for that, where they are several
}

// casts are a loop's broadcasts that are under way.
type casts struct {
	loop *Loop
	all  []casting // in order
	walk walk

	finished uint64 // how many have reached all
}

// casting is a broadcast of a loop's.
type casting struct {
	*engine.Broadcast
	from    uint32 // the slot where it has joined
	wrapped bool   // the walk has come to its end since
}

// advance goes on from the last slot to the first, lets go of broadcasts that have reached
// all, and lets others join.
func (c *casts) advance() {
	w := &c.walk
	if w.to >= c.loop.slab.made {
		w.to = 0
		for i := range w.each {
			c.all[i].wrapped = true
		}
	}
	over := 0
	for over < len(w.each) && c.all[over].wrapped && w.to >= c.all[over].from {
		c.all[over].OwnerDone()
		over++
	}
	c.all = slices.Delete(c.all, 0, over)
	c.finished += uint64(over)
	w.each = slices.Delete(w.each, 0, over)
	size := 0
	for _, m := range w.each {
		size += len(m.Bytes)
	}
	joined := over
	for i := len(w.each); i < len(c.all); i++ {
		one := &c.all[i]
		if size += len(one.Bytes); i > 0 && size > walkBytes {
			break
		}
		one.from = w.to
		w.each = append(w.each, &one.Shared)
		joined++
	}
	if joined > 0 {
		w.join()
	}
}

// join makes one piece of those under way.
func (w *walk) join() {
	switch len(w.each) {
	case 0:
		w.all = nil
	case 1:
		w.all = w.each[0].Bytes
	default:
		w.joined = w.joined[:0]
		for _, m := range w.each {
			w.joined = append(w.joined, m.Bytes...)
		}
		w.all = w.joined
	}
}

func (c *casts) next() (at time.Duration, ok bool) { return 0, len(c.all) > 0 }

// run goes on with the walk, until the slice is over.
func (c *casts) run(time.Duration) {
	if len(c.all) == 0 {
		return
	}
	l := c.loop
	l.doing.Store(broadcasts)
	defer l.doing.Store(upkeep)
	w, end := &c.walk, engine.MonotonicNow()+slice
	for n, size, joined := 0, 0, false; n < castBatch && size < castBytes; {
		if first := c.all[0]; !joined || w.to >= l.slab.made || first.wrapped && w.to >= first.from {
			if c.advance(); len(c.all) == 0 {
				return
			}
			joined = true
		}
		look := w.to%chunkSize == 0
		if w.to < l.slab.made {
			if conn := l.slab.at(w.to); conn.FD() >= 0 && conn.DriverFlags()&Connecting == 0 {
				l.castOne(conn)
				n++
				size += len(w.all)
				look = look || n%castLook == 0
			}
		}
		if w.to++; look && engine.MonotonicNow() >= end {
			return
		}
	}
}

func (l *Loop) castOne(c *engine.Conn) {
	switch armed := c.DriverFlags(); {
	case armed&ClosePending != 0:
	case armed&Busy != 0:
		for _, m := range l.casts.walk.each {
			l.castLater(c, m)
		}
	case c.WriteBroadcasts(l.casts.walk.all, l.casts.walk.each):
		l.driver.Settle(c)
	}
}

// castLater keeps a broadcast for a connection that is with a worker, where it
// counts as if it had been posted. One that has no room for it loses it, or is
// closed when it is back.
func (l *Loop) castLater(c *engine.Conn, s *engine.Shared) {
	m, err := c.ReserveBroadcastRequest(s)
	switch {
	case err == nil:
		l.queueMail(m, nil)
	case err != engine.ErrFull:
	case l.host.DropMessages:
		l.counters.Add(engine.Dropped, 1)
		if l.missed == nil {
			l.missed = make(map[*engine.Conn]int64)
		}
		l.missed[c]++
	default:
		l.closeBusy(c, engine.ErrSlowConsumer)
	}
}
