package jobload

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// lineWriter is what a run has written. Whoever comes first when a line is due writes it, if nobody
// else is writing: nobody waits for another but for the last line, behind which there is none.
type lineWriter struct {
	due atomic.Int64 // the time of the next line

	mu     sync.Mutex // guards what follows
	out    io.Writer
	latest time.Duration // of the lines
	over   bool
	err    error // the first of writing
}

// writeLinesUntil observes the run and writes a Line at each multiple of reporting, also where no
// job is done, until stop is closed.
func (r *jobRun) writeLinesUntil(stop <-chan struct{}) {
	tick := time.NewTicker(sampleInterval)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		now := r.now()
		r.samplePeaks(now)
		r.writeLineIfDue(now)
	}
}

// writeLineIfDue writes a Line if one is due.
func (r *jobRun) writeLineIfDue(now time.Duration) {
	due := r.lines.due.Load()
	if int64(now) < max(due, int64(reportInterval)) || !r.lines.due.CompareAndSwap(due, int64(now.Truncate(reportInterval)+reportInterval)) {
		return
	}
	line := Line{Progress: r.newResult(now)}
	if now < r.windowStart {
		line = Line{Warming: line.Progress}
	}
	r.lines.tryWriteLine(line, now)
}

// tryWriteLine writes a line, but not behind a later one.
func (s *lineWriter) tryWriteLine(l Line, now time.Duration) {
	if !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	if s.over || s.err != nil || now < s.latest {
		return
	}
	s.latest, s.err = now, l.Write(s.out)
}

// writeLastLine writes the last line, and returns the first error of all.
func (s *lineWriter) writeLastLine(l Line) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over = true; s.err == nil {
		s.err = l.Write(s.out)
	}
	return s.err
}
