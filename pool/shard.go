package pool

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// This file is a shard of the queue.
//
// The queue is split so that those who submit and those who take seldom meet. Who
// submits goes to the shard of its goroutine, and to the others when that is full;
// who takes stays with a shard for a while, and goes on. Each shard has a lock,
// which is held for some 20 ns and never while a job or a Dropper is called. It is
// taken by TryLock, and another shard is tried when that fails (of those with the
// highest priority, by who takes): so hardly anybody sleeps for it, which matters
// to event loops that are locked to their threads.

// levels is the number of priorities.
const levels = int(High-Low) + 1

// normal is the level of Normal.
const normal = int(Normal - Low)

// maxDead is how many tasks are shed at a time, about.
const maxDead = 32

// shard is a part of the queue. All but top and full belongs to who has the lock.
type shard struct {
	top  atomic.Int32 // the highest priority that waits, from 1; 0 is none
	full atomic.Bool
	mu   sync.Mutex
	rule *rules

	closed bool
	n, cap int
	stands standing // of what is taken

	pushed uint64
	levels [levels]level
	tally  tally

	refused atomic.Uint64
	_       [128]byte // the next shard's lock is on another cache line
}

// tally is what became of jobs.
type tally struct {
	finished, panicked, expired, shed, dropped uint64
	wait, service                              Histogram
}

// push appends a task to its flow, if there is room; more is how many there may be
// above what there usually is.
func (s *shard) push(t *Task, at int64, more int) bool {
	if s.n >= s.cap+more {
		return false
	}
	s.put(t, at, int(t.Priority-Low), s.rule.place(t.Key))
	s.pushed++
	return true
}

// press appends a task to its flow; if there is no room, and the task has
// precedence over another one, that gives way.
func (s *shard) press(t *Task, at int64) (ok bool, victim Job) {
	if s.n >= s.cap {
		if victim = s.evict(int(t.Priority-Low), s.rule.place(t.Key)); victim == nil {
			return false, nil
		}
	}
	return s.push(t, at, max(0, s.n-s.cap+1)), victim
}

// put appends a task to its flow.
func (s *shard) put(t *Task, at int64, lv, fl int) {
	l := &s.levels[lv]
	l.flows[fl].push(t, at)
	s.added(l, lv, fl)
}

// added is when a flow has got a task.
func (s *shard) added(l *level, lv, fl int) {
	if bit := uint64(1) << fl; l.active&bit == 0 {
		l.active |= bit
		if top := int32(lv + 1); top > s.top.Load() {
			s.top.Store(top)
		}
	}
	if s.n++; s.n == s.cap {
		s.full.Store(true)
	}
}

// restore puts back what was taken and not begun, in front, whether there is room or
// not.
func (s *shard) restore(tasks []Task, at int64) {
	for i := len(tasks) - 1; i >= 0; i-- {
		t := &tasks[i]
		lv, fl := int(t.Priority-Low), s.rule.place(t.Key)
		l := &s.levels[lv]
		l.flows[fl].unpop(t, at)
		s.added(l, lv, fl)
	}
}

// remove takes the oldest task out of a flow, or the newest.
func (s *shard) remove(lv, fl int, newest bool, to *stamped) {
	l := &s.levels[lv]
	f := &l.flows[fl]
	f.pop(newest, to)
	to.Priority = Low + Priority(lv)
	if s.n == s.cap {
		s.full.Store(false)
	}
	if s.n--; f.n == 0 {
		f.standing.since = 0
		if s.n == 0 {
			s.stands.since = 0
		}
		if l.active &^= 1 << fl; l.active == 0 {
			s.lower()
		}
	}
}

// lower tells those without the lock what is left of the priorities.
func (s *shard) lower() {
	top := int32(levels)
	for top > 0 && s.levels[top-1].active == 0 {
		top--
	}
	if s.top.Load() != top {
		s.top.Store(top)
	}
}

