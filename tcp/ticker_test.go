package tcp

import (
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestTicker checks that ticks are never concurrent, go on after a panic and a Goexit, reach clients, and end before
// ListenAndServe returns.
func TestTicker(t *testing.T) {
	t.Parallel()
	forEachModel(t, func(t *testing.T, model string, loops int) {
		var ticks, running atomic.Int64
		var clients Group
		var log logRecorder
		s := startServer(t, &Server{
			Model: model, Loops: loops, Log: log.newLogger(), TickInterval: time.Millisecond,
			Handler: hooks{received: func(c *Conn, in []byte) int {
				clients.Add(c.Ref())
				return len(in)
			}},
			OnTick: func() {
				if running.Add(1) != 1 {
					t.Error("two calls at a time")
				}
				defer running.Add(-1)
				switch ticks.Add(1) {
				case 1:
					panic("as asked")
				case 2:
					runtime.Goexit()
				}
				clients.Broadcast([]byte("tick\n"))
			},
		})
		c := dial(t, s.addr)
		c.Send("x")
		c.Expect("tick\ntick\n")
		s.stop()
		expectNoError(t, s.waitResult(t))
		if running.Load() != 0 {
			t.Error("ListenAndServe has returned during a call")
		}
		n := ticks.Load()
		runtime.Gosched()
		if ticks.Load() != n {
			t.Error("called after ListenAndServe has returned")
		}
		if text := log.String(); strings.Count(text, "Server.OnTick panicked") != 2 || !strings.Contains(text, "as asked") {
			t.Errorf("the log has %s; want the panic and the Goexit", text)
		}
	})
}
