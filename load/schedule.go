package load

import (
	"sync"
	"sync/atomic"
	"time"
)

// schedule is the plan of an open loop for all connections together: one sequence
// of times, from which whoever has room for a message takes the next one that has
// come. What has not been taken yet is known by the time of the next, so a
// backlog of any length takes no memory.
//
// It has a lock of its own, which is taken last. The next time can be looked at
// without it.
type schedule struct {
	next atomic.Int64 // when the next message is due, since the run's start; never for none

	mu    sync.Mutex
	line  tempo
	begin time.Duration // of the traffic
	end   time.Duration // nothing is due from then on
	from  time.Duration // of the window
	seed  uint64
	drawn uint64  // messages that next was drawn for
	x     float64 // where the next one is on the line
	taken int64   // messages of the window
	early int64   // and before it
}

func newSchedule() *schedule {
	s := &schedule{}
	s.next.Store(int64(never))
	return s
}

// start begins a plan: the traffic at begin, the window from then until end.
func (s *schedule) start(line tempo, seed uint64, begin, from, end time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line, s.seed = line, seed
	s.begin, s.from, s.end = begin, from, end
	s.drawn, s.x, s.taken, s.early = 0, 0, 0, 0
	if line.rate.Poisson {
		s.x = exponential(seed, 0)
	}
	s.draw()
}

// stop ends the plan: nothing is due any more from end on.
func (s *schedule) stop(end time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end = min(s.end, end); time.Duration(s.next.Load()) >= s.end {
		s.next.Store(int64(never))
	}
}

// due is when the next message is due.
func (s *schedule) due() time.Duration { return time.Duration(s.next.Load()) }

// take takes the next message, if it is due, and says when it was to be sent.
func (s *schedule) take(now time.Duration) (at time.Duration, ok bool) {
	if s.due() > now {
		return 0, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if at = s.due(); at > now {
		return 0, false
	}
	s.count(at)
	s.advance()
	return at, true
}

func (s *schedule) count(at time.Duration) {
	if at >= s.from {
		s.taken++
	} else {
		s.early++
	}
}

// advance goes on to the next message.
func (s *schedule) advance() {
	s.drawn++
	if s.line.rate.Poisson {
		s.x += exponential(s.seed, s.drawn)
	} else {
		s.x = float64(s.drawn)
	}
	s.draw()
}

// draw works out the time of the message at x.
func (s *schedule) draw() {
	at := s.line.at(s.x)
	if at != never {
		at += s.begin
	}
	if at >= s.end {
		at = never
	}
	s.next.Store(int64(at))
}

// The bounds of giving up Poisson times: how many are drawn in all, and how many while
// a lock is held, which takes less than a millisecond.
const (
	maxDraws  = 100_000
	drawBatch = 512
)

// left gives up the messages that have not been taken and were due before now,
// and counts them: of the window, and before it. Of Poisson times the first maxDraws
// are drawn; of those behind them it counts how many are to be expected, which is an
// estimate. It takes as long for any number of others.
func (s *schedule) left(now time.Duration) (window, early int64) {
	for draws := 0; ; draws += drawBatch {
		w, e, more := s.give(now, draws < maxDraws)
		window, early = window+w, early+e
		if !more {
			return window, early
		}
	}
}

// give gives up messages that were due before now: all of them, or where times are
// Poisson and to be drawn a batch. It counts them and says whether there are more.
func (s *schedule) give(now time.Duration, draw bool) (window, early int64, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.due() >= now {
		return 0, 0, false
	}
	p := pass{line: &s.line, seed: s.seed, from: s.from - s.begin, end: min(now, s.end) - s.begin, x: s.x, k: s.drawn}
	if draw = draw && s.line.rate.Poisson; draw {
		p.walk(drawBatch)
	} else {
		p.jump()
	}
	s.x, s.drawn = p.x, p.k
	s.draw()
	return p.window, p.early, draw && s.due() < now
}

// waiting estimates how many messages are due and not taken.
func (s *schedule) waiting(now time.Duration) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.due() > now {
		return 0
	}
	return s.line.count(s.x, now-s.begin, s.end-s.begin)
}

// allTaken is how many messages were taken, of the window and before it.
func (s *schedule) allTaken() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken + s.early
}

// windowTaken is how many messages of the window were taken.
func (s *schedule) windowTaken() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}
