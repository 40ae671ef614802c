package models_test

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/enginetest"
	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/internal/testkit"
)

// echo echoes, after calling a function if that is set.
type echo struct {
	before func(c *engine.Conn, in []byte)
}

func (e *echo) Opened(*engine.Conn) {}

func (e *echo) Received(c *engine.Conn, in []byte) int {
	if e.before != nil {
		e.before(c, in)
	}
	c.Write(in)
	return len(in)
}

func (e *echo) Ended(_ *engine.Conn, in []byte) int { return len(in) }
func (e *echo) Closed(*engine.Conn, error)          {}

// forEachModelWithLoops runs a test on each model that has loops.
func forEachModelWithLoops(t *testing.T, f func(t *testing.T, m engine.Model)) {
	for _, m := range models.All() {
		if m.HasLoops {
			t.Run(m.Name, func(t *testing.T) {
				if err := m.Available(); err != nil {
					t.Skip(err)
				}
				f(t, m)
			})
		}
	}
}

// startShards starts loops with separate descriptor tables for each connections.
func startShards(t *testing.T, m engine.Model, h engine.Handler, loops, each int) engine.Engine {
	t.Helper()
	return startEngine(t, m, engine.Config{Addr: "127.0.0.1:0", Handler: h, Loops: loops, MaxConnsPerShard: each})
}

// startEngine starts an engine that is stopped at the end of the test.
func startEngine(t *testing.T, m engine.Model, cfg engine.Config) engine.Engine {
	t.Helper()
	cfg.Limits = enginetest.Limits()
	if cfg.MaxConnsPerShard > 0 {
		cfg.Limits.MaxConns = cfg.Loops * cfg.MaxConnsPerShard
	}
	return startEngineWithLimits(t, m, cfg)
}

// startEngineWithLimits is startEngine with the limits of cfg.
func startEngineWithLimits(t *testing.T, m engine.Model, cfg engine.Config) engine.Engine {
	t.Helper()
	cfg.Network, cfg.Log = "tcp", slog.New(slog.DiscardHandler)
	e, err := m.Start(cfg)
	testkit.RequireNoError(t, err)
	t.Cleanup(func() { enginetest.Kill(e) })
	return e
}

func dial(t *testing.T, e engine.Engine) *testkit.Conn {
	t.Helper()
	return testkit.Dial(t, e.Addr().String())
}

// dialAndGreet opens n connections, each of which is served.
func dialAndGreet(t *testing.T, e engine.Engine, n int) (conns []*testkit.Conn) {
	t.Helper()
	for range n {
		conns = append(conns, dial(t, e))
		conns[len(conns)-1].ExchangeLine("hello", "hello")
	}
	return conns
}

// limitDescriptors sets the process's descriptor limit until the end of the test.
func limitDescriptors(t *testing.T, n uint64) {
	t.Helper()
	var old syscall.Rlimit
	testkit.RequireNoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old))
	few := old
	few.Cur = n
	testkit.RequireNoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few))
	t.Cleanup(func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old) })
}

// TestFullShardsPassOn checks that shards accept as many connections as all have space for, by
// whichever of two listeners, and refuse none before.
func TestFullShardsPassOn(t *testing.T) {
	forEachModelWithLoops(t, func(t *testing.T, m engine.Model) {
		const loops, each = 4, 5
		here := engine.Listener{Network: "tcp", Addr: "127.0.0.1:0"}
		e := startEngine(t, m, engine.Config{Listeners: []engine.Listener{here, here}, Handler: &echo{}, Loops: loops, MaxConnsPerShard: each})
		for range 10 {
			var open []*testkit.Conn
			for i := range loops * each {
				c := testkit.Dial(t, e.ListenerStats()[i%2].Addr.String())
				c.ExchangeLine("hello", "hello")
				open = append(open, c)
			}
			refused := e.Counters().TotalRefused()
			dial(t, e).ExpectClosed()
			if got := e.Counters().TotalRefused() - refused; got != 1 {
				t.Errorf("%d connections were refused, want the one too many", got)
			}
			for _, c := range open {
				c.Close()
			}
			testkit.WaitFor(t, "all are closed", func() bool { return e.Counters()[engine.Open] == 0 })
		}
	})
}

