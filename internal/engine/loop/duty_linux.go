package loop

import (
	"math"
	"time"
)

// duty is what a loop does besides handling the events of its connections. Each duty has a state of
// its own, which belongs to the loop's thread.
type duty interface {
	// run does what is due. It is called once in each turn, and does nothing while nothing is due.
	run(now time.Duration)
	// next returns when something will be due, a time in the past if something is already. It
	// reports false if that depends on an event.
	next() (at time.Duration, ok bool)
}

// duties returns the duties of a loop in the order in which a turn runs them.
func (l *Loop) duties() []duty {
	return []duty{&l.dialling, &l.casts, &l.pacer, &l.drain, &l.departure, &l.accept, &l.trim, &l.sweep, &l.budget, &l.waiting, &l.auto}
}

// runDuties runs each duty once. What one has done to connections is settled before the next one.
func (l *Loop) runDuties() {
	for _, d := range l.inOrder {
		d.run(l.host.Clock())
		if len(l.touched) > 0 {
			l.settleTouched()
		}
	}
}

// never is a time that does not come.
const never = time.Duration(math.MaxInt64)

// nextDuty returns when the first duty has something to do, never if all of them depend on events.
func (l *Loop) nextDuty() time.Duration {
	first := never
	for _, d := range l.inOrder {
		if at, ok := d.next(); ok {
			first = min(first, at)
		}
	}
	return first
}
