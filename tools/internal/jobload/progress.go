package jobload

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// progressLineWriter writes progress lines and a final line. It drops a progress line while another goroutine writes.
type progressLineWriter struct {
	due atomic.Int64 // time of the next line

	mu     sync.Mutex // guards the following fields
	out    io.Writer
	latest time.Duration // time of the latest line
	over   bool
	err    error // first write error
}

// sampleAndWriteLinesUntil records peaks of resource usage and writes progress lines until the channel stop is closed.
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
		r.samplePeaksAndUsageAtWindowStart(now)
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
	r.lines.writeLineUnlessBusyOrOutdated(line, now)
}

// writeLineUnlessBusyOrOutdated writes a progress line. It does nothing if another goroutine is writing, if a later
// line or the final line has already been written, or if an earlier write has failed.
func (s *progressLineWriter) writeLineUnlessBusyOrOutdated(l OutputLine, now time.Duration) {
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
