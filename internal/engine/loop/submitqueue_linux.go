package loop

import (
	"context"
	"log/slog"
	"time"

	"github.com/myriad-go/myriad/internal/deque"
	"github.com/myriad-go/myriad/internal/engine"
)

// This file queues connections that the pool has rejected, or has accepted and then shed. A pool may shed at any time,
// on any goroutine, including this loop's goroutine within TrySubmit. Shed connections return in the same way as
// connections that have run.
//
// Input is shed if the handler permits it; see engine.Conn.CanShed. All other connections wait here in order; those
// that the pool had accepted come first. They are submitted again when one of this loop's connections returns from a
// worker. They are also submitted periodically, because a pool that other loops share may gain capacity unnoticed.
//
// If the pool sheds a connection that must wait, it would shed most of the queue again. For throttleTime, only some
// waiting connections are therefore submitted: two for each connection that has run, one periodically, and one before
// each sheddable input.
//
// The last of these rules guarantees progress. Sheddable input is submitted only after a waiting connection, and is
// shed if the pool has no capacity for that connection. So at least half of a loop's connections in the pool are from
// the queue, whatever the rules of the pool.
//
// When the pool is closed or the server is killed, connections no longer wait, because the wait might never end.
// Connections that the pool does not accept are then closed, and their handlers are called on the loop. Connections
// that the pool has accepted must return.

// poolRetryInterval is the time between two attempts to submit a connection to a full worker pool.
const poolRetryInterval = time.Millisecond

// throttleTime is how long submissions to the pool are throttled. Throttling begins when the pool sheds a connection
// whose input must not be shed, so that the connection waits in the loop's queue again.
const throttleTime = 100 * time.Millisecond

// poolSubmitter is the queue of connections that wait until the worker pool has capacity.
type poolSubmitter struct {
	loop *Loop
	deque.Deque[*engine.Conn]
	lastRejection error // the error of the pool's last rejection
	retryAt       time.Duration
	lastShedAt    time.Duration // when the pool last shed a connection that must wait; 0 means never
	closeReason   error         // why connections no longer wait: ErrPoolClosed or ErrServerClosed; nil if they wait
}

func (w *poolSubmitter) nextDue() (at time.Duration, ok bool) { return w.retryAt, w.Len() > 0 }

func (w *poolSubmitter) isThrottled(now time.Duration) bool {
	return w.lastShedAt > 0 && now-w.lastShedAt < throttleTime
}

// submitBehindWaitingConns submits c to the worker pool, unless other connections wait for the pool and c must wait
// behind them. If c can be shed, c does not wait. In this case, submitBehindWaitingConns first submits the waiting
// connections, or only one of them while submissions are throttled. It returns an error if c must wait, or if the pool
// has rejected c or a connection before c.
func (l *Loop) submitBehindWaitingConns(c *engine.Conn) error {
	w := &l.submitQueue
	switch {
	case w.Len() == 0:
	case !c.CanShed():
		return w.lastRejection
	case w.isThrottled(l.host.Clock()):
		if l.submitWaiting(1) == 0 {
			return w.lastRejection
		}
	default:
		if l.submitWaiting(w.Len()); w.Len() > 0 {
			return w.lastRejection
		}
	}
	return l.submitOrSetLastRejection(c)
}

func (l *Loop) submitOrSetLastRejection(c *engine.Conn) error {
	err := l.engine.cfg.Pool.TrySubmit(c)
	if err != nil {
		l.saveRejectionCheckPoolClosed(err)
	}
	return err
}

func (l *Loop) saveRejectionCheckPoolClosed(rejection error) {
	l.submitQueue.lastRejection = rejection
	if l.submitQueue.closeReason != nil || !l.engine.cfg.Pool.IsClosedErr(rejection) {
		return
	}
	l.submitQueue.closeReason = engine.ErrPoolClosed
	l.engine.poolClosedLogged.Do(func() {
		l.host.Log.LogAttrs(context.Background(), slog.LevelError,
			"the pool of Server.Workers was closed before the server: each connection is closed at its next handler call")
	})
}

func (l *Loop) submitWaiting(maxConns int) (submitted int) {
	w := &l.submitQueue
	maxConns = min(maxConns, w.Len())
	for submitted < maxConns && l.submitOrSetLastRejection(w.Front()) == nil {
		w.PopFront()
		submitted++
	}
	return submitted
}

func (w *poolSubmitter) runIfDue(now time.Duration) {
	l := w.loop
	switch {
	case w.Len() == 0:
		return
	case w.closeReason != nil:
		l.closeWaitingConns()
	case now < w.retryAt:
		return
	case w.isThrottled(now):
		l.submitWaiting(1)
	default:
		l.submitWaiting(w.Len())
	}
	w.retryAt = now + poolRetryInterval
}

// requeueShedAndSubmitWaiting puts the connections in shed, which the pool has shed, at the head of the queue. It then
// submits connections from the queue. numRan is the number of connections that workers have run and returned. While
// submissions are throttled, requeueShedAndSubmitWaiting submits at most 2*numRan connections.
func (l *Loop) requeueShedAndSubmitWaiting(numRan int, shed []*engine.Conn, now time.Duration) {
	w := &l.submitQueue
	if len(shed) > 0 {
		w.lastShedAt, w.retryAt = now, now+poolRetryInterval
		w.PushAllFront(shed)
	}
	switch {
	case w.Len() == 0 || w.closeReason != nil:
	case w.isThrottled(now):
		l.submitWaiting(2 * numRan)
	default:
		l.submitWaiting(w.Len())
	}
}

// closeWithoutWorker closes a connection that would need a worker but can no longer wait for one. stillOwned is false
// if closeWithoutWorker has freed the slot of c.
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
	for w := &l.submitQueue; w.Len() > 0; {
		c := w.PopFront()
		l.resumeReturnedConn(c, w.lastRejection)
	}
}