// dialled counts connections by loop, and failed dials.
type dialled struct {
	echo
	on     [3]atomic.Int64
	failed atomic.Int64
}

func (d *dialled) Opened(c *engine.Conn) { d.on[c.LoopIndex()].Add(1) }

func (d *dialled) DialFailed(error) { d.failed.Add(1) }

// A full shard passes dials on; when all are full they fail.
func TestFullShardsPassDialsOn(t *testing.T) {
	forEachModelWithLoops(t, func(t *testing.T, m engine.Model) {
		target := startEngine(t, m, engine.Config{Addr: "127.0.0.1:0", Handler: &echo{}, Loops: 1})
		const loops, each, more = 3, 5, 2
		h := &dialled{}
		e := startEngine(t, m, engine.Config{Handler: h, Loops: loops, MaxConnsPerShard: each})
		to := target.Addr().(*net.TCPAddr).AddrPort()
		if err := e.Dial(engine.DialRequest{Target: to, Count: loops*each + more}); err != nil { // all to one loop
			t.Fatal(err)
		}
		testkit.WaitFor(t, "each dial has ended", func() bool {
			return e.Counters()[engine.Open] == loops*each && h.failed.Load() == more
		})
		for i := range h.on {
			if got := h.on[i].Load(); got != each {
				t.Errorf("loop %d has %d connections, want %d", i, got, each)
			}
		}
	})
}

// A shard whose descriptor table is full early passes connections on, too.
func TestTableFullEarly(t *testing.T) {
	limitDescriptors(t, sock.FirstPrivateFD+40)
	forEachModelWithLoops(t, func(t *testing.T, m engine.Model) {
		e := startShards(t, m, &echo{}, 4, 1000)
		var open []*testkit.Conn
		for range 120 { // 30 for each, who have room for some 35
			open = append(open, dial(t, e))
		}
		for _, c := range open {
			c.ExchangeLine("hello", "hello")
		}
	})
}

// A shard must not keep sockets open that were open when it started.
func TestShardsHoldNoOtherSocket(t *testing.T) {
	forEachModelWithLoops(t, func(t *testing.T, m engine.Model) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		testkit.RequireNoError(t, err)
		defer l.Close()
		ours, err := net.Dial("tcp", l.Addr().String())
		testkit.RequireNoError(t, err)
		theirs, err := l.Accept()
		testkit.RequireNoError(t, err)
		e := startShards(t, m, &echo{}, 2, 10)
		ours.Close()
		testkit.NewConn(t, theirs).ExpectEOF("")
		dial(t, e).ExchangeLine("hello", "hello")
	})
}

// The garbage collector runs on the threads of shards, and must find the descriptors that it needs.
func TestCollectOnShard(t *testing.T) {
	forEachModelWithLoops(t, func(t *testing.T, m engine.Model) {
		e := startShards(t, m, &echo{before: func(*engine.Conn, []byte) { runtime.GC() }}, 2, 10)
		for range 10 {
			dial(t, e).ExchangeLine("collect", "collect")
		}
	})
}

// A handler on a shard that uses a descriptor of the process's table must not hit a connection.
func TestForeignDescriptorOnShard(t *testing.T) {
	forEachModelWithLoops(t, func(t *testing.T, m engine.Model) {
		var file atomic.Pointer[os.File]
		wrong := make(chan error, 100)
		e := startShards(t, m, &echo{before: func(*engine.Conn, []byte) {
			_, err := file.Load().WriteString("to a file that was opened after the start")
			wrong <- err
		}}, 1, 100)
		var all []*testkit.Conn
		for range 50 { // so that many numbers are taken
			all = append(all, dial(t, e))
		}
		f, err := os.CreateTemp(t.TempDir(), "")
		testkit.RequireNoError(t, err)
		defer f.Close()
		file.Store(f)
		for _, c := range all {
			c.ExchangeLine("hello", "hello")
			if err := <-wrong; err == nil {
				t.Fatal("a write to a descriptor of another table went somewhere")
			}
		}
	})
}

