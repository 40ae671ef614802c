package faults

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/internal/sample"
)

// Peers that take all that a server gives them: nobody else starves, limits are
// kept, and orders are heard. What is asserted of times is many times what it takes
// on a machine that is at rest.
const (
	// newcomerBound is how long a new one waits for its first.
	newcomerBound = 3 * time.Second
	// orderTime is within what an order is obeyed, beside the time that it gives.
	orderTime = 2 * time.Second
	// pipelined is how much is under way on each connection of a pipelined flood.
	pipelined = 128 << 10
)

// smallSockets keep what floods leave in the kernel far from net.ipv4.tcp_mem, beyond
// which it resets connections of other programs too.
var smallSockets = tcp.Socket{SendBuffer: 32 << 10, ReceiveBuffer: 32 << 10}

// turnBound is how long an honest client waits at most for two answers while others
// flood.
var turnBound = func() time.Duration {
	if raced {
		return 10 * time.Second
	}
	return 3 * time.Second
}()

// withAuto is onModels, and Auto too, whose handlers run where they like.
func withAuto(t *testing.T, f func(t *testing.T, model string)) {
	onModels(t, f)
	t.Run(tcp.Auto, func(t *testing.T) { f(t, tcp.Auto) })
}

// many is a number of attackers, less where they are dear.
func many(n int) int {
	if full {
		return n
	}
	return min(n, 200)
}

// peak is the most that was seen of a server.
type peak struct {
	buffered, resident int64
	at                 time.Time // when memory was looked at last
}

// look looks at a server.
func (p *peak) look(s *subject) {
	p.buffered = max(p.buffered, s.stats().Buffered)
	if time.Since(p.at) < 50*time.Millisecond {
		return // it is work
	}
	memory, err := sample.Take(sample.Memory|sample.PSS, s.Pid())
	if err != nil {
		s.Fatal(err)
	}
	p.resident, p.at = max(p.resident, memory.Total().RSS), time.Now()
}

// within waits for a condition so long at most, looks at the server meanwhile, and
// says whether it was so. What says what was not.
func (s *subject) within(most time.Duration, p *peak, so func() bool, what func() string) bool {
	s.Helper()
	for end := time.Now().Add(most); !so(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			s.Errorf("not within %v: %s", most, what())
			return false
		}
		p.look(s)
	}
	return true
}

// turn waits until each honest client has an answer to a line sent from now on, and
// says how long that took.
func (s *subject) turn(p *peak) (took time.Duration, ok bool) {
	s.Helper()
	from, begun := s.clients.Each(), time.Now()
	ok = s.within(turnBound, p, func() bool { return s.starved(from) == 0 }, func() string {
		return fmt.Sprintf("%d of %d honest clients have had no two answers: %+v", s.starved(from), len(from), s.clients.Report())
	})
	return time.Since(begun), ok
}

// newcomer connects and asks, and says how long that took.
func (s *subject) newcomer(most time.Duration) (time.Duration, error) {
	begun := time.Now()
	c, err := net.DialTimeout("tcp", s.Addr, most)
	if err != nil {
		return time.Since(begun), err
	}
	defer c.Close()
	c.SetDeadline(begun.Add(most))
	io.WriteString(c, "hello\n")
	answer, err := bufio.NewReader(c).ReadString('\n')
	if err == nil && answer != "hello\n" {
		err = fmt.Errorf("%w: %q", errWrong, answer)
	}
	return time.Since(begun), err
}

// With few and with many that send as fast as the server takes it, everybody else is
// served, and those who come later too.
func TestFlood(t *testing.T) {
	withAuto(t, func(t *testing.T, model string) {
		s := serve(t, spec{Model: model, Socket: smallSockets}, nil)
		s.begin(&Honest{Addr: s.Addr, Conns: many(200)})
		attacks := []struct{ conns, ahead int }{{100, 0}, {1000, 0}, {10, 0}, {100, pipelined}}
		if model == tcp.Auto {
			attacks = attacks[:2] // its models have had the others
		}
		for _, attack := range attacks {
			w := Flood(s.addr, many(attack.conns), floodOfLines, attack.ahead)
			name := fmt.Sprintf("%d connections that flood, %d ahead", w.Conns, w.Ahead)
			if !s.flooded(w, name) {
				t.Fatalf("with %s: %+v", name, w.Counts())
			}
		}
		if model != tcp.Auto { // it keeps workers as long as honest clients keep them busy
			s.back()
		}
		s.end()
	})
}

// flooded checks that nobody starves while a swarm floods.
func (s *subject) flooded(w *Swarm, name string) (ok bool) {
	s.Helper()
	s.attack(w)
	defer w.Stop()
	s.eventually(func() bool { c := w.Counts(); return c.Connected == int64(w.Conns) && c.Received > 16<<20 }, func() string {
		return fmt.Sprintf("%s: %+v", name, w.Counts())
	})
	s.clients.Latency() // of what was before
	var p peak
	longest := time.Duration(0)
	for range 3 {
		took, ok := s.turn(&p)
		if longest = max(longest, took); !ok {
			return false
		}
	}
	wait, err := s.newcomer(newcomerBound)
	if err != nil {
		s.Errorf("one that comes later: %v", err)
		return false
	}
	p99 := time.Duration(s.clients.Latency().ValueAtQuantile(99)) * time.Microsecond
	s.Logf("%s: all honest clients had two answers within %v, p99 %v; a new one its first after %v; %.1f MB echoed; at most %.1f MB buffered, %.1f resident",
		name, longest, p99, wait, float64(w.Counts().Received)/1e6, float64(p.buffered)/1e6, float64(p.resident)/1e6)
	w.Stop()
	s.counts("all are gone", func(st tcp.Stats) bool { return st.Open == s.counted.Open })
	return true
}

