package loop

import (
	"context"
	"log/slog"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// Connections that the pool has rejected, or has shed after accepting them. A pool may shed at any time, on
// any goroutine, including this loop's within TrySubmit. Shed connections return like those that have run.
//
// Input is shed if the handler permits that; see engine.Conn.MayShed. Everything else waits here in order,
// first what the pool had accepted before. It is submitted again when one of this loop's connections returns
// from a worker, and periodically, because a pool that is shared with others may get capacity unnoticed.
//
// If the pool sheds a connection that must wait, submitting all of them at once would only repeat that. So
// for throttleTime, only a few are submitted: two for each one that has run, one periodically, and one before
// each input that may be shed.
//
// That last rule guarantees progress: sheddable input is submitted only after a waiting connection, and is
// shed if the pool has no capacity for that. So at least every other connection of a loop in the pool had to
// wait, whatever the rules of the pool.
//
// Nothing waits once it might wait forever: when the pool is closed, and when the server is killed, because
// other users may occupy the pool forever. Connections that the pool does not accept are closed then, and
// their handlers are told on the loop. Those that it has accepted, before or for their Closed, must return.

// poolRetryInterval is how long a loop waits before it submits to a full pool again.
const poolRetryInterval = time.Millisecond

// throttleTime is how long submissions are throttled after a connection was shed.
const throttleTime = 100 * time.Millisecond

// poolSubmitter contains the connections that wait for capacity in the pool.
type poolSubmitter struct {
	loop *Loop
	deque[*engine.Conn]
	lastRejection error // why the pool accepted no more
	retryAt       time.Duration
	lastShedAt    time.Duration // when it last shed a connection that must wait; 0 for never
	closeReason   error         // why nothing may wait: ErrPoolClosed or ErrServerClosed
}

func (w *poolSubmitter) nextDue() (at time.Duration, ok bool) { return w.retryAt, w.n > 0 }

func (w *poolSubmitter) isThrottled(now time.Duration) bool {
	return w.lastShedAt > 0 && now-w.lastShedAt < throttleTime
}

// submitAfterWaiting submits a connection to the pool, unless others must come first: all that wait or, for
// sheddable input while throttled, one of them.
func (l *Loop) submitAfterWaiting(c *engine.Conn) error {
	w := &l.submitQueue
	switch {
	case w.n == 0:
	case !c.CanShed():
		return w.lastRejection
	case w.isThrottled(l.host.Clock()):
		if l.submitWaiting(1) == 0 {
			return w.lastRejection
		}
	default:
		if l.submitWaiting(w.n); w.n > 0 {
			return w.lastRejection
		}
	}
	return l.submitOrRecordRejection(c)
}

func (l *Loop) submitOrRecordRejection(c *engine.Conn) error {
	err := l.engine.cfg.Pool.TrySubmit(c)
	if err != nil {
		l.recordPoolRejection(err)
	}
	return err
}

func (l *Loop) recordPoolRejection(reason error) {
	l.submitQueue.lastRejection = reason
	if l.submitQueue.closeReason != nil || !l.engine.cfg.Pool.IsClosedErr(reason) {
		return
	}
	l.submitQueue.closeReason = engine.ErrPoolClosed
	l.engine.poolClosedLogged.Do(func() {
		l.host.Log.LogAttrs(context.Background(), slog.LevelError,
			"the pool of Server.Workers was closed before the server: connections are closed when their handler would be called")
	})
}

// submitWaiting submits up to maxConns of the waiting connections and returns how many the pool has accepted.
func (l *Loop) submitWaiting(maxConns int) (submitted int) {
	w := &l.submitQueue
	maxConns = min(maxConns, w.n)
	for submitted < maxConns && l.submitOrRecordRejection(w.front()) == nil {
		w.popFront()
		submitted++
	}
	return submitted
}

// runIfDue submits waiting connections periodically.
func (w *poolSubmitter) runIfDue(now time.Duration) {
	l := w.loop
	switch {
	case w.n == 0:
		return
	case w.closeReason != nil:
		l.closeWaitingConns()
	case now < w.retryAt:
		return
	case w.isThrottled(now):
		l.submitWaiting(1)
	default:
		l.submitWaiting(w.n)
	}
	w.retryAt = now + poolRetryInterval
}

// requeueShedAndSubmitWaiting puts shed connections at the head of the queue, and submits others in place of those
// that have run.
func (l *Loop) requeueShedAndSubmitWaiting(numRan int, shed []*engine.Conn, now time.Duration) {
	w := &l.submitQueue
	if len(shed) > 0 {
		w.lastShedAt, w.retryAt = now, now+poolRetryInterval
		w.pushAllFront(shed)
	}
	switch {
	case w.n == 0 || w.closeReason != nil:
	case w.isThrottled(now):
		l.submitWaiting(2 * numRan)
	default:
		l.submitWaiting(w.n)
	}
}

// closeWithoutWorker closes a connection whose handler would have to be called when nothing may wait. Its
// Closed is called on the loop. It reports whether the connection still exists.
func (l *Loop) closeWithoutWorker(c *engine.Conn) (stillOwned bool) {
	if c.IsClosedDeferred() {
		c.UndeferClosed()
		l.callClosedAndFree(c)
		return false
	}
	c.CloseWith(l.submitQueue.closeReason)
	return true
}

func (l *Loop) closeWaitingConns() {
	for w := &l.submitQueue; w.n > 0; {
		c := w.front()
		w.popFront()
		l.resumeReturnedConn(c, w.lastRejection)
	}
}
