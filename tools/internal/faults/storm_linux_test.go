package faults

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/internal/sample"
)

// Connections that are reset as soon as they are made, or with a request under
// way.
func TestResetStorm(t *testing.T) {
	onModelsAtOnce(t, 300, func(t *testing.T, model string) {
		const rate, most = 4000, 2000
		besiege(t, spec{Model: model}, func(s *subject) {
			before, made := s.stats(), int64(0)
			for _, w := range []*Swarm{
				ResetStorm(s.addr, rate, most, nil), ResetStorm(s.addr, rate, most, []byte("hello\n")),
			} {
				s.attack(w)
				made += most
				s.eventually(func() bool { c := w.Counts(); return c.Left+c.Lost+c.Failed == most }, func() string {
					return fmt.Sprintf("%d connections were to be made and reset: %+v", most, w.Counts())
				})
				s.round()
				s.counts("each connection is closed as reset", func(st tcp.Stats) bool {
					taken := st.Accepted - before.Accepted
					return taken >= made*9/10 && taken <= made &&
						st.Closed.Reset-before.Closed.Reset == taken && st.Open == before.Open
				})
				w.Stop()
			}
		})
	})
}

// More connections at once than the kernel's queue takes: all are served in the
// end. The server is stopped meanwhile, so that the queue fills for certain.
func TestConnectStorm(t *testing.T) {
	backlog, n := 200, int64(700)
	if full {
		backlog, n = 4096, 4596
	}
	onModelsAtOnce(t, int(n)+100, func(t *testing.T, model string) {
		besiege(t, spec{Model: model, Loops: 1, Backlog: backlog}, func(s *subject) {
			if err := unix.Kill(s.Pid(), unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			w := s.attack(ConnectStorm(s.addr, int(n), []byte("hello\n")))
			s.eventually(func() bool { return w.Counts().Made == n && w.Counts().Connected >= int64(backlog) }, func() string {
				return fmt.Sprintf("a queue of %d is to be filled: %+v", backlog, w.Counts())
			})
			if c := w.Counts(); c.Connected >= n {
				t.Errorf("%d connections are established with a queue of %d: it is not full", c.Connected, backlog)
			}
			if err := unix.Kill(s.Pid(), unix.SIGCONT); err != nil {
				t.Fatal(err)
			}
			s.eventually(func() bool { return w.Counts().Answered == n }, func() string {
				return fmt.Sprintf("%d connections were to be answered: %+v", n, w.Counts())
			})
			if c := w.Counts(); c.Received != 6*n || c.Lost+c.Failed > 0 {
				t.Errorf("%d connections sent 6 bytes each: %+v", n, c)
			}
			s.round()
			s.counts("all are there", func(st tcp.Stats) bool { return st.Open == s.counted.Open+n && st.Refused.Total() == 0 })
			w.Stop()
			s.counts("all are gone", func(st tcp.Stats) bool { return st.Open == s.counted.Open })
		})
	})
}

// More connections than Limits.MaxConns, again and again: the further ones are
// refused, and those that are there stay.
func TestTooManyConnections(t *testing.T) {
	onModelsAtOnce(t, 500, func(t *testing.T, model string) {
		const most, n = 200, 400
		besiege(t, spec{Model: model, Limits: tcp.Limits{MaxConns: most}}, func(s *subject) {
			w := HalfOpen(s.addr, n, []byte("hello\n"))
			w.Redial, w.Every = true, 100*time.Millisecond
			s.attack(w)
			st := s.counts("connections are refused", func(st tcp.Stats) bool { return st.Refused.Full > 2*n && st.Open == most })
			t.Logf("%d connections are open, %d were refused", st.Open, st.Refused.Full)
			s.round()
			w.Stop()
			s.counts("all are gone", func(st tcp.Stats) bool {
				return st.Open == s.counted.Open && st.Refused.Total() == st.Refused.Full
			})
		})
	})
}

// Random bytes, lines without an end and zeros.
func TestGarbage(t *testing.T) {
	onModelsAtOnce(t, 400, func(t *testing.T, model string) {
		const n = 100
		sp := spec{Model: model, Limits: tcp.Limits{MaxMessage: 32 << 10}}
		besiege(t, sp, func(s *subject) {
			noise := s.attack(Garbage(s.addr, n, 1, 20*time.Millisecond))
			long := s.attack(LongLines(s.addr, n, 'x', 20*time.Millisecond))
			nuls := s.attack(LongLines(s.addr, n, 0, 20*time.Millisecond))
			s.lost(long, n)
			s.lost(nuls, n)
			s.round()
			s.counts("long lines are counted", func(st tcp.Stats) bool { return st.Closed.TooLong == 2*n })
			s.eventually(func() bool { return noise.Counts().Received > 1<<20 }, func() string {
				return fmt.Sprintf("noise has lines in it, which are to be echoed: %+v", noise.Counts())
			})
			if c := noise.Counts(); c.Open != n || c.Lost > 0 {
				t.Errorf("noise with short lines is no reason to close: %+v", c)
			}
			noise.Stop()
			s.counts("noise is gone", func(st tcp.Stats) bool { return st.Open == s.counted.Open })
		})
	})
}

// With all descriptors taken the server goes on serving, does not spin, and
// accepts again when some are free.
func TestDescriptorsExhausted(t *testing.T) {
	onModelsAtOnce(t, 550, func(t *testing.T, model string) {
		const most, n = 200, 400
		sp := spec{Model: model, Descriptors: most, Limits: tcp.Limits{MaxConns: 800}}
		besiege(t, sp, func(s *subject) {
			w := s.attack(HalfOpen(s.addr, n, []byte("hello\n")))
			s.counts("descriptors run out", func(st tcp.Stats) bool { return st.AcceptErrors > 0 && st.Open > most/2 })
			s.round()
			begun, errs, work := time.Now(), s.stats().AcceptErrors, s.cpu()
			time.Sleep(500 * time.Millisecond)
			more, used := s.stats().AcceptErrors-errs, s.cpu()-work
			took := time.Since(begun) // longer where the machine is busy
			t.Logf("in %v with all descriptors taken accept failed %d times; %v of processor time", took, more, used)
			if more > took.Milliseconds() || used > took*7/10 && !raced {
				t.Errorf("it spins")
			}
			w.Stop()
			h := &Honest{Addr: s.Addr, Conns: 50}
			if err := h.Start(); err != nil {
				t.Fatalf("when descriptors were free again: %v", err)
			}
			defer h.Stop()
			s.counts("those that come later are served", func(st tcp.Stats) bool { return st.Open == s.counted.Open+50 })
			s.eventually(func() bool { return h.Report().Answers >= 500 }, func() string { return fmt.Sprintf("%+v", h.Report()) })
			if r := h.Stop(); r.First != nil {
				t.Errorf("%+v", r)
			}
		})
	})
}

// cpu is the processor time that the server has used.
func (s *subject) cpu() time.Duration {
	s.Helper()
	taken, err := sample.Take(sample.CPU, s.Pid())
	if err != nil {
		s.Fatal(err)
	}
	return taken.Processes[0].CPU()
}