// MaxBuffered holds at every moment, but for what one turn of the loops brings,
// while as many as there may be do their best to have more buffered.
func TestBudgetUnderFlood(t *testing.T) {
	const turn = 64 * (64 + 128) << 10 // events, with input and output
	for _, attack := range []struct {
		name   string
		budget int64 // less than all have buffered without it
		socket tcp.Socket
		swarm  func(s *subject) *Swarm
	}{
		{"output", int64(many(1500)) * 10 << 10, smallSockets, func(s *subject) *Swarm { return NeverReadAtSpeed(s.addr, many(1500), floodOfLines) }},
		{"input", 16 << 20, tcp.Socket{}, func(s *subject) *Swarm {
			w := HalfOpen(s.addr, many(1500), bytes.Repeat([]byte("i"), 200<<10))
			w.Greedy = true
			return w
		}},
	} {
		t.Run(attack.name, func(t *testing.T) {
			onModels(t, func(t *testing.T, model string) {
				budget := attack.budget
				limits := tcp.Limits{MaxBuffered: int(budget), MaxMessage: 256 << 10}
				besiege(t, spec{Model: model, Socket: attack.socket, Limits: limits}, func(s *subject) {
					w := attack.swarm(s)
					w.Redial, w.Every = true, 100*time.Millisecond
					s.attack(w)
					var p peak
					s.within(patience, &p, func() bool { return s.stats().Closed.Budget > int64(w.Conns)/4 }, func() string {
						return fmt.Sprintf("connections are closed for the budget: %+v", s.stats())
					})
					for begun := time.Now(); time.Since(begun) < 300*time.Millisecond; {
						if _, ok := s.turn(&p); !ok {
							break
						}
					}
					if p.buffered > budget+turn {
						t.Errorf("%d bytes were buffered, with a limit of %d", p.buffered, budget)
					}
					most := s.before.RSS + 2*(budget+turn) + residentTolerance + keptByLoops(s.stats())
					if model == tcp.Goroutine {
						most += int64(w.Conns) * 16 << 10 // their stacks
					}
					if p.resident > most && !raced {
						t.Errorf("%d bytes were resident, at the beginning %d; expected at most %d", p.resident, s.before.RSS, most)
					}
					t.Logf("at most %.1f MB buffered, %.1f resident; %+v", float64(p.buffered)/1e6, float64(p.resident)/1e6, w.Counts())
					w.Stop()
				})
			})
		})
	}
}

// Peers that send as fast as the server takes it and never read, with the limits
// that there are by default: honest clients are served all the while, and memory is
// what is counted and little more.
func TestNeverReadersAtSpeed(t *testing.T) {
	onModels(t, func(t *testing.T, model string) {
		s := serve(t, spec{Model: model, Socket: smallSockets}, nil)
		s.begin(&Honest{Addr: s.Addr, Conns: many(200)})
		w := s.attack(NeverReadAtSpeed(s.addr, many(3000), floodOfLines))
		var p peak
		longest, turns := time.Duration(0), 0
		for sent, moved := int64(-1), time.Now(); time.Since(moved) < 500*time.Millisecond; turns++ {
			took, ok := s.turn(&p)
			if longest = max(longest, took); !ok {
				break
			}
			if now := w.Counts(); now.Sent != sent || now.Connected < int64(w.Conns) {
				sent, moved = now.Sent, time.Now()
			}
		}
		t.Logf("%d turns, the longest %v; at most %.1f MB buffered, %.1f resident; %+v",
			turns, longest, float64(p.buffered)/1e6, float64(p.resident)/1e6, w.Counts())
		most := s.before.RSS + p.buffered*3/2 + residentTolerance + keptByLoops(s.stats())
		if model == tcp.Goroutine {
			most += int64(w.Conns) * 16 << 10 // their stacks
		}
		if p.resident > most && !raced {
			t.Errorf("%d bytes were resident for %d that were buffered; expected at most %d", p.resident, p.buffered, most)
		}
		w.Stop()
		s.back()
		s.end()
	})
}

// A server that is flooded hears its orders: a shutdown ends with its time, and a
// second order at once; and none blames handlers that have returned.
func TestOrdersUnderFlood(t *testing.T) {
	onModels(t, func(t *testing.T, model string) {
		for _, order := range []string{"shutdown", "close"} {
			t.Run(order, func(t *testing.T) {
				sp := spec{Model: model, Socket: smallSockets, Drain: time.Second, Limits: tcp.Limits{ShutdownRate: 1}} // so that there is no end to it
				s := serve(t, sp, nil)
				w := s.attack(Flood(s.addr, 100, floodOfLines, 0))
				s.within(turnBound, new(peak), func() bool { return w.Counts().Received > 16<<20 }, func() string {
					return fmt.Sprintf("they flood: %+v", w.Counts())
				})
				begun, allowed := time.Now(), sp.Drain+orderTime
				if order == "close" {
					var nothing any
					s.ask("drain", &nothing)
					s.ask("close", &nothing)
					allowed = orderTime
				}
				err := s.Stop()
				took := time.Since(begun)
				t.Logf("the end after %v: %v; %s", took, err, s.Said())
				if took > allowed {
					t.Errorf("the end was after %v; expected within %v", took, allowed)
				}
				if strings.Contains(s.Said(), "have not returned") {
					t.Errorf("it blames handlers that have returned: %s", s.Said())
				}
			})
		}
	})
}
