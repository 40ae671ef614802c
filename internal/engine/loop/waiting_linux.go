package loop

import (
	"context"
	"log/slog"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is what becomes of connections that the pool has no room for, or sheds
// after it has taken them: of the latter it may say so at any time, on any
// goroutine, this loop's own within TrySubmit among them. All of them come back
// the way that leads back from workers.
//
// Input is shed, if the handler wants that: see engine.Conn.MayShed. All else
// waits here, in order, and those first that the pool has had before. They are
// offered again when one of this loop's connections comes back from a worker, and
// by time in any case: where the pool is shared with others, room may come that
// this loop hears nothing of.
//
// When the pool sheds what must wait, to offer it all again at once would be of no
// use: it would be shed again, as often as the pool can, for nothing. So for a
// time no more are offered than two for each that has been run, one by time, and
// one ahead of each input that may be shed.
//
// That is how they get on while other input goes past them: the pool is offered
// none before one of those that wait, and if it has no room for that one, the input
// is shed. So of what a loop has in the pool at least every other one had to wait,
// whatever the rules of the pool are, and they treat both alike.
//
// Nothing waits any more when it may be in vain: when the pool is closed, and when
// the server ends by force, since others may hold the pool for ever. Connections
// that it does not take are closed then, and their handlers hear of that on the
// loop. Those that it has taken, before or for their Closed, have to come back.

// poolRetry is how soon a pool that had no room is asked again.
const poolRetry = time.Millisecond

// throttleTime is for how long after a shed connections are offered sparingly.
const throttleTime = 100 * time.Millisecond

// waiting are the connections that wait for room in the pool.
type waiting struct {
	loop *Loop
	deque[*engine.Conn]
	why   error         // why the pool took no more
	again time.Duration // when it is asked again
	shed  time.Duration // when it last shed one that must wait, 0 for never
	end   error         // why none waits any more: ErrPoolClosed or ErrServerClosed
}

func (w *waiting) next() (at time.Duration, ok bool) { return w.again, w.n > 0 }

// throttled says whether connections are offered sparingly.
func (w *waiting) throttled(now time.Duration) bool { return w.shed > 0 && now-w.shed < throttleTime }

// submit gives a connection to the pool, unless others wait that have to come
// first: all of them, or while they are offered sparingly one, if its input may be
// shed.
func (l *Loop) submit(c *engine.Conn) error {
	w := &l.waiting
	switch {
	case w.n == 0:
	case !c.CanShed():
		return w.why
	case w.throttled(l.host.Clock()):
		if l.offer(1) == 0 {
			return w.why
		}
	default:
		if l.offer(w.n); w.n > 0 {
			return w.why
		}
	}
	return l.trySubmit(c)
}

func (l *Loop) trySubmit(c *engine.Conn) error {
	err := l.group.cfg.Pool.TrySubmit(c)
	if err != nil {
		l.refused(err)
	}
	return err
}

// refused notes that the pool has not taken a connection, or not kept it.
func (l *Loop) refused(why error) {
	l.waiting.why = why
	if l.waiting.end != nil || !l.group.cfg.Pool.IsClosedErr(why) {
		return
	}
	l.waiting.end = engine.ErrPoolClosed
	l.group.poolClosedLogged.Do(func() {
		l.host.Log.LogAttrs(context.Background(), slog.LevelError,
			"the pool of Server.Workers was closed before the server had ended: connections are closed as soon as their handler is to be called")
	})
}

// offer offers the pool the first of those that wait, so many at most, and says how
// many it has taken.
func (l *Loop) offer(most int) (taken int) {
	w := &l.waiting
	most = min(most, w.n)
	for taken < most && l.trySubmit(w.front()) == nil {
		w.popFront()
		taken++
	}
	return taken
}

// run offers those that wait when it is time.
func (w *waiting) run(now time.Duration) {
	l := w.loop
	switch {
	case w.n == 0:
		return
	case w.end != nil:
		l.closeWaiting()
	case now < w.again:
		return
	case w.throttled(now):
		l.offer(1)
	default:
		l.offer(w.n)
	}
	w.again = now + poolRetry
}

// offerAfterReturn lets those wait that the pool has shed, and offers some in the place of
// those that have run.
func (l *Loop) offerAfterReturn(ran int, shed []*engine.Conn, now time.Duration) {
	w := &l.waiting
	if len(shed) > 0 {
		w.shed, w.again = now, now+poolRetry
		w.pushFront(shed)
	}
	switch {
	case w.n == 0 || w.end != nil:
	case w.throttled(now):
		l.offer(2 * ran)
	default:
		l.offer(w.n)
	}
}

// closeUnserved is for a connection whose handler is to be called when none waits any
// more: it is closed. Its handler is told of that on the loop.
func (l *Loop) closeUnserved(c *engine.Conn) (here bool) {
	if c.IsClosedDeferred() {
		c.UndeferClosed()
		l.finish(c)
		return false
	}
	c.CloseWith(l.waiting.end)
	return true
}

// closeWaiting does the same for all that wait.
func (l *Loop) closeWaiting() {
	for w := &l.waiting; w.n > 0; {
		c := w.front()
		w.popFront()
		l.resume(c, w.why)
	}
}
