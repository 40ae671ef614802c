package pool

import "sync/atomic"

// overload is the overload state of a pool. A job that has waited longer than target is called overdue.
type overload struct {
	target                atomic.Int64 // set by the controller
	interval              int64
	shedding, newestFirst bool

	until atomic.Int64 // when the overload ends; 0 if there was none
}

func (o *overload) isActive(now int64) bool { return now < o.until.Load() }

func (o *overload) startOrExtend(now int64) {
	if (o.shedding || o.newestFirst) && now+o.interval-o.until.Load() >= o.interval/4 { // at most once per interval/4
		o.until.Store(now + o.interval)
	}
}

const (
	// maxSlack is the share of recent periods without waiting or rejected jobs above which an overload ends.
	maxSlack = 0.5
	// admitted is the limit of the queue in an overload, as a share of the jobs that workers can start within target.
	admitted = 0.75
)

// updateQueueLimitAndOverload sets the limit of the queue, which is lower during an overload. It also extends or ends
// an overload. anyRefused reports whether jobs were rejected, shed or made to wait since the previous call.
func (c *controller) updateQueueLimitAndOverload(now int64, s totals, anyRefused bool) {
	o, capacity := &c.p.overload, c.p.cfg.Queue
	limited := c.queueLimit < capacity
	c.queueLimit = capacity
	if !o.shedding || c.meanService <= 0 || !limited && !o.isActive(now) {
		return
	}
	slack := 0.
	if !anyRefused && s.queued == 0 {
		slack = 1
	}
	if c.slack += (slack - c.slack) / 8; c.slack > maxSlack {
		c.endOverload(now)
		return
	}
	if anyRefused { // the rejected jobs would have been overdue
		o.until.Store(now + o.interval)
	} else if !o.isActive(now) {
		c.slack = 0
		return
	}
	jobs := float64(s.busy) * float64(o.target.Load()) / float64(c.meanService)
	// If all of these jobs were admitted, half would be overdue by the time they start.
	c.queueLimit = int(min(max(jobs*admitted, 1), float64(capacity)))
}

func (c *controller) endOverload(now int64) {
	c.queueLimit, c.slack = c.p.cfg.Queue, 0
	if o := &c.p.overload; o.isActive(now) {
		o.until.Store(now)
	}
}
