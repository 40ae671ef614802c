package pool

import (
	"sync/atomic"
)

// standingQueue tells a standing queue, one whose oldest job was too old each time that it
// was observed, for an interval: CoDel's sign of a queue that only adds delay.
type standingQueue struct{ since int64 } // 0 is not

func (s *standingQueue) observeAge(age, now int64, o *overload) bool {
	switch {
	case age <= o.target.Load():
		s.since = 0
	case s.since == 0:
		s.since = now
	}
	return s.since != 0 && now-s.since >= o.interval
}

// overload is the pool's state of overload. It begins when the queue of a shard stands
// and ends when none has been too old for an interval.
type overload struct {
	target                atomic.Int64 // the controller sets it
	interval              int64
	shedding, newestFirst bool

	until atomic.Int64 // when it ends; 0 if there was none
}

func (o *overload) isActive(now int64) bool { return now < o.until.Load() }

// extendIfStanding has an overload begin or go on if the queue stands.
func (o *overload) extendIfStanding(standing bool, now int64) {
	if !standing || !o.shedding && !o.newestFirst {
		return
	}
	if now+o.interval-o.until.Load() >= o.interval/4 { // not with each job
		o.until.Store(now + o.interval)
	}
}

// admission bounds what may wait in an overload: as many jobs as the busy workers take
// within the target. A job that would be shed is then refused instead, which costs less
// and tells its submitter at once, and goodput does not depend on the size of the queue.
// The controller owns it.
type admission struct {
	limit int     // for how many jobs; the pool's capacity, or fewer
	slack float64 // of recent periods, the share without refusals in which no job waited
}

const (
	// maxSlack is the share of slack periods that ends an overload: jobs came in bursts.
	maxSlack = 0.5
	// admitted is the share of the jobs that the workers take within the target: with
	// all of them half would be older than that when their turn comes.
	admitted = 0.75
)

// updateLimit sets the room for the next period, given whether jobs were refused in the last one, for
// how many there is room at most, and how long jobs take, 0 if that is not known.
func (a *admission) updateLimit(o *overload, now int64, s totals, refused bool, capacity int, service int64) {
	bounded := a.limit < capacity
	a.limit = capacity
	if !o.shedding || service <= 0 || !bounded && !o.isActive(now) {
		return
	}
	slack := 0.
	if !refused && s.queued == 0 {
		slack = 1
	}
	if a.slack += (slack - a.slack) / 8; a.slack > maxSlack {
		a.endOverload(o, capacity, now)
		return
	}
	if refused { // what has been refused would have kept the queue standing
		o.until.Store(now + o.interval)
	} else if !o.isActive(now) {
		a.slack = 0
		return
	}
	jobs := float64(s.busy) * float64(o.target.Load()) / float64(service)
	a.limit = int(min(max(jobs*admitted, 1), float64(capacity)))
}

// endOverload ends an overload. It reports whether room was bounded.
func (a *admission) endOverload(o *overload, capacity int, now int64) bool {
	bounded := a.limit < capacity
	a.limit, a.slack = capacity, 0
	if o.isActive(now) {
		o.until.Store(now)
	}
	return bounded
}
