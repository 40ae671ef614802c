package goroutine

import (
	"sync"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is how a message goes to all connections. It is kept once, and waits in
// a queue for the caster, which leaves a reference to it in the mailbox of each
// connection, a chunk of the table at a time. The caster ends when the queue has
// been closed and is empty. When connections are to end at once it casts no more.

// maxCasts is how many broadcasts may be under way.
const maxCasts = 1024

// casts are the broadcasts under way: in the queue, or with the caster.
type casts struct {
	queue chan *engine.Shared // of maxCasts, so that none who is let in waits

	mu    sync.Mutex
	n     int // how many
	bytes int // how many bytes they have
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
	case q.n == maxCasts, q.bytes > 0 && q.bytes+size > most:
		return engine.ErrFull
	}
	return nil
}

// put leaves one for the caster, if there is room.
func (q *casts) put(s *engine.Shared, most int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.check(len(s.Bytes), most); err != nil {
		return err
	}
	q.n++
	q.bytes += len(s.Bytes)
	q.queue <- s
	return nil
}

// done says that one has been cast.
func (q *casts) done(s *engine.Shared) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.n--
	q.bytes -= len(s.Bytes)
}

// end lets no more come.
func (q *casts) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	close(q.queue)
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
	if err := g.casts.put(&engine.Shared{Bytes: append([]byte(nil), p...)}, most); err != nil {
		return err
	}
	g.counters.Add(engine.Broadcasts, 1)
	return nil
}

// castAll is the caster.
func (g *group) castAll() {
	room := make([]*conn, 0, tableChunk)
	for s := range g.casts.queue {
		g.cast(s, room)
		g.casts.done(s)
	}
}

// cast leaves a message in all mailboxes. Connections that come meanwhile may get
// it or not.
func (g *group) cast(s *engine.Shared, room []*conn) {
	for i := 0; ; i++ {
		conns, more := g.chunk(i, room)
		if !more || g.ending() {
			return
		}
		for _, c := range conns {
			g.castTo(c, s)
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

// castTo leaves a message in a mailbox. A connection that has no room for it loses
// it, or is closed.
func (g *group) castTo(c *conn, s *engine.Shared) {
	switch err := c.mailbox().PutCast(&c.Conn, s); {
	case err == nil:
		c.rouse()
	case err != engine.ErrFull:
	case g.cfg.DropMessages:
		g.counters.Add(engine.Dropped, 1)
	default:
		c.order(lagging)
	}
}
