// Package pacer plans the times of messages in an open loop: at a constant or changing rate, at equal or random
// intervals. A plan stores only the time of its next message. Therefore a backlog of any length needs no memory, and
// unsent messages can be counted without iterating over them.
//
// A RateCurve is a rate as a function of time. A SendPlan is a position on a RateCurve. A SendPlan has only 24 bytes,
// so each of a million connections can have one; it belongs to one goroutine at a time. A SharedPlan is a plan for many
// connections, and is safe for concurrent use. The package does not read a clock.
package pacer

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// RandomAt returns the n-th random number of a seed's SplitMix64 sequence (Steele, Lea, Flood: "Fast Splittable
// Pseudorandom Number Generators", 2014).
func RandomAt(seed, n uint64) uint64 {
	z := seed*0xd1342543de82ef95 + (n+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// exponentialInterval returns the n-th random interval of a Poisson process with the rate 1.
func exponentialInterval(seed, n uint64) float64 {
	return -math.Log(float64(RandomAt(seed, n)>>11+1) / (1 << 53))
}

// SendPlan is a sequence of times at which messages are due. The zero SendPlan is empty.
type SendPlan struct {
	position float64       // position of the next message on the curve
	number   uint64        // number of the next message
	next     time.Duration // time of the next message
}

// NewPlanFrom returns a plan that begins at the given time. Usually, the first message is due after a part of the
// interval between two messages. This part is the fraction phase, from 0 to 1. If c.Poisson is set, phase is ignored
// and all intervals are random. Plans with the same poissonSeed then have the same intervals.
func (c *RateCurve) NewPlanFrom(at time.Duration, phase float64, poissonSeed uint64) SendPlan {
	p := SendPlan{position: c.CountMessagesDue(at)}
	if c.Poisson {
		phase = exponentialInterval(poissonSeed, 0)
	}
	p.position += phase
	p.next = c.DueTimeOrNever(p.position)
	return p
}

// Next returns the time at which the next message is due. It returns 0 for the zero SendPlan.
func (p *SendPlan) Next() time.Duration { return p.next }

func (p *SendPlan) AdvanceToNextMessage(c *RateCurve, poissonSeed uint64) {
	p.number++
	if c.Poisson {
		p.position += exponentialInterval(poissonSeed, p.number)
	} else {
		p.position++
	}
	p.next = c.DueTimeOrNever(p.position)
}

// CountDueAndUntaken returns the number of messages that are due at the time now but have not been taken. Messages with
// planned times from end on do not count. If c.Poisson is set, the number is an estimate.
func (p *SendPlan) CountDueAndUntaken(c *RateCurve, now, end time.Duration) int64 {
	if p.next == 0 || p.next > now || p.next >= end {
		return 0
	}
	return c.countDueBefore(p.position, min(now+1, end))
}

// CountsBeforeAndInWindow contains two numbers of messages. Before counts the messages due before the measured window,
// and Within counts the messages due in the window.
type CountsBeforeAndInWindow struct {
	Before, Within int64
}

// SkipDueBefore drops the messages whose planned times are before end. It returns how many of these times are before
// the measured window, and how many are in the window.
//
// If c.Poisson is set, exact counting requires one random time for each message. SkipDueBefore draws at most
// *drawsLeftUntilEstimate random times, and subtracts the number of drawn times from *drawsLeftUntilEstimate. It
// estimates the number of the remaining messages.
func (p *SendPlan) SkipDueBefore(c *RateCurve, seed uint64, windowStart, end time.Duration, drawsLeftUntilEstimate *int) (s CountsBeforeAndInWindow) {
	if p.next == 0 {
		return s
	}
	for ; c.Poisson && *drawsLeftUntilEstimate > 0 && p.next < end; *drawsLeftUntilEstimate-- {
		if p.next >= windowStart {
			s.Within++
		} else {
			s.Before++
		}
		p.AdvanceToNextMessage(c, seed)
	}
	all := c.countDueBefore(p.position, end)
	if all == 0 {
		return s
	}
	before := c.countDueBefore(p.position, min(windowStart, end))
	s.Before += before
	s.Within += all - before
	p.number += uint64(all)
	if c.Poisson {
		p.position = c.CountMessagesDue(end) + exponentialInterval(seed, p.number)
	} else {
		p.position += float64(all)
	}
	p.next = c.DueTimeOrNever(p.position)
	return s
}

// SharedPlan is a plan that many connections share. Any of the connections can take the next due message. A SharedPlan
// is safe for concurrent use.
type SharedPlan struct {
	next atomic.Int64 // time of the next message, or Never

	mu          sync.Mutex
	curve       RateCurve
	seed        uint64
	plan        SendPlan
	windowStart time.Duration
	end         time.Duration           // no message is due from this time on
	taken       CountsBeforeAndInWindow // messages that were taken since Start
}

func NewSharedPlan() *SharedPlan {
	s := &SharedPlan{}
	s.next.Store(int64(Never))
	return s
}

// Start starts the plan at the time curve.Begin. An earlier plan is discarded. The measured window lasts from
// windowStart to end. The last message is due before end.
func (s *SharedPlan) Start(curve RateCurve, seed uint64, windowStart, end time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.curve, s.seed, s.windowStart, s.end, s.taken = curve, seed, windowStart, end, CountsBeforeAndInWindow{}
	s.plan = s.curve.NewPlanFrom(curve.Begin, 0, seed)
	s.storeNextDueLocked()
}

func (s *SharedPlan) storeNextDueLocked() {
	next := s.plan.next
	if next >= s.end {
		next = Never
	}
	s.next.Store(int64(next))
}

// EndNoLaterThan ends the plan at the given time, unless the plan ends earlier. No message is due at or after the end
// of the plan.
func (s *SharedPlan) EndNoLaterThan(end time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end = min(s.end, end)
	s.storeNextDueLocked()
}

// NextDue returns the time at which the next message is due, or Never after the last message. It acquires no lock.
func (s *SharedPlan) NextDue() time.Duration { return time.Duration(s.next.Load()) }

// TakeNextIfDue takes the next message if it is due, and returns the time at which it was due. ok is false if no
// message is due.
func (s *SharedPlan) TakeNextIfDue(now time.Duration) (plannedAt time.Duration, ok bool) {
	if s.NextDue() > now {
		return 0, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if plannedAt = s.NextDue(); plannedAt > now {
		return 0, false
	}
	if plannedAt >= s.windowStart {
		s.taken.Within++
	} else {
		s.taken.Before++
	}
	s.plan.AdvanceToNextMessage(&s.curve, s.seed)
	s.storeNextDueLocked()
	return plannedAt, true
}

// SkipDueBefore drops the messages whose planned times are before now, and returns their numbers. If the curve is a
// Poisson process, SkipDueBefore draws at most drawsUntilEstimate random times, and then estimates the number of the
// remaining messages.
func (s *SharedPlan) SkipDueBefore(now time.Duration, drawsUntilEstimate int) CountsBeforeAndInWindow {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.NextDue() >= now {
		return CountsBeforeAndInWindow{}
	}
	skipped := s.plan.SkipDueBefore(&s.curve, s.seed, s.windowStart, min(now, s.end), &drawsUntilEstimate)
	s.storeNextDueLocked()
	return skipped
}

// CountDueAndUntaken returns the number of messages that are due but that no connection has taken. If the curve is a
// Poisson process, the number is an estimate.
func (s *SharedPlan) CountDueAndUntaken(now time.Duration) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plan.CountDueAndUntaken(&s.curve, now, s.end)
}

// TakenCounts returns the numbers of messages taken since the last call of Start.
func (s *SharedPlan) TakenCounts() CountsBeforeAndInWindow {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}
