package jobload

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// lineWriter writes progress lines. The first goroutine that finds a line due writes it unless
// another one is writing; only the last line waits for the lock, and nothing follows it.
type lineWriter struct {
	due atomic.Int64 // the time of the next line

	mu     sync.Mutex // guards what follows
	out    io.Writer
	latest time.Duration // of the lines
	over   bool
	err    error // the first of writing
}

// writeLinesUntil samples peaks and writes a Line at each multiple of reportInterval, even if no
// job ends, until stop is closed.
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

// tryWriteLine writes a line unless another goroutine is writing or a later line has been written.
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

// writeLastLine writes the last line and returns the first error of all.
func (s *lineWriter) writeLastLine(l Line) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over = true; s.err == nil {
		s.err = l.Write(s.out)
	}
	return s.err
}
