package tcp

import (
	"sync/atomic"
	"testing"
	"time"
)

// Auto lets workers call handlers until they have proved to be quick, moves handlers that block
// their loop to workers, and moves them back when they are quick again.
func TestAuto(t *testing.T) {
	t.Parallel() // mostly waits
	if len(Models()) == 1 {
		t.Skip("no model here has loops")
	}
	var slow atomic.Bool
	s := startServer(t, &Server{Loops: 1, Handler: Lines(MessageFunc(func(c *Conn, line []byte) {
		if slow.Load() {
			<-time.After(3 * time.Millisecond)
		}
		echoLine(c, line)
	}))})
	c := dial(t, s.addr)
	if st := s.Stats(); st.OnWorkers != 1 || st.Moved != 0 {
		t.Errorf("at the start %d loops leave their handlers to workers, want 1: %+v", st.OnWorkers, st)
	}
	talkUntil := func(what string, done func(Stats) bool) {
		t.Helper()
		waitFor(t, what, func() bool {
			for range 100 {
				c.ExchangeLine("hello", "hello")
			}
			return done(s.Stats())
		})
	}
	talkUntil("a handler that is quick is not called on its loop", func(st Stats) bool { return st.OnWorkers == 0 })
	slow.Store(true)
	talkUntil("a handler that holds its loop is not moved", func(st Stats) bool { return st.OnWorkers == 1 && st.Moved == 1 })
	slow.Store(false)
	talkUntil("a handler that is quick does not come back", func(st Stats) bool { return st.OnWorkers == 0 })
}
