package load

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

// fakeEngine records dials and calls onDial.
type fakeEngine struct {
	engine.Engine
	failFull int // answer that many dials with ErrFull
	dials    []engine.DialRequest
	onDial   func(engine.DialRequest)
}

func (f *fakeEngine) Dial(d engine.DialRequest) error {
	if f.failFull > 0 {
		f.failFull--
		return engine.ErrFull
	}
	f.dials = append(f.dials, d)
	if f.onDial != nil {
		f.onDial(d)
	}
	return nil
}

func (f *fakeEngine) Loops() int { return 1 }

func (f *fakeEngine) dialedConns() (n int) {
	for _, d := range f.dials {
		n += d.Count
	}
	return n
}

func newTestDialer(f *fakeEngine, connections, rate int) dialer {
	return dialer{
		engine: f, targets: []resolvedTarget{testTarget}, sources: []source{{count: connections}}, connections: connections, rate: rate, loops: 1,
		finishedAttempts: func() int64 { return int64(f.dialedConns()) },
	}
}

var testTarget = resolvedTarget{addr: netip.MustParseAddrPort("192.0.2.1:9000")}

// TestPacing checks, in a synctest bubble, that exactly the due connections are started at every tick.
func TestPacing(t *testing.T) {
	for _, rate := range []int{1, 2000, 5000, 300_000} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			var f fakeEngine
			f.onDial = func(engine.DialRequest) {
				if got, most := f.dialedConns(), 1+int(time.Since(begin).Seconds()*float64(rate)); got > most {
					t.Fatalf("rate %d: %d started after %v, want at most %d", rate, got, time.Since(begin), most)
				}
			}
			d := newTestDialer(&f, 3*rate, rate)
			testkit.RequireNoError(t, d.dialAndReplaceClosed(t.Context()))
			// The first one is due at once, the last a step before 3 s.
			least := 3*time.Second - 2*time.Second/time.Duration(rate)
			if took := time.Since(begin); f.dialedConns() != 3*rate || took < least || took > 3*time.Second+dialInterval {
				t.Errorf("rate %d: %d started in %v, want %d in 3 s", rate, f.dialedConns(), took, 3*rate)
			}
		})
	}
}

// TestHalfOpen checks the limit of attempts in progress.
func TestHalfOpen(t *testing.T) {
	for rate, want := range map[int]int{0: maxHalfOpen, 400: maxHalfOpen, 5000: 5000} {
		synctest.Test(t, func(t *testing.T) {
			var f fakeEngine
			d := newTestDialer(&f, 10_000, rate)
			d.finishedAttempts = func() int64 { return 0 }
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			if err := d.dialAndReplaceClosed(ctx); !errors.Is(err, context.DeadlineExceeded) || f.dialedConns() != want {
				t.Errorf("rate %d: %d started, %v, want %d", rate, f.dialedConns(), err, want)
			}
		})
	}
}

// TestMailboxFull checks that dials are repeated after ErrFull, and distributed over all loops and sources.
func TestMailboxFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fakeEngine{failFull: 3}
		d := newTestDialer(&f, 100, 0)
		d.loops, d.sources = 3, planSources(testTarget.addr.Addr(), 100, parseAddrs("192.0.2.7", "192.0.2.8"), 0)
		testkit.RequireNoError(t, d.dialAndReplaceClosed(t.Context()))
		perSource := map[netip.Addr]int{}
		for _, e := range f.dials {
			perSource[e.Source] += e.Count
			if e.Target != testTarget.addr || e.Count > 171 {
				t.Errorf("dialled %+v", e)
			}
		}
		if perSource[netip.MustParseAddr("192.0.2.7")] != 50 || perSource[netip.MustParseAddr("192.0.2.8")] != 50 {
			t.Errorf("per source %v", perSource)
		}
	})
}

func newFakeRun(cfg Config, f *fakeEngine) *loadRun {
	r, err := newRunWithoutEngine(cfg.withDefaultsAndImplied(), []resolvedTarget{testTarget})
	if err != nil {
		panic(err)
	}
	r.attachEngine(f, "")
	r.progressTicker = time.NewTicker(time.Second)
	return r
}

// TestConnectStall checks that stalled attempts are given up, and that a connection established afterwards is rejected.
func TestConnectStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEngine{}
		r := newFakeRun(Config{Connections: 1000, ConnectTimeout: 3 * time.Second}, f)
		defer r.progressTicker.Stop()
		f.onDial = func(engine.DialRequest) { r.generator.DialFailed(errors.New("no")) }
		begin := time.Now()
		testkit.RequireNoError(t, r.runConnectPhase(t.Context()))
		if took := time.Since(begin); took < 3*time.Second || took > 4*time.Second {
			t.Errorf("took %v", took)
		}
		got := r.buildResult(r.sumTotals())
		failed := int64(len(f.dials))
		if got.ConnectErrors["no"] != failed || got.ConnectErrors["not established within 3s"] != 1000-failed {
			t.Errorf("got %v, with %d failed", got.ConnectErrors, failed)
		}
		r.generator.DialFailed(errors.New("late"))
		if n := r.generator.faults.countConnectFailures(); n != 1000 {
			t.Errorf("%d failed, want 1000", n)
		}
		c := newOpenConn(r.generator)
		if c.AdvanceToNextAction() != engine.Close || r.sumTotals().run[nOpened] != 0 {
			t.Error("a late connection was taken")
		}
	})
}

