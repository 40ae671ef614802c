package jobload

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// progressLineWriter writes progress lines. The first goroutine that finds a line due writes it unless
// another one is writing; only the last line waits for the lock, and nothing follows it.
type progressLineWriter struct {
	due atomic.Int64 // the time of the next line

	mu     sync.Mutex // guards what follows
	out    io.Writer
	latest time.Duration // of the lines
	over   bool
	err    error // the first of writing
}

// sampleAndWriteLinesUntil samples peaks and writes a Line at each multiple of reportInterval, even if no
// job ends, until stop is closed.
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
		r.sampleGoroutineAndWorkerPeaks(now)
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

// writeLineUnlessBusy writes a line unless another goroutine is writing or a later line has been written.
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

// writeFinalLine writes the last line and returns the first error of all.
func (s *progressLineWriter) writeFinalLine(l OutputLine) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over = true; s.err == nil {
		s.err = l.Write(s.out)
	}
	return s.err
}
