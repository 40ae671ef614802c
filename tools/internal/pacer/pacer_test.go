package pacer

import (
	"math"
	"testing"
	"time"
)

const begin = time.Second

var curves = map[string]RateCurve{
	"constant": {Begin: begin, PerSecond: 123},
	"a third":  {Begin: begin, PerSecond: 3},
	"up":       {Begin: begin, PerSecond: 10, To: 1000, Hold: 2 * time.Second, Over: 10 * time.Second},
	"down":     {Begin: begin, PerSecond: 1000, To: 10, Hold: time.Second, Over: 10 * time.Second},
	"level":    {Begin: begin, PerSecond: 50, To: 50, Over: 10 * time.Second},
}

// DueTimeOrNever is the inverse of CountMessagesDue, for every shape of a rate.
func TestCurve(t *testing.T) {
	for name, c := range curves {
		was := time.Duration(0)
		for x := range 3000 {
			at := c.DueTimeOrNever(float64(x))
			if at < was {
				t.Fatalf("%s: message %d is due at %v, the one before at %v", name, x, at, was)
			}
			was = at
			if got := c.CountMessagesDue(at); math.Abs(got-float64(x)) > 1e-3 {
				t.Fatalf("%s: message %d is due at %v, by when %v are", name, x, at, got)
			}
		}
	}
	up := curves["up"]
	if got := up.CountMessagesDue(begin + 12*time.Second); math.Abs(got-(20+505*10)) > 1e-6 {
		t.Errorf("a ramp has %v messages, want 5070", got)
	}
	slow := RateCurve{Begin: begin, PerSecond: 1e-9}
	if at := slow.DueTimeOrNever(1); at != Never {
		t.Errorf("a message in 32 years is due at %v", at)
	}
}

// SkipDueBefore counts as many messages as there are when advancing one by one.
func TestSkip(t *testing.T) {
	const from, end = begin + 700*time.Millisecond, begin + 7*time.Second/3 + 1
	for name, c := range curves {
		for _, phase := range []float64{0, 0.3, 0.999} {
			p, q := c.NewPlanFrom(begin, phase, 0), c.NewPlanFrom(begin, phase, 0)
			var want CountsBeforeAndInWindow
			for ; q.Next() < end; q.AdvanceToNextMessage(&c, 0) {
				if q.Next() < from {
					want.Before++
				} else {
					want.Within++
				}
			}
			waiting, draws := p.CountDueAndUntaken(&c, from, end), 0
			if got := p.SkipDueBefore(&c, 0, from, end, &draws); got != want || p.Next() != q.Next() {
				t.Errorf("%s from %v on: skipped %+v, then %v; want %+v, then %v", name, phase, got, p.Next(), want, q.Next())
			}
			if d := waiting - want.Before; d < 0 || d > 1 { // the one that is due at from
				t.Errorf("%s from %v on: %d wait, want %d", name, phase, waiting, want.Before)
			}
		}
	}
	var none SendPlan
	c, draws := curves["up"], 1
	if got := none.SkipDueBefore(&c, 0, from, end, &draws); got != (CountsBeforeAndInWindow{}) || none.CountDueAndUntaken(&c, end, end) != 0 {
		t.Errorf("the zero Plan has %+v", got)
	}
}

// Few random times are drawn exactly; beyond a limit their number is estimated.
func TestSkipPoisson(t *testing.T) {
	c := RateCurve{Begin: begin, PerSecond: 1000, Poisson: true}
	p, q := c.NewPlanFrom(begin, 0, 5), c.NewPlanFrom(begin, 0, 5)
	var want CountsBeforeAndInWindow
	for ; q.Next() < 4*time.Second; q.AdvanceToNextMessage(&c, 5) {
		if q.Next() < 2*time.Second {
			want.Before++
		} else {
			want.Within++
		}
	}
	draws := 10_000
	if got := p.SkipDueBefore(&c, 5, 2*time.Second, 4*time.Second, &draws); got != want || p.Next() != q.Next() || int64(draws) != 10_000-want.Before-want.Within {
		t.Errorf("skipped %+v, then %v, %d draws left; want %+v, then %v", got, p.Next(), draws, want, q.Next())
	}
	c.PerSecond = 1e8
	p, draws = c.NewPlanFrom(begin, 0, 5), 1000
	got := p.SkipDueBefore(&c, 5, 2*time.Second, 100*time.Second, &draws)
	if draws != 0 || math.Abs(float64(got.Before)-1e8) > 1e6 || math.Abs(float64(got.Within)-98e8) > 1e7 || p.Next() < 100*time.Second {
		t.Errorf("skipped %+v, %d draws left, the next at %v", got, draws, p.Next())
	}
}

// A Shared returns due messages, counts the others, and ends.
func TestShared(t *testing.T) {
	s := NewSharedPlan()
	if _, ok := s.TakeNextIfDue(Never - 1); ok {
		t.Error("something is due without a plan")
	}
	// 10 a second from 1 s on, the window from 2 s to 4 s.
	s.Start(RateCurve{Begin: time.Second, PerSecond: 10}, 0, 2*time.Second, 4*time.Second)
	for k := range 15 {
		at, ok := s.TakeNextIfDue(2400 * time.Millisecond)
		if want := time.Second + time.Duration(k)*100*time.Millisecond; !ok || (at-want).Abs() > time.Microsecond {
			t.Fatalf("message %d: %v, %v, want %v", k, at, ok, want)
		}
	}
	if _, ok := s.TakeNextIfDue(2400 * time.Millisecond); ok {
		t.Error("a message is taken before its time")
	}
	if got := s.CountDueAndUntaken(3 * time.Second); got != 6 {
		t.Errorf("%d wait, want 6", got)
	}
	if got := s.TakenCounts(); got != (CountsBeforeAndInWindow{10, 5}) {
		t.Errorf("%+v taken, want 10 and 5", got)
	}
	s.EndNoLaterThan(3500 * time.Millisecond)
	if got := s.SkipDueBefore(Never, 0); got != (CountsBeforeAndInWindow{0, 10}) || s.NextDue() != Never {
		t.Errorf("left %+v, then %v; want 10 of the window, and never", got, s.NextDue())
	}
}

// A billion messages are skipped by arithmetic: one by one would exceed the time of a test.
func TestSharedSkipMany(t *testing.T) {
	const rate = 100_000_000
	s := NewSharedPlan()
	s.Start(RateCurve{Begin: time.Second, PerSecond: rate}, 0, 3*time.Second, 301*time.Second)
	if got := s.SkipDueBefore(201*time.Second, 0); got != (CountsBeforeAndInWindow{2 * rate, 198 * rate}) {
		t.Errorf("left %+v, want %d before the window and %d in it", got, 2*rate, 198*rate)
	}
	if at, ok := s.TakeNextIfDue(201 * time.Second); !ok || at != 201*time.Second {
		t.Errorf("the next is due at %v, want 3m21s", at)
	}
	if got := s.SkipDueBefore(Never, 0); got != (CountsBeforeAndInWindow{0, 100*rate - 1}) || s.NextDue() != Never {
		t.Errorf("left %+v, then %v", got, s.NextDue())
	}
}
