package goroutine

import (
	"slices"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is how a message goes to all connections. It is kept once, and waits in a
// queue for the caster, which leaves references to all that wait in the mailbox of each
// connection, a chunk of the table at a time. The caster ends when the queue has
// been closed and is empty. When connections are to end at once it casts no more.

// maxCasts is how many broadcasts may be under way.
const maxCasts = 1024

// casting is a broadcast under way.
type casting struct {
	engine.Shared
	began time.Duration
}

// casts are the broadcasts under way: in the queue, or with the caster.
type casts struct {
	some chan struct{} // there is something for the caster

	mu    sync.Mutex
	queue []*casting
	with  int // so many of them are with the caster, the first ones
	bytes int // of all
	ended bool
}

// room is why a broadcast of so many bytes cannot be taken: the group has ended, or
// it would be too many, or more bytes than most; one may be larger if it is alone.
func (q *casts) room(size, most int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.check(size, most)
}

func (q *casts) check(size, most int) error {
	switch {
	case q.ended:
		return engine.ErrClosed
	case len(q.queue) == maxCasts, q.bytes > 0 && q.bytes+size > most:
		return engine.ErrFull
	}
	return nil
}

// put leaves one for the caster, if there is room.
func (q *casts) put(p []byte, most int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.check(len(p), most); err != nil {
		return err
	}
	q.bytes += len(p)
	q.queue = append(q.queue, &casting{engine.Shared{Bytes: p}, engine.Since()})
	signal(q.some)
	return nil
}

// take gives all that wait to the caster; ok is false when there will be no more.
func (q *casts) take() (batch []*casting, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.with = len(q.queue)
	return q.queue[:q.with:q.with], q.with > 0 || !q.ended
}

// done says that those with the caster have been cast.
func (q *casts) done() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, c := range q.queue[:q.with] {
		q.bytes -= len(c.Bytes)
	}
	q.queue, q.with = slices.Delete(q.queue, 0, q.with), 0
}

// end lets no more come.
func (q *casts) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	signal(q.some)
}

// count tells of those under way.
func (q *casts) count(n *engine.Counts) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n[engine.Casting], n[engine.CastBytes] = int64(len(q.queue)), int64(q.bytes)
	if len(q.queue) > 0 {
		n[engine.CastAge] = int64(engine.Since() - q.queue[0].began)
	}
}

// Broadcast implements engine.Engine. It looks for room before it makes a copy.
func (g *group) Broadcast(p []byte) error {
	if len(p) > g.cfg.Limits.MaxUnsent {
		return engine.ErrTooLarge
	}
	most := g.cfg.Limits.MaxMailBytes
	if err := g.casts.room(len(p), most); err != nil {
		return err
	}
	if err := g.casts.put(append([]byte(nil), p...), most); err != nil {
		return err
	}
	g.counters.Add(engine.Broadcasts, 1)
	return nil
}

// castAll is the caster.
func (g *group) castAll() {
	room := make([]*conn, 0, tableChunk)
	for {
		batch, ok := g.casts.take()
		switch {
		case !ok:
			return
		case len(batch) == 0:
			<-g.casts.some
		default:
			g.cast(batch, room)
			g.casts.done()
		}
	}
}

// cast leaves messages in all mailboxes. Connections that come meanwhile may get
// them or not.
func (g *group) cast(batch []*casting, room []*conn) {
	for i := 0; ; i++ {
		conns, more := g.chunk(i, room)
		if !more || g.ending() {
			return
		}
		for _, c := range conns {
			g.castTo(c, batch)
		}
		clear(conns)
	}
}

// chunk lists the connections of a chunk of the table, if there is such a chunk
// and the table is not empty.
func (g *group) chunk(i int, room []*conn) (conns []*conn, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i >= len(g.conns.chunks) || g.conns.used == 0 {
		return nil, false
	}
	return g.conns.inChunk(i, room), true
}

// ending says whether connections are to end at once.
func (g *group) ending() bool {
	select {
	case <-g.quick:
		return true
	default:
		return false
	}
}

// castTo leaves messages in a mailbox. A connection that has no room for one loses
// it, or is closed.
func (g *group) castTo(c *conn, batch []*casting) {
	box, some := c.mailbox(), false
	for _, m := range batch {
		switch err := box.PutCast(&c.Conn, &m.Shared); {
		case err == nil:
			some = true
		case err != engine.ErrFull:
		case g.cfg.DropMessages:
			box.Miss() // first: who sees the count finds it at the connection
			g.counters.Add(engine.Dropped, 1)
		default:
			c.order(lagging)
			return
		}
	}
	if some {
		c.rouse()
	}
}
