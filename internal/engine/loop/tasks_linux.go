package loop

import (
	"math"
	"time"
)

// loopTask is a regular task of a loop, in addition to handling events. Only the loop accesses a task's state.
type loopTask interface {
	// runIfDue does the work that is due. It is called once in each turn.
	runIfDue(now time.Duration)
	// nextDue returns when work will be due, which may be in the past. If that depends on events, ok is false.
	nextDue() (at time.Duration, ok bool)
}

func (l *Loop) orderedTasks() []loopTask {
	return []loopTask{&l.mailDelay, &l.dials, &l.broadcasts, &l.scheduler, &l.drainer, &l.exporter, &l.accept, &l.trimmer, &l.timers, &l.sweeper, &l.heartbeats, &l.budget, &l.submitQueue, &l.placement}
}

func (l *Loop) runDueTasks() {
	for _, d := range l.tasks {
		d.runIfDue(l.host.Clock())
		if len(l.pendingActions) > 0 {
			l.performPendingActions()
		}
	}
}

const never = time.Duration(math.MaxInt64)

func (l *Loop) nextTaskDueTimeOrNever() time.Duration {
	first := never
	for _, d := range l.tasks {
		if at, ok := d.nextDue(); ok {
			first = min(first, at)
		}
	}
	return first
}
