package offer

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// said is what a run has written. Whoever comes first when a line is due writes it, if nobody
// else is writing: nobody waits for another but for the last line, behind which there is none.
type said struct {
	due atomic.Int64 // the time of the next line

	mu     sync.Mutex // guards what follows
	out    io.Writer
	latest time.Duration // of the lines
	over   bool
	err    error // the first of writing
}

// keepSaying observes the run and writes a Line at each multiple of reporting, also where no
// job is done, until stop is closed.
func (r *run) keepSaying(stop <-chan struct{}) {
	tick := time.NewTicker(sampling)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		now := r.now()
		r.observe(now)
		r.say(now)
	}
}

// say writes a Line if one is due.
func (r *run) say(now time.Duration) {
	due := r.said.due.Load()
	if int64(now) < max(due, int64(reporting)) || !r.said.due.CompareAndSwap(due, int64(now.Truncate(reporting)+reporting)) {
		return
	}
	line := Line{Progress: r.result(now)}
	if now < r.opens {
		line = Line{Warming: line.Progress}
	}
	r.said.line(line, now)
}

// line writes a line, but not behind a later one.
func (s *said) line(l Line, now time.Duration) {
	if !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	if s.over || s.err != nil || now < s.latest {
		return
	}
	s.latest, s.err = now, l.Write(s.out)
}

// last writes the last line, and returns the first error of all.
func (s *said) last(l Line) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over = true; s.err == nil {
		s.err = l.Write(s.out)
	}
	return s.err
}
