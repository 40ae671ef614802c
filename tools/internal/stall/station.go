package stall

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Limits of the queue of a LineStation.
const (
	MaxLines = 1 << 19
	MaxBytes = 32 << 20
)

// ErrFull is returned if the queue of a LineStation is full.
var ErrFull = fmt.Errorf("stall: too many waiting lines; expected at most %d with at most %d bytes in all", MaxLines, MaxBytes)

// spinTime is the last part of a wait, in which a LineStation polls the clock to be precise. During the rest of the
// wait, it sleeps.
const spinTime = 100 * time.Microsecond

// LineStation serves lines in the order of arrival, in real time, according to a StallPlan. It is safe for concurrent
// use.
type LineStation struct {
	plan  StallPlan
	since func() time.Duration // returns the time since the start
	sleep func(time.Duration)

	mu      sync.Mutex
	lastEnd time.Duration // end of the last queued service
	queue   []service     // services in order, from head on
	head    int
	bytes   int  // bytes of the queued lines
	serving bool // serveUntilQueueEmpty is running
}

type service struct {
	end  time.Duration
	line []byte
	done func(line []byte)
}

// NewStation returns a station for the plan p. The plan starts at epoch, which must not be in the future.
func NewStation(p StallPlan, epoch time.Time) *LineStation {
	return &LineStation{plan: p, since: func() time.Duration { return time.Since(epoch) }, sleep: nanosleep}
}

// Enqueue queues a line that arrives now. The station keeps the line until it has been served, and then calls onServed.
// Calls of onServed do not overlap. If the queue is full, Enqueue returns ErrFull.
func (s *LineStation) Enqueue(retainedLine []byte, onServed func(retainedLine []byte)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue)-s.head == MaxLines || s.bytes+len(retainedLine) > MaxBytes {
		return ErrFull
	}
	s.lastEnd = s.plan.EndOfServiceFrom(max(s.since(), s.lastEnd))
	s.queue = append(s.queue, service{s.lastEnd, retainedLine, onServed})
	s.bytes += len(retainedLine)
	if !s.serving {
		s.serving = true
		go s.serveUntilQueueEmpty()
	}
	return nil
}

func (s *LineStation) serveUntilQueueEmpty() {
	for {
		next, some := s.dequeueOrEndServing()
		if !some {
			return
		}
		s.sleepAndSpinUntil(next.end)
		next.done(next.line)
	}
}

func (s *LineStation) dequeueOrEndServing() (next service, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.head == len(s.queue) {
		s.queue, s.head, s.serving = nil, 0, false
		return service{}, false
	}
	if 2*s.head > len(s.queue) { // compact the queue
		s.queue, s.head = slices.Delete(s.queue, 0, s.head), 0
	}
	next = s.queue[s.head]
	s.queue[s.head] = service{}
	s.head++
	s.bytes -= len(next.line)
	return next, true
}

func (s *LineStation) sleepAndSpinUntil(end time.Duration) {
	for {
		switch left := end - s.since(); {
		case left <= 0:
			return
		case left > spinTime:
			s.sleep(left - spinTime)
		default:
			runtime.Gosched()
		}
	}
}
