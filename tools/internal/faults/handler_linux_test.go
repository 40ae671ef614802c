package faults

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

// A handler that panics, or ends its goroutine, costs its own connection, on loops and on workers.
func TestHandlerPanics(t *testing.T) {
	onModelsAtOnce(t, 300, func(t *testing.T, model string) {
		for _, workers := range []int{0, 8} {
			if workers > 0 && model == tcp.Goroutine {
				continue
			}
			t.Run(fmt.Sprintf("%d workers", workers), func(t *testing.T) {
				const n = 200
				besiege(t, spec{Model: model, Workers: workers}, func(s *subject) {
					for i, line := range []string{"panic\n", "goexit\n"} {
						w := HalfOpen(s.addr, n/2, []byte(line))
						w.Every = 50 * time.Millisecond
						s.attack(w)
						all := int64(i+1) * n / 2
						s.counts("all are closed", func(st tcp.Stats) bool { return st.Closed.Panic == all && st.Panics == all })
						s.lost(w, n/2)
					}
					if !strings.Contains(s.Said(), "panic") {
						t.Errorf("the log does not say so: %s", s.Said())
					}
				})
			})
		}
	})
}

// mayBlock are the servers whose handlers may block.
func mayBlock(t *testing.T, workers int, f func(t *testing.T, sp spec)) {
	t.Parallel()
	for _, sp := range []spec{
		{Model: tcp.Goroutine}, {Model: tcp.Auto},
		{Model: tcp.Epoll, Workers: workers}, {Model: tcp.Uring, Workers: workers},
	} {
		t.Run(sp.Model, func(t *testing.T) {
			t.Parallel()
			testkit.ReserveDescriptors(t, 150)
			if sp.Model == tcp.Uring && tcp.Models()[len(tcp.Models())-1] != tcp.Uring {
				t.Skip("io_uring is not available on this machine")
			}
			f(t, sp)
		})
	}
}

// Handlers that block for a time hold up nobody else, where they may block. With
// Auto they do until it has moved them to workers.
func TestHandlersBlock(t *testing.T) {
	mayBlock(t, 32, func(t *testing.T, sp spec) {
		const n = 16
		sp.Limits.HandlerTime = 100 * time.Millisecond
		besiege(t, sp, func(s *subject) {
			w := s.attack(sleepers(s, n))
			s.counts("slow handlers are counted", func(st tcp.Stats) bool { return st.SlowHandlers >= n })
			s.round()
			w.Stop()
			s.counts("all are gone", func(st tcp.Stats) bool { return st.Open == s.counted.Open })
		})
	})
}

// sleepers have the handler block again and again, for a time.
func sleepers(s *subject, n int) *Swarm {
	return &Swarm{Target: s.addr, Conns: n, Stream: []byte("sleep 300ms\n"), Every: 350 * time.Millisecond}
}

// blocked starts a server with n handlers that do not return until they are let
// go. Under Auto handlers have been moved to workers before: those that a loop calls
// itself are not to block for ever. Each loop finds out for itself, so there is one.
func blocked(t *testing.T, sp spec, n int64) (*subject, *Swarm) {
	t.Helper()
	if sp.Model == tcp.Auto {
		sp.Loops = 1
	}
	s := serve(t, sp, nil)
	s.begin(&Honest{Addr: s.Addr, Conns: 20, Think: 10 * time.Millisecond})
	sleeping := sleepers(s, 4)
	if sp.Model == tcp.Auto {
		s.attack(sleeping)
		s.counts("handlers have moved to workers", func(st tcp.Stats) bool { return st.OnWorkers > 0 })
	}
	held := s.attack(HalfOpen(s.addr, int(n), []byte("block\n")))
	s.counts("all are there", func(st tcp.Stats) bool { return st.Open >= s.counted.Open+n })
	s.eventually(func() bool { return held.Counts().Sent == 6*n }, func() string { return fmt.Sprintf("%+v", held.Counts()) })
	s.round()
	if sp.Model == tcp.Auto {
		sleeping.Stop()
		s.counts("those that have slept are gone", func(st tcp.Stats) bool { return st.Open == s.counted.Open+n })
	}
	return s, held
}

// Handlers that never return keep their connections and nothing else; a shutdown
// that they outlast says how many.
func TestHandlersNeverReturn(t *testing.T) {
	mayBlock(t, 32, func(t *testing.T, sp spec) {
		sp.Drain = 300 * time.Millisecond
		s, w := blocked(t, sp, 16)
		w.Stop() // their peers are gone, and they are stuck
		s.round()
		if r := s.clients.Stop(); r.First != nil {
			t.Errorf("honest clients: %+v", r)
		}
		err := s.Stop()
		if err == nil || !strings.Contains(s.Said(), "and 16 are still open because of handlers that have not returned") {
			t.Errorf("a shutdown with 16 handlers that do not return: %v\n%s", err, s.Said())
		}
	})
}

// When such handlers return at last, nothing is left of them.
func TestHandlersReturnLate(t *testing.T) {
	mayBlock(t, 32, func(t *testing.T, sp spec) {
		s, w := blocked(t, sp, 16)
		w.Stop()
		var nothing any
		s.ask("release", &nothing)
		s.counts("all are gone", func(st tcp.Stats) bool { return st.Open == s.counted.Open })
		s.round()
		s.back()
		s.end()
	})
}

// Auto leaves handlers to workers as long as some of them block there: a loop
// that calls them itself again would be held by the next one.
func TestAutoWhileHandlersBlock(t *testing.T) {
	t.Parallel()
	s, _ := blocked(t, spec{Model: tcp.Auto}, 16)
	for range 10 {
		if st := s.stats(); st.OnWorkers == 0 {
			t.Fatalf("handlers are called on their loop while 16 calls have not returned: %+v\n%s", st, s.Said())
		}
		time.Sleep(100 * time.Millisecond)
	}
	var nothing any
	s.ask("release", &nothing)
	s.end()
}

// A handler that keeps the Ref of each connection for ever keeps a name that
// answers ErrClosed, not what made up the connection.
func TestHandlersLeakRefs(t *testing.T) {
	onModelsAtOnce(t, 200, func(t *testing.T, model string) {
		const n = 3000
		besiege(t, spec{Model: model}, func(s *subject) {
			w := s.attack(&Swarm{
				Target: s.addr, Conns: 100, Every: 20 * time.Millisecond, Most: n,
				First: []byte("hold\n"), Acts: 3, Redial: true,
			})
			s.eventually(func() bool { return w.Counts().Left == n }, func() string { return "connections that come and go" })
			// The last ones may have gone before the server has taken them.
			st := s.counts("all have come and are gone", func(st tcp.Stats) bool {
				return st.Open == s.counted.Open && st.Accepted-s.counted.Accepted >= n
			})
			if st.Accepted-s.counted.Accepted != n {
				t.Errorf("%d connections came, and %d were accepted", n, st.Accepted-s.counted.Accepted)
			}
			s.back() // with all Refs held
			var p pushed
			s.ask("push", &p)
			if p != (pushed{Closed: n}) {
				t.Errorf("sent to %d Refs of closed connections: %+v", n, p)
			}
			var nothing any
			s.ask("forget", &nothing)
		})
	})
}
