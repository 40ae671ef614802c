package pool

import (
	"sync/atomic"
)

// standingQueue detects whether a queue stands: its oldest job was overdue at every observation for a whole interval.
// According to CoDel, such a queue only adds delay.
type standingQueue struct{ since int64 } // 0 if the oldest job is not overdue

func (s *standingQueue) trackStandingQueue(oldestJobAge, now int64, o *overload) (standing bool) {
	switch {
	case oldestJobAge <= o.target.Load():
		s.since = 0
	case s.since == 0:
		s.since = now
	}
	return s.since != 0 && now-s.since >= o.interval
}

// overload is the pool's overload state. An overload begins when the queue of a shard stands (see standingQueue). It
// ends after no queue has stood for an interval.
type overload struct {
	target                atomic.Int64 // set by the controller
	interval              int64
	shedding, newestFirst bool

	until atomic.Int64 // when the overload ends; 0 if there was none
}

func (o *overload) isActive(now int64) bool { return now < o.until.Load() }

func (o *overload) startOrExtendOverloadIfStanding(standing bool, now int64) {
	if !standing || !o.shedding && !o.newestFirst {
		return
	}
	if now+o.interval-o.until.Load() >= o.interval/4 { // not for each job
		o.until.Store(now + o.interval)
	}
}

// queueAdmission limits the queue in an overload to the jobs that the busy workers can start within the target. Further
// jobs would be shed later. Rejecting them is cheaper and informs submitters immediately.
type queueAdmission struct {
	limit int     // jobs; the pool's capacity, or less
	slack float64 // share of recent periods without rejections and waiting jobs
}

const (
	// maxSlack is the share of periods without rejections and waiting jobs above which an overload ends.
	maxSlack = 0.5
	// admitted is the share of the jobs that can start within the target. If all of them were admitted, half would be
	// overdue by the time they start.
	admitted = 0.75
)

// updateQueueLimitAndOverload sets the next queue limit, and extends or ends the overload. anyRefused is set if jobs
// were rejected in the last period. capacity is the maximum limit. meanService is the mean duration of jobs, or 0.
func (a *queueAdmission) updateQueueLimitAndOverload(o *overload, now int64, s totals, anyRefused bool, capacity int, meanService int64) {
	bounded := a.limit < capacity
	a.limit = capacity
	if !o.shedding || meanService <= 0 || !bounded && !o.isActive(now) {
		return
	}
	slack := 0.
	if !anyRefused && s.queued == 0 {
		slack = 1
	}
	if a.slack += (slack - a.slack) / 8; a.slack > maxSlack {
		a.endOverloadAndRestoreLimit(o, capacity, now)
		return
	}
	if anyRefused { // rejected jobs would have kept the queue standing
		o.until.Store(now + o.interval)
	} else if !o.isActive(now) {
		a.slack = 0
		return
	}
	jobs := float64(s.busy) * float64(o.target.Load()) / float64(meanService)
	a.limit = int(min(max(jobs*admitted, 1), float64(capacity)))
}

func (a *queueAdmission) endOverloadAndRestoreLimit(o *overload, capacity int, now int64) (wasLimited bool) {
	bounded := a.limit < capacity
	a.limit, a.slack = capacity, 0
	if o.isActive(now) {
		o.until.Store(now)
	}
	return bounded
}
