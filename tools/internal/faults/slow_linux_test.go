package faults

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// Ten thousand connections, or fewer, that drip a line without an end are closed for
// taking too long over one message, however busily they drip.
func TestSlowloris(t *testing.T) {
	n, limit := int64(700), time.Second
	if full {
		n, limit = 10_000, 3*time.Second
	}
	onModelsAtOnce(t, int(n)+100, func(t *testing.T, model string) {
		besiege(t, spec{Model: model, Limits: tcp.Limits{MessageTimeout: limit}}, func(s *subject) {
			w := s.attack(Slowloris(s.addr, int(n), limit/3))
			s.counts("the first is closed", func(st tcp.Stats) bool { return st.Closed.Message > 0 })
			s.round()
			s.counts("all are closed", func(st tcp.Stats) bool { return st.Closed.Message == n })
			s.lost(w, n)
		})
	})
}

// The same with worker processes, whose counters add up.
func TestSlowlorisOnProcesses(t *testing.T) {
	onModelsAtOnce(t, 600, func(t *testing.T, model string) {
		const n = 500
		sp := spec{Model: model, Processes: 2, Limits: tcp.Limits{MessageTimeout: time.Second}}
		besiege(t, sp, func(s *subject) {
			w := s.attack(Slowloris(s.addr, n, 300*time.Millisecond))
			s.counts("all are closed", func(st tcp.Stats) bool { return st.Closed.Message == n && st.Processes == 2 })
			s.lost(w, n)
			if st := s.stats(); st.Restarts > 0 {
				t.Errorf("worker processes have ended: %+v", st)
			}
		})
	})
}

// lost waits until a swarm has noticed that the server has ended n connections.
func (s *subject) lost(w *Swarm, n int64) {
	s.Helper()
	s.eventually(func() bool { return w.Counts().Lost == n }, func() string {
		return fmt.Sprintf("%d connections were to be ended: %+v", n, w.Counts())
	})
}

// Connections that never read are not read from, and closed when nothing has
// moved for too long.
func TestNeverRead(t *testing.T) {
	onModelsAtOnce(t, 150, func(t *testing.T, model string) {
		const n = 60
		sp := spec{Model: model, Limits: tcp.Limits{MaxUnsent: 64 << 10, WriteTimeout: time.Second}}
		besiege(t, sp, func(s *subject) {
			paused := int64(0)
			w := s.attack(NeverRead(s.addr, n, floodOfLines, 50*time.Millisecond))
			s.counts("the first is closed", func(st tcp.Stats) bool {
				paused = max(paused, st.Paused)
				return st.Closed.Write > 0
			})
			if model != tcp.Goroutine && paused < n/2 { // there a goroutine waits for its peer instead
				t.Errorf("at most %d of %d connections that never read were paused", paused, n)
			}
			s.round()
			s.counts("all are closed", func(st tcp.Stats) bool { return st.Closed.Write == n })
			s.lost(w, n)
		})
	})
}

// floodOfLines is more than what a connection is read for while it is owed.
var floodOfLines = bytes.Repeat(append(bytes.Repeat([]byte("r"), 4095), '\n'), 64)

// A paused connection is not read from: what it has sent waits in the kernel,
// where it can be bounded, and not in the server.
func TestPausedIsNotRead(t *testing.T) {
	onModelsAtOnce(t, 150, func(t *testing.T, model string) {
		const n, unsent, message = 50, 64 << 10, 64 << 10
		limits := tcp.Limits{
			MaxUnsent: unsent, MaxMessage: message, WriteTimeout: tcp.Never, MessageTimeout: tcp.Never,
		}
		besiege(t, spec{Model: model, Limits: limits}, func(s *subject) {
			w := s.attack(NeverRead(s.addr, n, floodOfLines, 20*time.Millisecond))
			// Twice, because buffers grow by doubling, and two reads more.
			allowed := int64(2*(unsent+message) + 128<<10)
			if model == tcp.Uring {
				allowed += 32 * 64 << 10 // what one multishot receive may fill before it can be stopped
			}
			most := int64(0)
			for quiet := 0; quiet < 20; quiet++ { // until the kernel takes no more for a while
				before := w.Counts()
				time.Sleep(20 * time.Millisecond)
				most = max(most, s.stats().Buffered)
				if now := w.Counts(); now.Sent == 0 || now.Sent != before.Sent {
					quiet = 0
				}
			}
			if most > n*allowed {
				t.Errorf("%d connections that may have %d bytes of output and %d of input had buffers of %d each",
					n, unsent, message, most/n)
			}
			w.Stop()
		})
	})
}

