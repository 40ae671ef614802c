package tcp

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// skipWithoutLoops skips a test on systems without event loops.
func skipWithoutLoops(t *testing.T) {
	if len(Models()) == 1 {
		t.Skip("no model here has loops")
	}
}

// askUntil calls ask without a pause until done accepts the server's counters.
func (s *started) askUntil(t *testing.T, what string, ask func(), done func(Stats) bool) {
	t.Helper()
	for end := time.Now().Add(testkit.Timeout); !done(s.Stats()); {
		ask()
		if time.Now().After(end) {
			t.Fatalf("%s: %+v", what, s.Stats())
		}
	}
}

// Auto lets workers call handlers until they have proved to be quick, moves handlers that block
// their loop to workers, and moves them back when they are quick again.
func TestAuto(t *testing.T) {
	skipWithoutLoops(t)
	var slow atomic.Bool
	s := startServer(t, &Server{Loops: 1, Handler: Lines(MessageFunc(func(c *Conn, line []byte) {
		if slow.Load() {
			<-time.After(3 * time.Millisecond)
		}
		echoLine(c, line)
	}))})
	c := dial(t, s.addr)
	talk := func() { c.Exchange("hello", "hello") }
	if st := s.Stats(); st.OnWorkers != 1 || st.Moved != 0 {
		t.Errorf("at the start %d loops leave their handlers to workers, want 1: %+v", st.OnWorkers, st)
	}
	s.askUntil(t, "a handler that is quick is not called on its loop", talk, func(st Stats) bool { return st.OnWorkers == 0 })
	slow.Store(true)
	s.askUntil(t, "a handler that holds its loop is not moved", talk, func(st Stats) bool { return st.OnWorkers == 1 && st.Moved == 1 })
	slow.Store(false)
	s.askUntil(t, "a handler that is quick does not come back", talk, func(st Stats) bool { return st.OnWorkers == 0 })
	talk()
}

// If a handler that was quick blocks its loop forever, the other loops move theirs to workers, so
// that further such calls do not block them.
func TestAutoHeldLoop(t *testing.T) {
	skipWithoutLoops(t)
	release := make(chan struct{})
	h := MessageFunc(func(c *Conn, line []byte) {
		switch string(line) {
		case "wait":
			<-release
		case "loop":
			line = fmt.Append(nil, c.Loop())
		}
		echoLine(c, line)
	})
	s := startServer(t, &Server{Loops: 2, Limits: Limits{HandlerTime: 100 * time.Millisecond}, Handler: Lines(h)})
	t.Cleanup(func() { close(release) }) // before the server is ended
	held, other := dialTwoLoops(t, s)
	talk := func() {
		held.Exchange("hello", "hello")
		other.Exchange("hello", "hello")
	}
	s.askUntil(t, "handlers that are quick are not called on their loops", talk, func(st Stats) bool { return st.OnWorkers == 0 })
	held.Send("wait\n")
	s.askUntil(t, "the other loop does not move its handlers", func() { other.Exchange("hello", "hello") }, func(st Stats) bool { return st.OnWorkers == 1 })
	for end := time.Now().Add(600 * time.Millisecond); time.Now().Before(end); { // in which they would come back
		other.Exchange("hello", "hello")
	}
	if st := s.Stats(); st.OnWorkers != 1 {
		t.Errorf("%d loops leave their handlers to workers while the other is held, want 1", st.OnWorkers)
	}
}

// dialTwoLoops dials until it has a connection on each of two loops.
func dialTwoLoops(t *testing.T, s *started) (a, b *testkit.Conn) {
	t.Helper()
	of := make(map[string]*testkit.Conn)
	for range 100 {
		c := dial(t, s.addr)
		c.Send("loop\n")
		if of[c.ReadLine()] = c; len(of) == 2 {
			return of["0"], of["1"]
		}
	}
	t.Fatal("100 connections are all on one loop")
	return nil, nil
}
