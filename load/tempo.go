package load

import (
	"math"
	"time"
)

// tempo is a Rate over time: how many messages are due by when. Times are
// since the beginning of the traffic.
type tempo struct {
	rate Rate
	// ramp is when the rate begins to change from PerSecond to To, over how
	// long it takes.
	ramp, over time.Duration
}

// at is the time by which x messages are due, the inverse of the integral of the
// rate.
func (l *tempo) at(x float64) time.Duration {
	r := l.rate.PerSecond
	var seconds float64
	switch {
	case l.rate.To > 0:
		seconds = l.atRamp(x)
	case l.rate.Swing > 0:
		seconds = l.atSine(x)
	default:
		seconds = x / r
	}
	if seconds >= maxTime.Seconds()*2 {
		return never
	}
	return time.Duration(seconds * float64(time.Second))
}

// count estimates how many messages are due, by now and before end, where the one at x
// is. It is exact where they are one apart.
func (l *tempo) count(x float64, now, end time.Duration) int64 {
	if now < end {
		return int64(max(l.upTo(now)-x, 0)) + 1
	}
	const rounding = 1e-6
	return max(int64(math.Ceil(l.upTo(end)-x-rounding)), 1)
}

// never is a time that does not come.
const never = time.Duration(math.MaxInt64)

// atRamp solves a·t + (b-a)·t²/2T = x in the time T of the change, and goes on
// with the rate b behind it.
func (l *tempo) atRamp(x float64) float64 {
	a, b := l.rate.PerSecond, l.rate.To
	before, over := l.ramp.Seconds(), l.over.Seconds()
	if x <= a*before {
		return x / a
	}
	x -= a * before
	if within := (a + b) / 2 * over; x > within {
		return before + over + (x-within)/b
	}
	k := (b - a) / (2 * over)
	return before + 2*x/(a+math.Sqrt(max(a*a+4*k*x, 0)))
}

// atSine solves r·(t + s·P/2π·(1 - cos(2πt/P))) = x by Newton's method, kept
// within the bounds that halving gives.
func (l *tempo) atSine(x float64) float64 {
	r, s, turn := l.rate.PerSecond, l.rate.Swing, 2*math.Pi/l.rate.Period.Seconds()
	high := x / r
	low := max(high-2*s/turn, 0)
	t := (low + high) / 2
	for range 60 {
		sin, cos := math.Sincos(turn * t)
		over := t + s/turn*(1-cos) - x/r
		switch {
		case over > 0:
			high = t
		default:
			low = t
		}
		step := over / (1 + s*sin)
		if math.Abs(step) < 1e-10 || high-low < 1e-10 {
			break
		}
		if t -= step; !(t > low && t < high) {
			t = (low + high) / 2
		}
	}
	return t
}

// upTo is how many messages are due by a time.
func (l *tempo) upTo(at time.Duration) float64 {
	t, r := at.Seconds(), l.rate.PerSecond
	switch {
	case l.rate.To > 0:
		a, b := r, l.rate.To
		before, over := l.ramp.Seconds(), l.over.Seconds()
		in := min(max(t-before, 0), over)
		return a*min(t, before) + a*in + (b-a)*in*in/(2*over) + b*max(t-before-over, 0)
	case l.rate.Swing > 0:
		turn := 2 * math.Pi / l.rate.Period.Seconds()
		return r * (t + l.rate.Swing/turn*(1-math.Cos(turn*t)))
	}
	return r * t
}

// ahead is how many messages are due before a time, where the next one is at x and the
// others follow one apart.
func (l *tempo) ahead(x float64, end time.Duration) int64 {
	if l.at(x) >= end {
		return 0
	}
	n := max(math.Floor(l.upTo(min(end, 2*maxTime))-x), 1)
	// Times are in whole nanoseconds, and numbers have 53 bits: it can be one more
	// or less.
	for range 2 {
		switch {
		case n > 1 && l.at(x+n-1) >= end:
			n--
		case l.at(x+n) < end:
			n++
		}
	}
	return int64(n)
}

// pass gives up the messages of a plan that are due before end, and counts them. Times
// are since the beginning of the traffic.
type pass struct {
	line      *tempo
	seed      uint64 // of Poisson times
	from, end time.Duration

	x float64 // where the next message is on the line
	k uint64  // its number

	window, early int64 // messages that were due from from on, and before it
}

// walk gives up one message after the other, of Poisson times, at most so many, and
// says how many it were.
func (p *pass) walk(most int) (n int) {
	for ; n < most; n++ {
		at := p.line.at(p.x)
		if at >= p.end {
			break
		}
		if at >= p.from {
			p.window++
		} else {
			p.early++
		}
		p.k++
		p.x += exponential(p.seed, p.k)
	}
	return n
}

// jump gives up all messages, in a time that does not depend on how many they are.
// How many are due at Poisson times is an estimate: as many as are to be expected.
func (p *pass) jump() {
	all := p.line.ahead(p.x, p.end)
	early := p.line.ahead(p.x, min(p.from, p.end))
	p.window += all - early
	p.early += early
	p.k += uint64(all)
	if all > 0 && p.line.rate.Poisson {
		p.x = p.line.upTo(p.end) + exponential(p.seed, p.k)
	} else {
		p.x += float64(all)
	}
}