// Buffers that have grown are let go with what they were for, even if they were
// small ones before, which are kept.
func TestGrownBuffersAreLetGo(t *testing.T) {
	onModelsAtOnce(t, 200, func(t *testing.T, model string) {
		const n = 60
		besiege(t, spec{Model: model}, func(s *subject) {
			for _, w := range []*Swarm{
				{First: []byte("half a line"), Stream: []byte("\n")}, // so many small buffers at a time
				{First: []byte("flood 1000000\n")},                   // and so many large ones
			} {
				w.Target, w.Conns, w.Every = s.addr, n, 200*time.Millisecond
				s.attack(w)
				s.eventually(func() bool { return w.Counts().Answered == n }, func() string {
					return fmt.Sprintf("all are answered: %+v", w.Counts())
				})
				w.Stop()
				s.counts("all are gone", func(st tcp.Stats) bool { return st.Open == s.counted.Open })
			}
		})
	})
}

// Those to which a handler writes regardless are closed as slow consumers.
func TestSlowConsumers(t *testing.T) {
	onModelsAtOnce(t, 300, func(t *testing.T, model string) {
		const n = 200
		sp := spec{Model: model, Limits: tcp.Limits{MaxUnsent: 64 << 10}}
		besiege(t, sp, func(s *subject) {
			w := s.attack(NeverRead(s.addr, n, []byte("flood 30000000\n"), 100*time.Millisecond))
			s.counts("all are closed", func(st tcp.Stats) bool { return st.Closed.SlowConsumer == n })
			s.lost(w, n)
		})
	})
}

// Peers that have connected and say nothing, or nothing more.
func TestHalfOpen(t *testing.T) {
	n := int64(350)
	if full {
		n = 500
	}
	onModelsAtOnce(t, int(2*n)+100, func(t *testing.T, model string) {
		limits := tcp.Limits{FirstByteTimeout: 2 * time.Second, IdleTimeout: 2 * time.Second}
		besiege(t, spec{Model: model, Limits: limits}, func(s *subject) {
			silent := s.attack(HalfOpen(s.addr, int(n), nil))
			polite := s.attack(HalfOpen(s.addr, int(n), []byte("hello\n")))
			s.counts("all have come", func(st tcp.Stats) bool { return st.Accepted-s.counted.Accepted == 2*n })
			s.round()
			s.counts("all are closed", func(st tcp.Stats) bool { return st.Closed.FirstByte == n && st.Closed.Idle == n })
			s.lost(silent, n)
			s.lost(polite, n)
		})
	})
}

// Memory for buffers is taken from those that hold the most, and honest clients
// hold next to none, though they may be given large buffers that others have used.
func TestMemoryBudget(t *testing.T) {
	onModelsAtOnce(t, 300, func(t *testing.T, model string) {
		const n, budget = 200, 4 << 20
		limits := tcp.Limits{
			MaxBuffered: budget, MaxUnsent: 256 << 10, MaxMessage: 128 << 10,
			MessageTimeout: tcp.Never, WriteTimeout: tcp.Never,
		}
		input := func(s *subject) *Swarm { return HalfOpen(s.addr, n, bytes.Repeat([]byte("i"), 100<<10)) }
		for _, attack := range []struct {
			name  string
			loops int // 0 is as many as usual
			swarm func(s *subject) *Swarm
		}{
			{"output", 0, func(s *subject) *Swarm {
				return NeverRead(s.addr, n, floodOfLines, 20*time.Millisecond)
			}},
			{"input", 0, input},
			{"input of 4 loops", 4, input},
		} {
			t.Run(attack.name, func(t *testing.T) {
				besiege(t, spec{Model: model, Loops: attack.loops, Limits: limits}, func(s *subject) {
					w := attack.swarm(s)
					w.Every = 20 * time.Millisecond
					s.attack(w)
					s.counts("connections are closed for the budget", func(st tcp.Stats) bool { return st.Closed.Budget > n/4 })
					s.round()
					st := s.counts("the budget is kept", func(st tcp.Stats) bool { return st.Buffered <= budget })
					// What comes between two looks, and garbage of buffers that grow: on a busy
					// machine collecting it takes a while, so this is looked at more than once.
					var now Footprint
					s.eventually(func() bool {
						s.heap()
						now = s.footprint()
						return raced || now.RSS <= s.before.RSS+10*budget+residentTolerance+keptByLoops(st)
					}, func() string { return fmt.Sprintf("under a budget of %d bytes: %v; before %v", budget, now, s.before) })
					if most := st.Closed; most.Budget+most.Reset+most.Peer > n {
						t.Errorf("%d connections, and closed were %+v", n, most)
					}
					w.Stop()
					s.counts("nothing is buffered", func(st tcp.Stats) bool { return st.Buffered < budget/8 })
				})
			})
		}
	})
}
