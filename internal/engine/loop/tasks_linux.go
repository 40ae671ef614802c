package loop

import (
	"math"
	"time"
)

// loopTask is regular work of a loop, other than handling events of its connections. Only the loop accesses its state.
type loopTask interface {
	// runIfDue does the work that is due. It is called once in each turn.
	runIfDue(now time.Duration)
	// nextDue returns when work will be due, which may be in the past. If that depends on events, ok is false.
	nextDue() (at time.Duration, ok bool)
}

func (l *Loop) orderedTasks() []loopTask {
	return []loopTask{&l.mailDelay, &l.dials, &l.broadcasts, &l.scheduler, &l.drainer, &l.exporter, &l.accept, &l.trimmer, &l.timers, &l.sweeper, &l.heartbeats, &l.budget, &l.submitQueue, &l.placement}
}

// runTasks runs each task once. Actions that a task causes are performed before the next task.
func (l *Loop) runTasks() {
	for _, d := range l.tasks {
		d.runIfDue(l.host.Clock())
		if len(l.pendingActions) > 0 {
			l.performPendingActions()
		}
	}
}

const never = time.Duration(math.MaxInt64)

// nextTaskDue returns the earliest time at which a task is due, or never if no task has such a time.
func (l *Loop) nextTaskDue() time.Duration {
	first := never
	for _, d := range l.tasks {
		if at, ok := d.nextDue(); ok {
			first = min(first, at)
		}
	}
	return first
}