// TestSlow checks that a low connect rate, or a ramp, does not count as a stall. A ramp never dials early.
func TestSlow(t *testing.T) {
	for want, cfg := range map[time.Duration]Config{
		4 * time.Second:  {Connections: 5, ConnectRate: 1},
		10 * time.Second: {Ramp: Ramp{From: 1, To: 5, Over: 10 * time.Second}, Hold: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			cfg.ConnectTimeout = time.Millisecond
			f := &fakeEngine{}
			r := newFakeRun(cfg, f)
			defer r.progressTicker.Stop()
			begin := time.Now()
			f.onDial = func(d engine.DialRequest) {
				for range d.Count {
					newOpenConn(r.generator)
				}
				if ramp := cfg.Ramp; ramp.To > 0 {
					if most := ramp.From + int(float64(ramp.To-ramp.From)*float64(time.Since(begin))/float64(ramp.Over)); f.dialedConns() > most {
						t.Errorf("%d dialed after %v, want at most %d", f.dialedConns(), time.Since(begin), most)
					}
				}
			}
			if err := r.runConnectPhase(t.Context()); err != nil || r.sumTotals().run[nOpened] != 5 {
				t.Errorf("%d opened, %v", r.sumTotals().run[nOpened], err)
			}
			if (r.connectTime - want).Abs() > 10*time.Millisecond {
				t.Errorf("connecting took %v, want %v", r.connectTime, want)
			}
		})
	}
}

func newOpenConn(t *generator) *engine.Conn {
	c := &engine.Conn{}
	c.Bind(&engine.Runtime{
		Config:   engine.Config{Handler: t, Limits: engine.Limits{MaxMessage: 1 << 20, MaxUnsent: 1 << 30}, Log: slog.New(slog.DiscardHandler)},
		Buffers:  &engine.FreeList{},
		Counters: &engine.Counters{},
		Now:      engine.MonotonicNow,
	}, 0, 0)
	c.OnOpen(testTarget.addr, true)
	return c
}

func TestPlanSources(t *testing.T) {
	one := func(text string, count int) source { return source{netip.MustParseAddr(text), count} }
	for name, test := range map[string]struct {
		target      string
		connections int
		given       []netip.Addr
		most        int
		want        []source
	}{
		"one is enough": {"127.0.0.1", 20_000, nil, 20_000, []source{{count: 20_000}}},
		"three": {"127.0.0.1", 50_000, nil, 20_000, []source{
			one("127.0.0.1", 16_667), one("127.0.0.2", 16_667), one("127.0.0.3", 16_666)}},
		"narrow range":  {"127.0.0.9", 5, nil, 3, []source{one("127.0.0.1", 3), one("127.0.0.2", 2)}},
		"no loopback":   {"192.0.2.1", 50_000, nil, 20_000, []source{{count: 50_000}}},
		"IPv6 loopback": {"::1", 50_000, nil, 20_000, []source{{count: 50_000}}},
		"no room known": {"127.0.0.1", 50_000, nil, 0, []source{{count: 50_000}}},
		"given": {"127.0.0.1", 50_000, parseAddrs("127.0.0.7", "127.0.0.8"), 20_000, []source{
			one("127.0.0.7", 25_000), one("127.0.0.8", 25_000)}},
		"more than connections": {"192.0.2.1", 2, parseAddrs("192.0.2.7", "192.0.2.8", "192.0.2.9"), 20_000, []source{
			one("192.0.2.7", 1), one("192.0.2.8", 1)}},
	} {
		if got := planSources(netip.MustParseAddr(test.target), test.connections, test.given, test.most); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}

// TestTargetsOfAllKinds connects to a unix socket and to an address in turn, from matching sources.
func TestTargetsOfAllKinds(t *testing.T) {
	f := &fakeEngine{}
	r, err := newRunWithoutEngine(Config{Connections: 10}.withDefaultsAndImplied(), []resolvedTarget{testTarget, {path: "/x"}})
	testkit.RequireNoError(t, err)
	r.attachEngine(f, "")
	r.dialer.sources = []source{{parseAddrs("127.0.0.1")[0], 10}} // as if there were many
	testkit.RequireNoError(t, r.dialer.startAttempts(10))
	for _, d := range f.dials {
		if d.Validate() != nil || d.Path == "" != d.Source.IsValid() {
			t.Errorf("dialled %+v", d)
		}
	}
}

// TestMessagesThink checks that the run waits for connections whose think time exceeds the drain time.
func TestMessagesThink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := simulation{loadRun: newFakeRun(Config{Connections: 2, Size: 2, Messages: 3, Think: 2 * time.Second, Drain: time.Second}, &fakeEngine{})}
		defer s.progressTicker.Stop()
		s.startConns(0)
		var server sync.WaitGroup
		server.Go(func() { s.processEvents(func() bool { return s.sumTotals().run[nFinished] == 2 }) })
		if err := s.waitEmittingProgress(t.Context(), s.windowOrAllExchangedCondition()); err != nil {
			t.Errorf("gave up: %v", err)
		}
		server.Wait()
		if sum := s.sumTotals(); sum.run[nAnswered] != 6 || sum.run[nExchanged] != 2 {
			t.Errorf("%d answers, %d exchanged all; want 6 and 2", sum.run[nAnswered], sum.run[nExchanged])
		}
	})
}
