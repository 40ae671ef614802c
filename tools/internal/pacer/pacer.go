// Package pacer plans when the messages of an open loop are due: at a constant or changing rate, at
// equal or random intervals. A plan stores only the time of its next message. So a backlog of any
// length needs no memory, and unsent messages can be counted without iterating over them.
//
// A Curve is the rate over time. A Plan is a position on a Curve, in 24 bytes, so each of a million
// connections can have one. A Shared is a plan for many connections. Nothing here reads a clock. A
// Plan belongs to one goroutine at a time; a Shared is safe for concurrent use.
package pacer

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Random returns the n-th random number of the sequence of a seed: the output function of
// SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014). It has
// no state, so the result does not depend on the order of calls.
func Random(seed, n uint64) uint64 {
	z := seed*0xd1342543de82ef95 + (n+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// exponentialInterval returns a random time between events of a Poisson process of rate 1.
func exponentialInterval(seed, n uint64) float64 {
	return -math.Log(float64(Random(seed, n)>>11+1) / (1 << 53))
}

// Plan is a sequence of times. The zero Plan is empty.
type Plan struct {
	position float64       // of the next message on the curve
	number   uint64        // of the next message
	next     time.Duration // time of the next message
}

// NewPlan returns a plan that begins at a time: the first message is due phase messages later, 0 to
// 1, or with Poisson at a random time. seed determines all random times.
func (c *Curve) NewPlan(at time.Duration, phase float64, seed uint64) Plan {
	p := Plan{position: c.CountDue(at)}
	if c.Poisson {
		phase = exponentialInterval(seed, 0)
	}
	p.position += phase
	p.next = c.TimeOf(p.position)
	return p
}

// Next returns when the next message is due, 0 for the zero Plan.
func (p *Plan) Next() time.Duration { return p.next }

func (p *Plan) Advance(c *Curve, seed uint64) {
	p.number++
	if c.Poisson {
		p.position += exponentialInterval(seed, p.number)
	} else {
		p.position++
	}
	p.next = c.TimeOf(p.position)
}

// CountOverdue returns how many messages are due by now and before end. For random times it is an
// estimate.
func (p *Plan) CountOverdue(c *Curve, now, end time.Duration) int64 {
	if p.next == 0 || p.next > now || p.next >= end {
		return 0
	}
	return c.countBefore(p.position, min(now+1, end))
}

// Skipped counts messages before the window and within it.
type Skipped struct {
	Before, Within int64
}

// Skip gives up and counts the messages that are due before end; the window begins at windowStart.
// It draws at most *draws random times, which it subtracts from *draws, and estimates the number of
// messages beyond them. So its cost does not depend on that number.
func (p *Plan) Skip(c *Curve, seed uint64, windowStart, end time.Duration, draws *int) (s Skipped) {
	if p.next == 0 {
		return s
	}
	for ; c.Poisson && *draws > 0 && p.next < end; *draws-- {
		if p.next >= windowStart {
			s.Within++
		} else {
			s.Before++
		}
		p.Advance(c, seed)
	}
	all := c.countBefore(p.position, end)
	if all == 0 {
		return s
	}
	before := c.countBefore(p.position, min(windowStart, end))
	s.Before += before
	s.Within += all - before
	p.number += uint64(all)
	if c.Poisson {
		p.position = c.CountDue(end) + exponentialInterval(seed, p.number)
	} else {
		p.position += float64(all)
	}
	p.next = c.TimeOf(p.position)
	return s
}

// Shared is a plan for many connections: one with capacity takes the next due message. Its lock is
// a leaf: no other lock is acquired under it.
type Shared struct {
	next atomic.Int64 // when the next message is due; Never for none

	mu          sync.Mutex
	curve       Curve
	seed        uint64
	plan        Plan
	windowStart time.Duration
	end         time.Duration // nothing is due from then on
	taken       Skipped       // messages that were taken, not given up
}

func NewShared() *Shared {
	s := &Shared{}
	s.next.Store(int64(Never))
	return s
}

// Start starts the plan; the window lasts from windowStart to end.
func (s *Shared) Start(curve Curve, seed uint64, windowStart, end time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.curve, s.seed, s.windowStart, s.end, s.taken = curve, seed, windowStart, end, Skipped{}
	s.plan = s.curve.NewPlan(curve.Begin, 0, seed)
	s.storeNext()
}

// storeNext publishes the next time to callers of NextDue.
func (s *Shared) storeNext() {
	next := s.plan.next
	if next >= s.end {
		next = Never
	}
	s.next.Store(int64(next))
}

// Stop ends the plan: nothing is due from end on.
func (s *Shared) Stop(end time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end = min(s.end, end)
	s.storeNext()
}

// NextDue returns when the next message is due, Never if there is none. It takes no lock.
func (s *Shared) NextDue() time.Duration { return time.Duration(s.next.Load()) }

// Take takes the next message if it is due, and returns when it was due.
func (s *Shared) Take(now time.Duration) (plannedAt time.Duration, ok bool) {
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
	s.plan.Advance(&s.curve, s.seed)
	s.storeNext()
	return plannedAt, true
}

// Skip gives up and counts messages that are due before now: see Plan.Skip.
func (s *Shared) Skip(now time.Duration, draws int) Skipped {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.NextDue() >= now {
		return Skipped{}
	}
	skipped := s.plan.Skip(&s.curve, s.seed, s.windowStart, min(now, s.end), &draws)
	s.storeNext()
	return skipped
}

// CountOverdue returns how many messages are due and not taken. For random times it is an estimate.
func (s *Shared) CountOverdue(now time.Duration) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plan.CountOverdue(&s.curve, now, s.end)
}

// Taken counts the messages that were taken.
func (s *Shared) Taken() Skipped {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}
