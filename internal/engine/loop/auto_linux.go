package loop

import (
	"context"
	"log/slog"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// Where handlers run at first: on workers, until they have proved to be quick. A first
// call that waits for ever would freeze its loop otherwise, and nothing can take a loop
// over that is within a call: its ring belongs to its thread, and so do a shard's
// descriptors. A handler that has been quick and then waits for ever does so. When the
// others are told (see watch_linux.go) they move theirs, and none comes back while one is
// held.
//
// When handlers move. A turn is slow when it has taken long and the reads in it
// have taken long each: a turn of many quick calls is none. That alone does not
// say why: the thread may only have waited for a CPU. So after such a turn the
// next ones are seen through, and count only if the thread has worked that long,
// or has slept. Some of them in a row move the handlers of a loop onto workers;
// one with very slow reads is enough by itself, because with all that waits for
// it the next may take a second. There their own time is counted, and when it is
// short again they come back. Each time they move again they stay away for twice
// as long.
const (
	slowTurn    = 2 * time.Millisecond
	slowRead    = 100 * time.Microsecond
	slowTurns   = 3
	stuckTurn   = 50 * time.Millisecond
	stuckRead   = time.Millisecond
	quickRun    = 20 * time.Microsecond
	quickRuns   = 1000
	firstReview = 100 * time.Millisecond
	firstAway   = time.Second
	longestAway = time.Minute
)

// auto decides, for one loop, where its handlers run. It is the loop's, but for
// the times, which workers add to.
type auto struct {
	loop         *Loop
	alert        bool          // the last turn looked slow
	slow         int           // slow turns in a row
	reviewAt     time.Duration // when to see whether handlers can come back
	minAway      time.Duration // how long they stay away at least
	quickReviews int           // looks in a row at which they were quick
	quickCalls   int64         // calls that these have counted
	times        engine.HandlerTimes
}

// poll polls, and moves handlers that hold the loop onto workers.
func (a *auto) poll() bool {
	l := a.loop
	var work sock.ThreadWork
	if a.alert {
		work = sock.Worked()
	}
	start, before := engine.MonotonicNow(), l.counters.Get(engine.Reads)
	some := l.events()
	reads := time.Duration(l.counters.Get(engine.Reads) - before)
	if reads == 0 {
		return some // no handler was called for input
	}
	took := engine.MonotonicNow() - start
	switch {
	case took < slowTurn || took < slowRead*reads:
		a.alert, a.slow = false, 0
	case !a.alert:
		a.alert = true
	default:
		a.slowTurn(took, reads, sock.Worked().Since(work))
	}
	return some
}

// slowTurn judges a turn that looked slow, as did the one before it.
func (a *auto) slowTurn(took, reads time.Duration, did sock.ThreadWork) {
	if did.Sleeps == 0 && (did.CPU < slowTurn || did.CPU < slowRead*reads) {
		a.slow = 0
		return // it has waited for a CPU, most of the time
	}
	a.slow++
	if a.slow >= slowTurns || took >= stuckTurn && took >= stuckRead*reads {
		a.moveAway(took / reads)
	}
}

// moveAway has workers call the handlers from now on.
func (a *auto) moveAway(each time.Duration) {
	l := a.loop
	a.alert, a.slow = false, 0
	a.minAway = min(max(2*a.minAway, firstAway), longestAway)
	a.reviewAt, a.quickReviews, a.quickCalls = engine.MonotonicNow()+a.minAway/2, 0, 0
	a.times.TakeTotals()
	a.forWorkers()
	l.counters.Add(engine.MovedToWorkers, 1)
	l.host.Log.LogAttrs(context.Background(), slog.LevelInfo, "handlers hold their loop: workers call them from now on",
		slog.Int("loop", l.host.Index), slog.Duration("each", each))
}

// next reports false: both are looked at in turns that events bring.
func (a *auto) next() (at time.Duration, ok bool) { return 0, false }

// run has handlers come back from workers, or the loop use its own buffers.
func (a *auto) run(now time.Duration) {
	switch {
	case !a.loop.group.cfg.AutoWorkers:
	case a.loop.host.OnWorkers:
		a.reviewReturn(now)
	default:
		a.ownBuffers()
	}
}

// reviewReturn has the loop call the handlers, if their calls have been short: quickRuns of
// them, and at one more look, which finds that none of those begun before is still out.
func (a *auto) reviewReturn(now time.Duration) {
	l := a.loop
	if now < a.reviewAt {
		return
	}
	a.reviewAt = now + max(a.minAway/2, firstReview)
	runs, took, stuck := a.times.TakeTotals()
	switch {
	case stuck, l.group.stuck.Load() > 0, runs > 0 && took/time.Duration(runs) > quickRun:
		a.quickReviews, a.quickCalls = 0, 0
		return
	case runs == 0:
		return
	}
	enough := a.quickCalls >= quickRuns
	a.quickCalls += runs
	if a.quickReviews++; a.quickReviews < 2 || !enough {
		return // calls that are out may be slow ones: the next look tells
	}
	l.host.OnWorkers = false
	l.counters.Set(engine.LoopsOnWorkers, 0)
	l.host.Log.LogAttrs(context.Background(), slog.LevelInfo, "handlers are quick: their loop calls them from now on",
		slog.Int("loop", l.host.Index))
}

// ownBuffers uses again what is the loop's own when no worker can be using the
// host.
func (a *auto) ownBuffers() {
	l := a.loop
	if l.busy == 0 && l.host.Buffers != engine.BufferPool(&l.buffers) {
		l.host.Buffers, l.host.SendDirect = &l.buffers, direct
	}
}

// forWorkers has workers call the handlers, which must not touch what is the
// loop's own.
func (a *auto) forWorkers() {
	l := a.loop
	l.host.OnWorkers = true
	l.counters.Set(engine.LoopsOnWorkers, 1)
	if l.host.Buffers != engine.BufferPool(&l.shared) { // otherwise workers may be looking
		l.host.Buffers, l.host.SendDirect = &l.shared, nil
	}
}
