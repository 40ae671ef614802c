package tcp

import (
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
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

// TestReadRateOfLayers checks that a client with TLS, or whose handler runs on workers, has the same rates.
func TestReadRateOfLayers(t *testing.T) {
	t.Parallel()
	forEachModel(t, func(t *testing.T, model string, loops int) {
		server, client := identity()
		for _, srv := range []*Server{
			{TLSConfig: server, Limits: Limits{ReadRate: 300_000}},
			{TLSConfig: server, Limits: Limits{MessageRate: 300}},
			{Workers: newPool(t, plainPoolConfig(2, 10)), Limits: Limits{MessageRate: 300}},
		} {
			srv.Model, srv.Loops = model, loops
			s := startServer(t, srv)
			var c *testkit.Conn
			if srv.TLSConfig != nil {
				c = testkit.DialTLS(t, s.addr, client)
			} else {
				c = dial(t, s.addr)
			}
			want := strings.Repeat(strings.Repeat("x", 999)+"\n", 400)
			waitFor(t, "no pause is counted", func() bool { // on a slow machine, the messages may arrive at less than the rate
				start := time.Now()
				go c.Write([]byte(want)) // an error shows below
				c.Expect(want)
				c.ExchangeLine("last", "last") // is not read before what was read in advance is allowed
				isPaused := s.Stats().ReadLimited > 0
				if took := time.Since(start); isPaused && took < 300*time.Millisecond {
					t.Errorf("%+v: 400 messages of 1000 bytes took %v", srv.Limits, took)
				}
				return isPaused
			})
			c.Close()
			s.stop()
			expectNoError(t, s.waitResult(t))
		}
	})
}