// evict makes room for a task of a level and a flow: the oldest one of a lower
// priority goes, or of a flow of the same that has more. It is nil if there is none.
func (s *shard) evict(lv, fl int) (victim Job) {
	var t stamped
	for low := range lv {
		if l := &s.levels[low]; l.active != 0 {
			at := l.fattest()
			s.remove(low, at, false, &t)
			s.tally.shed++
			return t.Job
		}
	}
	l := &s.levels[lv]
	at := l.fattest()
	if at == fl || l.flows[at].n <= l.flows[fl].n+1 {
		return nil
	}
	s.remove(lv, at, false, &t)
	s.tally.shed++
	return t.Job
}

// take takes the task that is next, if there is one of this priority, from 1, or of a
// higher one. What is too old in its flow is shed on the way and appended to dead. When
// that is as much as may be at a time and the task is too old itself, it is not taken
// yet: the caller comes again.
func (s *shard) take(now int64, least int32, to *stamped, dead *[]Task) bool {
	for {
		top := s.top.Load()
		if top < least {
			return false
		}
		lv := int(top - 1)
		l := &s.levels[lv]
		fl := l.next()
		l.cursor = fl
		f := &l.flows[fl]
		over := s.judge(f, now)
		if over {
			s.shed(lv, fl, now, dead)
		}
		if f.n > 0 {
			if over && len(*dead) >= maxDead && s.n > 1 && now-f.next(s.rule.newest) > s.rule.target {
				return false
			}
			s.remove(lv, fl, over && s.rule.newest, to)
			return true
		}
	}
}

// fill takes more tasks for a batch, of the flow that has been served last, with a task
// of this priority, at most half of those that are left there.
func (s *shard) fill(b *batch, prio Priority, now int64) {
	l := &s.levels[prio-Low]
	f := &l.flows[l.cursor]
	n := min(f.n/2, maxBatch)
	if n == 0 || s.rule.over(now) || l.active&(l.active-1) != 0 {
		return
	}
	if s.n >= s.cap && s.n-n < s.cap {
		s.full.Store(false)
	}
	b.fill(&f.ring, n, prio)
	s.n -= n
}

// judge looks at a flow from which a task is taken, and says whether the pool is
// overloaded. In an overload one task that is too old is enough for it to go on.
func (s *shard) judge(f *flow, now int64) (over bool) {
	age := now - f.oldest()
	over = s.rule.over(now)
	stands := f.standing.look(age, now, s.rule)
	stands = s.stands.look(age, now, s.rule) || stands || over && age > s.rule.target
	s.rule.judge(stands, now)
	return s.rule.over(now)
}

// shed sheds what is too old in a flow, but not the last task of all: that can as
// well run.
func (s *shard) shed(lv, fl int, now int64, dead *[]Task) {
	f := &s.levels[lv].flows[fl]
	for s.rule.shed && len(*dead) < maxDead && s.n > 1 && f.n > 0 && now-f.oldest() > s.rule.target {
		var t stamped
		s.remove(lv, fl, false, &t)
		*dead = append(*dead, t.Task)
		s.tally.shed++
	}
}

// sweep sheds what is too old although nobody takes anything, and gives the time at
// which the oldest task that is left came; 0 is none.
func (s *shard) sweep(now int64, dead *[]Task) (oldest int64) {
	for lv := range s.levels {
		l := &s.levels[lv]
		for rest := l.active; rest != 0; rest &= rest - 1 {
			fl := bits.TrailingZeros64(rest)
			f := &l.flows[fl]
			if f.standing.look(now-f.oldest(), now, s.rule) {
				s.rule.judge(true, now)
			}
			if s.rule.over(now) {
				s.shed(lv, fl, now, dead)
			}
			if f.n == 0 {
				continue
			}
			if at := f.oldest(); oldest == 0 || at < oldest {
				oldest = at
			}
		}
	}
	return oldest
}

// empty takes everything out.
func (s *shard) empty(dropped []Task) []Task {
	for lv := range s.levels {
		for fl := range s.levels[lv].flows {
			for f := &s.levels[lv].flows[fl]; f.n > 0; {
				var t stamped
				s.remove(lv, fl, false, &t)
				dropped = append(dropped, t.Task)
				s.tally.dropped++
			}
		}
	}
	return dropped
}