// A descriptor is valid only on its shard's thread. The local address must nevertheless be known
// there, to workers and on any goroutine, except on other loops, which would have to wait.
func TestLocalAddrOnShard(t *testing.T) {
	forEachModelWithLoops(t, func(t *testing.T, m engine.Model) {
		for name, m := range map[string]engine.Model{"on loops": m, "with workers": withPool(m, fixedPool(4))} {
			t.Run(name, func(t *testing.T) {
				var other atomic.Pointer[engine.Ref]
				var at atomic.Value // where they listen
				wrong := make(chan string, 100)
				e := startShards(t, m, &echo{before: func(c *engine.Conn, _ []byte) {
					if addr, ok := c.Ref().LocalAddr(); !ok || addr.String() != at.Load() {
						wrong <- fmt.Sprintf("in its own call %v, %v", addr, ok)
					}
					r := other.Load()
					if r == nil {
						other.CompareAndSwap(nil, new(c.Ref()))
						return
					}
					owner, _, _ := r.Location()
					addr, ok := r.LocalAddr()
					if want := name == "with workers" || owner == c.LoopIndex(); ok != want || ok && addr.String() != at.Load() {
						wrong <- fmt.Sprintf("in a call of loop %d for one of loop %d %v, %v", c.LoopIndex(), owner, addr, ok)
					}
				}}, 2, 20)
				at.Store(e.Addr().String())
				for range 20 {
					dial(t, e).ExchangeLine("hello", "hello")
				}
				if addr, ok := other.Load().LocalAddr(); !ok || addr.String() != at.Load() {
					t.Errorf("LocalAddr in a goroutine is %v, %v; want %v", addr, ok, e.Addr())
				}
				close(wrong)
				for w := range wrong {
					t.Errorf("LocalAddr is %s; want %v", w, e.Addr())
				}
			})
		}
	})
}

// A shard must be able to wake a loop that started later.
func TestBellOfLaterLoop(t *testing.T) {
	forEachModelWithLoops(t, func(t *testing.T, m engine.Model) {
		var later atomic.Pointer[engine.Ref]
		first := startShards(t, m, &echo{before: func(_ *engine.Conn, in []byte) {
			if r := later.Load(); r != nil {
				_ = r.Send(in) // what does not come is missed below
			}
		}}, 1, 10)
		from := dial(t, first)
		from.ExchangeLine("early", "early")
		for _, each := range []int{0, 10} { // one table for all, and a shard
			refs := make(chan engine.Ref, 10)
			second := &echo{before: func(c *engine.Conn, _ []byte) { refs <- c.Ref() }}
			e := startEngine(t, m, engine.Config{Addr: "127.0.0.1:0", Handler: second, Loops: 1, MaxConnsPerShard: each})
			to := dial(t, e)
			to.ExchangeLine("hello", "hello")
			ref := <-refs
			later.Store(&ref)
			for range 20 {
				from.ExchangeLine("ring", "ring")
				to.Expect("ring\n") // its loop was woken from a shard
			}
			later.Store(nil)
		}
	})
}

// Threads of shards must end with them, and their tables, too.
func TestShardThreadsEnd(t *testing.T) {
	threads := func() int {
		entries, err := os.ReadDir("/proc/self/task")
		testkit.RequireNoError(t, err)
		return len(entries)
	}
	forEachModelWithLoops(t, func(t *testing.T, m engine.Model) {
		startShards(t, m, &echo{}, 1, 10) // whatever starts with the first
		before := threads()
		e := startShards(t, m, &echo{}, 20, 10)
		if during := threads(); during < 20 {
			t.Errorf("%d threads with 20 shards; want one for each", during)
		}
		testkit.ExpectNoError(t, e.Stop(t.Context()))
		testkit.WaitFor(t, "the threads have ended", func() bool { return threads() <= before+5 })
	})
}

// A shard can't start if the limit is below its reserve.
func TestShardsUnderTinyLimit(t *testing.T) {
	limitDescriptors(t, 200)
	forEachModelWithLoops(t, func(t *testing.T, m engine.Model) {
		e, err := m.Start(engine.Config{
			Network: "tcp", Addr: "127.0.0.1:0", Handler: &echo{}, Limits: enginetest.Limits(),
			Loops: 2, MaxConnsPerShard: 10, Log: slog.New(slog.DiscardHandler),
		})
		if err == nil {
			_ = e.Stop(t.Context())
			t.Fatal("it started")
		}
	})
}
