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

// spin is for how long before a moment a Station looks at the clock, and lets others
// work in between, instead of sleeping: so late sleeps usually end. Looking for longer
// is less precise where CPUs are short, because a thread that has slept goes first.
const spin = 100 * time.Microsecond

// Station serves lines by a Plan in real time, in the order in which they come. What
// the machine takes does not add up: when a service ends follows from when lines have
// come, not from when the last one was seen to end. All methods are safe for concurrent
// use.
type Station struct {
	plan  Plan
	since func() time.Duration // the epoch
	sleep func(time.Duration)

	mu    sync.Mutex
	free  time.Duration // when the last service is to end
	queue []service     // in order; the server takes from head on
	head  int
	bytes int  // of what is in the queue
	busy  bool // there is a server
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

// Serve takes a line that comes now, and keeps it until it has been served: then done
// is called with it, for one line at a time. Serve does not wait for that. With ErrFull
// it has not taken the line.
func (s *Station) Serve(line []byte, done func(line []byte)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue)-s.head == MaxLines || s.bytes+len(line) > MaxBytes {
		return ErrFull
	}
	s.free = s.plan.End(max(s.since(), s.free))
	s.queue = append(s.queue, service{s.free, line, done})
	s.bytes += len(line)
	if !s.busy {
		s.busy = true
		go s.serve()
	}
	return nil
}

// serve is the server, which is there while there is something to serve.
func (s *Station) serve() {
	for {
		next, some := s.next()
		if !some {
			return
		}
		s.wait(next.end)
		next.done(next.line)
	}
}

// next takes the first service from the queue. If there is none the server ends.
func (s *Station) next() (next service, some bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.head == len(s.queue) {
		s.queue, s.head, s.busy = nil, 0, false
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

// wait waits until a time.
func (s *Station) wait(until time.Duration) {
	for {
		switch left := until - s.since(); {
		case left <= 0:
			return
		case left > spin:
			s.sleep(left - spin)
		default:
			runtime.Gosched()
		}
	}
}
