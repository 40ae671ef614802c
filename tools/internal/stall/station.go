package stall

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
)

// The bounds of what waits at a Station: lines, and the bytes of them.
const (
	MaxLines = 1 << 19
	MaxBytes = 32 << 20
)

// ErrFull says that as much waits as may.
var ErrFull = fmt.Errorf("stall: %d lines wait, or %d bytes of them; expected fewer than the server can keep", MaxLines, MaxBytes)

// spinTime is for how long before a moment a Station looks at the clock, and lets others
// work in between, instead of sleeping: so late sleeps usually end. Looking for longer
// is less precise where CPUs are short, because a thread that has slept goes first.
const spinTime = 100 * time.Microsecond

// Station serves lines by a Plan in real time, in the order in which they come. What
// the machine takes does not add up: when a service ends follows from when lines have
// come, not from when the last one was seen to end. All methods are safe for concurrent
// use.
type Station struct {
	plan  Plan
	since func() time.Duration // the epoch
	sleep func(time.Duration)

	mu      sync.Mutex
	lastEnd time.Duration // when the last service is to end
	queue   []service     // in order; the server takes from head on
	head    int
	bytes   int  // of what is in the queue
	serving bool // there is a server
}

// service is that of one line.
type service struct {
	end  time.Duration
	line []byte
	done func(line []byte)
}

// NewStation makes a station with an epoch, which must not be in the future.
func NewStation(p Plan, epoch time.Time) *Station {
	return &Station{plan: p, since: func() time.Duration { return time.Since(epoch) }, sleep: sleep}
}

// Enqueue takes a line that comes now, and keeps it until it has been served: then done
// is called with it, for one line at a time. Serve does not wait for that. With ErrFull
// it has not taken the line.
func (s *Station) Enqueue(line []byte, onServed func(line []byte)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue)-s.head == MaxLines || s.bytes+len(line) > MaxBytes {
		return ErrFull
	}
	s.lastEnd = s.plan.ServiceEnd(max(s.since(), s.lastEnd))
	s.queue = append(s.queue, service{s.lastEnd, line, onServed})
	s.bytes += len(line)
	if !s.serving {
		s.serving = true
		go s.serveQueue()
	}
	return nil
}

// serveQueue is the server, which is there while there is something to serve.
func (s *Station) serveQueue() {
	for {
		next, some := s.dequeue()
		if !some {
			return
		}
		s.waitUntil(next.end)
		next.done(next.line)
	}
}

// dequeue takes the first service from the queue. If there is none the server ends.
func (s *Station) dequeue() (next service, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.head == len(s.queue) {
		s.queue, s.head, s.serving = nil, 0, false
		return service{}, false
	}
	if 2*s.head > len(s.queue) { // so that what is served does not pile up
		s.queue, s.head = slices.Delete(s.queue, 0, s.head), 0
	}
	next = s.queue[s.head]
	s.queue[s.head] = service{}
	s.head++
	s.bytes -= len(next.line)
	return next, true
}

// waitUntil waits until a time.
func (s *Station) waitUntil(end time.Duration) {
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
