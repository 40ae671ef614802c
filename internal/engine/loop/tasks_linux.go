package loop

import (
	"math"
	"time"
)

// loopTask is what a loop does besides handling the events of its connections. Each duty has a state of
// its own, which belongs to the loop's thread.
type loopTask interface {
	// runIfDue does what is due. It is called once in each turn, and does nothing while nothing is due.
	runIfDue(now time.Duration)
	// nextDue returns when something will be due, a time in the past if something is already. It
	// reports false if that depends on an event.
	nextDue() (at time.Duration, ok bool)
}

// orderedTasks returns the duties of a loop in the order in which a turn runs them.
func (l *Loop) orderedTasks() []loopTask {
	return []loopTask{&l.dials, &l.broadcasts, &l.pacer, &l.drainer, &l.exporter, &l.accept, &l.trimmer, &l.sweeper, &l.budget, &l.submitQueue, &l.placement}
}

// runTasks runs each duty once. What one has done to connections is settled before the next one.
func (l *Loop) runTasks() {
	for _, d := range l.tasks {
		d.runIfDue(l.host.Clock())
		if len(l.pendingActions) > 0 {
			l.performPendingActions()
		}
	}
}

// never is a time that does not come.
const never = time.Duration(math.MaxInt64)

// nextTaskDue returns when the first duty has something to do, never if all of them depend on events.
func (l *Loop) nextTaskDue() time.Duration {
	first := never
	for _, d := range l.tasks {
		if at, ok := d.nextDue(); ok {
			first = min(first, at)
		}
	}
	return first
}
