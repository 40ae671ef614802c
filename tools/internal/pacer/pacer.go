// Package pacer plans when messages of an open loop are due: at a constant rate or one
// that changes, at equal or random distances. A plan is known by the time
// of its next message, so that a backlog of any length takes no memory, and what was
// never sent can be counted without going through it.
//
// A Curve is the rate over time; a Plan is a place on a Curve, 24 bytes, so that each of a
// million connections can have one; a Shared is one that many take from. Nothing here
// reads a clock. A Plan belongs to one goroutine at a time; a Shared is safe for
// concurrent use.
package pacer

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Random is the n-th random number of a sequence, which is known by a seed: the
// output function of SplitMix64 (Steele, Lea, Flood: "Fast Splittable
// Pseudorandom Number Generators", 2014). It keeps no state, so the same plan comes
// out whoever asks first.
func Random(seed, n uint64) uint64 {
	z := seed*0xd1342543de82ef95 + (n+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// exponentialInterval is Random as a time between events of a Poisson process of rate 1.
func exponentialInterval(seed, n uint64) float64 {
	return -math.Log(float64(Random(seed, n)>>11+1) / (1 << 53))
}

// Plan is a sequence of times. The zero Plan has none.
type Plan struct {
	position float64       // where the next message is on the curve
	number   uint64        // its number
	next     time.Duration // its time
}

// NewPlan begins a plan at a time: with a message phase messages later, 0 to 1, or with
// Poisson at a random time. The seed is that of all its random times.
func (c *Curve) NewPlan(at time.Duration, phase float64, seed uint64) Plan {
	p := Plan{position: c.CountDue(at)}
	if c.Poisson {
		phase = exponentialInterval(seed, 0)
	}
	p.position += phase
	p.next = c.TimeOf(p.position)
	return p
}

// Next is when the next message is due, 0 for the zero Plan.
func (p *Plan) Next() time.Duration { return p.next }

// Advance goes on to the message after that.
func (p *Plan) Advance(c *Curve, seed uint64) {
	p.number++
	if c.Poisson {
		p.position += exponentialInterval(seed, p.number)
	} else {
		p.position++
	}
	p.next = c.TimeOf(p.position)
}

// CountOverdue is how many messages are due by now and before end, an estimate where times are
// random.
func (p *Plan) CountOverdue(c *Curve, now, end time.Duration) int64 {
	if p.next == 0 || p.next > now || p.next >= end {
		return 0
	}
	return c.countBefore(p.position, min(now+1, end))
}

// Skipped are messages that were given up.
type Skipped struct {
	Before, Within int64 // due before the window, and in it
}

// Skip gives up the messages that are due before end, and counts them; the window begins
// at from. Of random times it draws as many as *draws, which it reduces, and estimates how
// many are behind them; the time that it takes does not depend on how many those are.
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

// Shared is a plan from which whoever has room for a message takes the next one that has
// come. Its lock is taken last.
type Shared struct {
	next atomic.Int64 // when the next message is due; Never for none

	mu          sync.Mutex
	curve       Curve
	seed        uint64
	plan        Plan
	windowStart time.Duration // of the window
	end         time.Duration // nothing is due from then on
	taken       Skipped       // that were taken, and not given up
}

// NewShared makes one without messages.
func NewShared() *Shared {
	s := &Shared{}
	s.next.Store(int64(Never))
	return s
}

// Start begins a plan whose window is from then until end.
func (s *Shared) Start(curve Curve, seed uint64, windowStart, end time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.curve, s.seed, s.windowStart, s.end, s.taken = curve, seed, windowStart, end, Skipped{}
	s.plan = s.curve.NewPlan(curve.Begin, 0, seed)
	s.storeNext()
}

// storeNext tells the others of the next time.
func (s *Shared) storeNext() {
	next := s.plan.next
	if next >= s.end {
		next = Never
	}
	s.next.Store(int64(next))
}

// Stop ends the plan: nothing is due any more from end on.
func (s *Shared) Stop(end time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end = min(s.end, end)
	s.storeNext()
}

// NextDue is when the next message is due, Never if there is none. It takes no lock.
func (s *Shared) NextDue() time.Duration { return time.Duration(s.next.Load()) }

// Take takes the next message, if it is due, and says when it was to be sent.
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

// Skip gives up the messages that are due before a time, as that of a Plan.
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

// CountOverdue is how many messages are due and not taken, an estimate where times are random.
func (s *Shared) CountOverdue(now time.Duration) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plan.CountOverdue(&s.curve, now, s.end)
}

// Taken is how many messages were taken.
func (s *Shared) Taken() Skipped {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}
