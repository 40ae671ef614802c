package jobload

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// progressLineWriter writes progress lines and then the final line. If another goroutine is writing, a progress line is
// dropped, but the final line waits.
type progressLineWriter struct {
	due atomic.Int64 // time of the next line

	mu     sync.Mutex // guards the following fields
	out    io.Writer
	latest time.Duration // time of the latest line
	over   bool
	err    error // first write error
}

// sampleAndWriteLinesUntil samples peaks and writes due progress lines until stop is closed. Other goroutines write a
// due line only when a job ends.
func (r *jobRun) sampleAndWriteLinesUntil(stop <-chan struct{}) {
	tick := time.NewTicker(sampleInterval)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		now := r.now()
		r.samplePeaksIfDue(now)
		r.writeProgressLineIfDue(now)
	}
}

func (r *jobRun) writeProgressLineIfDue(now time.Duration) {
	due := r.lines.due.Load()
	if int64(now) < max(due, int64(reportInterval)) || !r.lines.due.CompareAndSwap(due, int64(now.Truncate(reportInterval)+reportInterval)) {
		return
	}
	line := OutputLine{Progress: r.buildResultSoFar(now)}
	if now < r.windowStart {
		line = OutputLine{Warming: line.Progress}
	}
	r.lines.writeLineUnlessBusy(line, now)
}

// writeLineUnlessBusy drops the line if another goroutine is writing or a later line has been written.
func (s *progressLineWriter) writeLineUnlessBusy(l OutputLine, now time.Duration) {
	if !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	if s.over || s.err != nil || now < s.latest {
		return
	}
	s.latest, s.err = now, l.Write(s.out)
}

func (s *progressLineWriter) writeFinalLine(l OutputLine) (firstErr error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over = true; s.err == nil {
		s.err = l.Write(s.out)
	}
	return s.err
}
