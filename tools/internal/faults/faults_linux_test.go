package faults

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/internal/sample"
)

// The tests in this file hold what docs/reliability.md promises. What happens at each limit is proven by
// the simulation of package engine and by its conformance suite: here are real attackers, in a process
// that is not the server's, many at a time.

// TestTimeLimits attacks by taking time: peers that drip, fall silent or do not read are closed and counted,
// and nobody else is, though packets are lost, the process is stopped or clocks differ.
func TestTimeLimits(t *testing.T) {
	limits := tcp.Limits{
		FirstByteTimeout: short, IdleTimeout: short, MessageTimeout: time.Second,
		WriteTimeout: time.Second, MaxUnsent: 64 << 10,
	}
	const seconds = "8640000" // that a clock is ahead: 100 days
	run(t, []fault{
		{name: "slow peers", spec: spec{Limits: limits}, descriptors: many(11_500, 200), attack: func(s *subject) {
			s.slowPeers(many(10_000, 50), many(500, 50))
		}},
		{name: "worker processes", spec: spec{Limits: limits, Processes: 2}, descriptors: 200, attack: fewSlowPeers},
		{
			name: "shifted clock", spec: spec{Limits: limits}, descriptors: 200,
			through: []string{"unshare", "--time", "--monotonic", seconds, "--boottime", seconds, "--"},
			attack:  fewSlowPeers,
		},
		{
			name: "cut link", spec: spec{Limits: tcp.Limits{IdleTimeout: short, WriteTimeout: time.Second}},
			descriptors: 50, attack: cutLink,
		},
		{
			name: "lost packets", descriptors: 20,
			honest: func(s *subject) *Honest {
				return &Honest{Conns: 20, Dial: func() (net.Conn, error) {
					c, err := net.Dial("tcp", s.addr.String())
					if err == nil {
						err = lose(c, 0.1)
					}
					return c, err
				}}
			},
			attack: func(s *subject) {
				s.eventually(func() bool { return s.clients.Latency().Max() > 100_000 }, func() string { return "no packet is lost" })
				s.round()
			},
		},
		{
			name: "stopped process", descriptors: 50, attack: stoppedProcess,
			spec: spec{Limits: tcp.Limits{IdleTimeout: short, MessageTimeout: short}},
		},
	})
	t.Run("wall clock", wallClock)
}

func fewSlowPeers(s *subject) { s.slowPeers(50, 50) }

// slowPeers has peers that are slow in each of the ways for which there is a limit of time, so many that drip
// and n of each other.
func (s *subject) slowPeers(drips, n int) {
	begun := time.Now()
	all := []*Swarm{
		Slowloris(s.addr, drips, 300*time.Millisecond),
		HalfOpen(s.addr, n, nil),
		HalfOpen(s.addr, n, []byte("hello\n")),
		NeverRead(s.addr, n, lines, 50*time.Millisecond),
	}
	for _, w := range all {
		s.attack(w)
	}
	closed := func(st tcp.Stats) int64 {
		return st.Closed.Message + st.Closed.FirstByte + st.Closed.Idle + st.Closed.Write + st.Closed.Reset
	}
	s.counts("one is closed", func(st tcp.Stats) bool { return closed(st) > 0 })
	if took := time.Since(begun); took < time.Second {
		s.Errorf("a limit of a second was over after %v", took)
	}
	s.round()
	st := s.counts("all are closed", func(st tcp.Stats) bool { return closed(st) == int64(drips+3*n) })
	// Those that never read may be closed by the kernel's limit, which is as long.
	c := st.Closed
	if c.Message != int64(drips) || c.FirstByte != int64(n) || c.Idle != int64(n) || c.Write+c.Reset != int64(n) {
		s.Errorf("of %d that drip and %d of each other: %+v", drips, n, c)
	}
	if st.Processes != s.spec.Processes || st.Restarts > 0 {
		s.Errorf("worker processes have ended: %+v", st)
	}
	s.lost(all...)
}

// lines are more than what a connection is read for while it is owed.
var lines = bytes.Repeat(append(bytes.Repeat([]byte("r"), 4095), '\n'), 64)

// lose has the kernel drop a share of the packets that come for a connection.
func lose(c net.Conn, share float64) error {
	const random = -0x1000 + 56 // SKF_AD_OFF + SKF_AD_RANDOM
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: random & 0xffffffff},
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: uint32(share * 0xffffffff), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return control(c, func(fd int) error {
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program)
	})
}

// control calls f with a connection's descriptor.
func control(c net.Conn, f func(fd int) error) error {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	return errors.Join(raw.Control(func(fd uintptr) { err = f(int(fd)) }), err)
}

// cutLink has peers whose link is cut without a word: they are found by the idle timeout where they
// are silent, and by the write timeout where they are owed something; by the server's own or,
// counted as broken off, by the kernel's, which is as long.
func cutLink(s *subject) {
	const n = 10
	for i := range 2 * n {
		c := testkit.Dial(s, s.addr.String())
		c.Exchange([]string{"hold", "hello"}[i%2], []string{"hold", "hello"}[i%2])
		if err := lose(c.Conn, 1); err != nil {
			s.Fatal(err)
		}
	}
	var p pushed
	s.ask("push", &p)
	if p.Sent != n {
		s.Fatalf("more is sent to %d connections: %+v", n, p)
	}
	s.round()
	// A silent one whose client's last acknowledgement was cut off is owed something, too.
	s.counts("all are closed", func(st tcp.Stats) bool {
		owed := st.Closed.Write + st.Closed.Reset
		return owed >= n && st.Closed.Idle > 0 && owed+st.Closed.Idle == 2*n
	})
	s.order("release")
}

// stoppedProcess stops the server for longer than its limits. It does not blame its peers: what they have
// sent meanwhile is read before it is judged how long they have been silent.
func stoppedProcess(s *subject) {
	const n = 20
	halves := make([]*testkit.Conn, n)
	for i := range halves {
		halves[i] = testkit.Dial(s, s.addr.String())
	}
	for _, c := range halves {
		c.Exchange("hello", "hello")
		c.Send("half a ")
	}
	s.process.Signal(unix.SIGSTOP)
	stopped := time.Now()
	for _, c := range halves {
		c.Send("line\n")
	}
	testkit.WaitFor(s, "the limits are over", func() bool { return time.Since(stopped) > short*5/4 })
	s.process.Signal(unix.SIGCONT)
	for _, c := range halves {
		if got := c.ReadLine(); got != "half a line" {
			s.Fatalf("got %q, want the line of which half was sent while the process was stopped", got)
		}
	}
	s.round()
	s.counts("those that have nothing more to say are idle", func(st tcp.Stats) bool { return st.Closed.Idle == n })
}

// wallClock looks for uses of the wall clock, which can jump, in what serves. Time limits are kept on the
// monotonic clock, which time.Now reads too and which differences of its results use, as long as nothing
// takes that reading away.
func wallClock(t *testing.T) {
	use := regexp.MustCompile(`\.(Unix|UnixMilli|UnixMicro|UnixNano|UTC|Local)\(\)|\.AddDate\(|\.(Round|Truncate)\(0\)|` +
		`time\.(Date|Parse|ParseInLocation)\(|Gettimeofday|ClockSettime|CLOCK_(REALTIME|TAI)`)
	files := 0
	for _, pkg := range []string{"tcp", "internal/engine", "internal/admission", "internal/sock", "internal/supervisor"} {
		err := filepath.WalkDir(filepath.Join("../../..", pkg), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (d.Name() == "tcptest" || d.Name() == "testdata" || d.Name() == "enginetest"):
				return fs.SkipDir
			case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			files++
			source, err := os.ReadFile(path)
			if found := use.Find(source); found != nil {
				t.Errorf("%s: %s: what serves uses time.Now, Since, Until and Sub alone", path, found)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 50 {
		t.Errorf("only %d files were looked at", files)
	}
}

// TestMemoryLimits attacks by taking memory: what one connection may have is bounded, and what all have together.
func TestMemoryLimits(t *testing.T) {
	const unread = 64 << 10
	run(t, []fault{
		{
			name: "readers that never read", descriptors: 50,
			spec: spec{Limits: tcp.Limits{
				MaxUnsent: unread, MaxMessage: unread, WriteTimeout: tcp.Never, MessageTimeout: tcp.Never,
			}},
			attack: func(s *subject) {
				const n = 50
				w := s.attack(NeverRead(s.addr, n, lines, 20*time.Millisecond))
				// Twice, because buffers grow by doubling, and two reads more.
				allowed := int64(2*(unread+unread) + 128<<10)
				if s.spec.Model == tcp.Uring {
					allowed += 32 * 64 << 10 // what one multishot receive may fill before it can be stopped
				}
				most, last, moved := int64(0), int64(-1), time.Now()
				s.eventually(func() bool {
					st := s.stats()
					most = max(most, st.Buffered)
					if sent := w.Counts().Sent; sent == 0 || sent != last {
						last, moved = sent, time.Now()
					}
					// In the goroutine model a goroutine waits for its peer instead.
					paused := st.Paused >= n/2 || s.spec.Model == tcp.Goroutine
					return paused && time.Since(moved) > 400*time.Millisecond
				}, func() string { return fmt.Sprintf("they are paused, and the kernel takes no more: %+v", s.stats()) })
				if most > n*allowed {
					s.Errorf("connections that may have %d bytes of output and as many of input had buffers of %d each", unread, most/n)
				}
				s.gone(w)
			},
		},
		{name: "one connection", descriptors: 260, spec: spec{Limits: tcp.Limits{MaxMessage: 32 << 10}}, attack: greedyPeers},
		{name: "Refs", descriptors: 100, attack: keptRefs},
		{
			name: "output of all", spec: spec{Socket: smallSockets, Limits: tcp.Limits{MaxBuffered: many(1500, 200) * 10 << 10}},
			attack: func(s *subject) { s.overBudget(NeverReadAtSpeed(s.addr, many(1500, 200), lines)) },
		},
		{
			name: "input of all", spec: spec{Loops: 4, Limits: tcp.Limits{MaxBuffered: 16 << 20, MaxMessage: 256 << 10}},
			attack: func(s *subject) {
				w := HalfOpen(s.addr, many(1500, 200), bytes.Repeat([]byte("i"), 200<<10))
				w.Greedy = true
				s.overBudget(w)
			},
		},
	})
}

// greedyPeers ask for more than a connection may have: of input, of output that they take, and of
// output that they do not take. Noise alone is no reason to close.
func greedyPeers(s *subject) {
	const n = 60
	long, zeros := s.attack(LongLines(s.addr, n, 'x', 20*time.Millisecond)), s.attack(LongLines(s.addr, n, 0, 20*time.Millisecond))
	noise := s.attack(Garbage(s.addr, n, 1, 20*time.Millisecond))
	consumers := s.attack(NeverRead(s.addr, n, []byte("flood 30000000\n"), 100*time.Millisecond))
	s.counts("all are closed", func(st tcp.Stats) bool { return st.Closed.TooLong == 2*n && st.Closed.SlowConsumer == n })
	s.lost(long, zeros, consumers)
	s.swarmed(noise, "lines in noise are echoed", func(c SwarmCounts) bool { return c.Received > 1<<20 })
	if c := noise.Counts(); c.Lost > 0 {
		s.Errorf("noise with short lines is no reason to close: %+v", c)
	}
	s.gone(noise)
	for _, w := range []*Swarm{
		{First: []byte("half a line"), Stream: []byte("\n")}, // so many small buffers at a time
		{First: []byte("flood 1000000\n")},                   // and so many large ones
	} {
		w.Target, w.Conns, w.Every = s.addr, n, 200*time.Millisecond
		s.attack(w)
		s.swarmed(w, "all are answered", func(c SwarmCounts) bool { return c.Answered == n })
		s.gone(w)
	}
}

// keptRefs has the handler keep the Ref of each connection for ever: it keeps a name that answers ErrClosed, not
// what made up the connection.
func keptRefs(s *subject) {
	const n = 3000
	w := s.attack(&Swarm{
		Target: s.addr, Conns: 100, Every: 20 * time.Millisecond, Most: n,
		First: []byte("hold\n"), Acts: 3, Redial: true,
	})
	s.swarmed(w, "connections come and go", func(c SwarmCounts) bool { return c.Left == n })
	// The last ones may have gone before the server has taken them.
	s.counts("all have come and are gone", func(st tcp.Stats) bool {
		return st.Open == s.counted.Open && st.Accepted-s.counted.Accepted == n
	})
	s.back() // with all Refs held
	var p pushed
	if s.ask("push", &p); p != (pushed{Closed: n}) {
		s.Errorf("sent to %d Refs of closed connections: %+v", n, p)
	}
	s.order("release")
}

// smallSockets keep what floods leave in the kernel far from net.ipv4.tcp_mem, beyond which it resets
// connections of other programs too.
var smallSockets = tcp.Socket{SendBuffer: 32 << 10, ReceiveBuffer: 32 << 10}

// overBudget has a swarm do its best to have more buffered than MaxBuffered. That holds at every moment, but
// for what one turn of the loops brings, and those who have the most are closed.
func (s *subject) overBudget(w *Swarm) {
	turn := int64(max(s.counted.Loops, 1)) * 64 * (64 + 128) << 10 // events, with input and output
	w.Redial, w.Every = true, 100*time.Millisecond
	s.attack(w)
	var p peak
	s.counts("connections are closed for the budget", func(st tcp.Stats) bool {
		p.look(s)
		return st.Closed.Budget > int64(w.Conns)/4
	})
	for range 5 {
		s.turn(&p)
	}
	budget := int64(s.spec.Limits.MaxBuffered)
	if p.buffered > budget+turn {
		s.Errorf("%d bytes were buffered, with a limit of %d", p.buffered, budget)
	}
	s.wantResident(&p, w, 2*(budget+turn))
	s.gone(w)
}

// wantResident checks that a server under attack has had so much more memory than before at most, and what
// its loops and goroutines keep.
func (s *subject) wantResident(p *peak, w *Swarm, more int64) {
	s.Helper()
	most := s.before.RSS + more + residentTolerance + keptByLoops(s.stats())
	if s.spec.Model == tcp.Goroutine {
		most += int64(w.Conns) * 16 << 10 // their stacks
	}
	if p.resident > most && !raced {
		s.Errorf("%d bytes were resident, at the beginning %d; expected at most %d", p.resident, s.before.RSS, most)
	}
	s.Logf("at most %.1f MB buffered, %.1f resident; %+v", float64(p.buffered)/1e6, float64(p.resident)/1e6, w.Counts())
}

// TestAdmission attacks by connecting: connections that are reset, more at once than the kernel's queue takes,
// more than MaxConns, and more than there are descriptors.
func TestAdmission(t *testing.T) {
	backlog, crowd := many(4096, 200), many(4596, 400)
	run(t, []fault{
		{name: "resets", descriptors: 150, attack: resetStorms},
		{
			name: "full queue", spec: spec{Loops: 1, Backlog: backlog}, descriptors: crowd,
			attack: func(s *subject) { s.crowd(backlog, crowd) },
		},
		{
			name: "MaxConns", spec: spec{Limits: tcp.Limits{MaxConns: 100}}, descriptors: 200,
			attack: func(s *subject) {
				w := HalfOpen(s.addr, 200, []byte("hello\n"))
				w.Redial, w.Every = true, 100*time.Millisecond
				s.attack(w)
				s.counts("connections are refused", func(st tcp.Stats) bool { return st.Refused.Full > 400 && st.Open == 100 })
				s.round()
				s.gone(w)
			},
		},
		{
			name: "descriptors", spec: spec{MaxOpenDescriptors: 120, Limits: tcp.Limits{MaxConns: 800}}, descriptors: 200,
			attack: noDescriptors,
		},
	})
}

// resetStorms reset connections as soon as they are made, or with a request under way.
func resetStorms(s *subject) {
	const rate, most = 4000, 2000
	made := int64(0)
	for _, request := range []string{"", "hello\n"} {
		w := s.attack(ResetStorm(s.addr, rate, most, []byte(request)))
		made += most
		s.swarmed(w, "connections are made and reset", func(c SwarmCounts) bool { return c.Left+c.Lost+c.Failed == most })
		s.round()
		s.counts("each connection is closed as reset", func(st tcp.Stats) bool {
			taken := st.Accepted - s.counted.Accepted
			return taken >= made*9/10 && taken <= made && st.Closed.Reset == taken && st.Open == s.counted.Open
		})
	}
}

// crowd has more connect at once than the kernel's queue takes: all are served in the end. The server
// is stopped meanwhile, so that the queue fills for certain.
func (s *subject) crowd(backlog, n int) {
	s.process.Signal(unix.SIGSTOP)
	w := s.attack(ConnectStorm(s.addr, n, []byte("hello\n")))
	s.swarmed(w, "the queue is filled", func(c SwarmCounts) bool { return c.Made == int64(n) && c.Connected >= int64(backlog) })
	if c := w.Counts(); c.Connected >= int64(n) {
		s.Errorf("%d connections are established with a queue of %d: it is not full", c.Connected, backlog)
	}
	s.process.Signal(unix.SIGCONT)
	s.swarmed(w, "all are answered", func(c SwarmCounts) bool { return c.Answered == int64(n) && c.Received == 6*int64(n) })
	if c, st := w.Counts(), s.stats(); c.Lost+c.Failed > 0 || st.Refused.Total() > 0 {
		s.Errorf("connections are refused: %+v, %+v", c, st)
	}
	s.gone(w)
}

// noDescriptors takes all descriptors: the server goes on serving, does not spin, and accepts again when some
// are free.
func noDescriptors(s *subject) {
	w := s.attack(HalfOpen(s.addr, 200, []byte("hello\n")))
	s.counts("descriptors run out", func(st tcp.Stats) bool { return st.AcceptErrors > 0 && st.Open > 60 })
	s.round()
	cpu := func() time.Duration {
		taken, err := sample.Take(sample.CPU, s.process.Process.Pid)
		if err != nil {
			s.Fatal(err)
		}
		return taken.Processes[0].CPU()
	}
	begun, before, used := time.Now(), s.stats().AcceptErrors, cpu()
	testkit.WaitFor(s, "half a second has passed", func() bool { return time.Since(begun) > 500*time.Millisecond })
	took, errs, work := time.Since(begun), s.stats().AcceptErrors-before, cpu()-used
	if errs > took.Milliseconds() || work > took*7/10 && !raced {
		s.Errorf("in %v accept failed %d times, and took %v of processor time: it spins", took, errs, work)
	}
	w.Stop()
	for range 50 {
		c := testkit.Dial(s, s.addr.String())
		c.Exchange("hello", "hello")
		defer c.Close()
	}
	s.counts("those that come later are served", func(st tcp.Stats) bool { return st.Open == s.counted.Open+50 })
}

// TestFairness attacks by sending as fast as the server takes it: nobody else starves, and those who come later
// are served too.
func TestFairness(t *testing.T) {
	run(t, []fault{{
		name: "floods", spec: spec{Socket: smallSockets}, auto: true,
		honest: func(*subject) *Honest { return &Honest{Conns: 200} },
		attack: func(s *subject) {
			s.flooded(Flood(s.addr, many(1000, 200), lines, 0))
			if s.spec.Model == tcp.Auto { // its models have had the others
				return
			}
			s.flooded(Flood(s.addr, 10, lines, 0))
			s.flooded(Flood(s.addr, 100, lines, pipelined))
			s.neverRead(NeverReadAtSpeed(s.addr, many(3000, 200), lines))
		},
	}})
}

const (
	// pipelined is how much is under way on each connection of a pipelined flood.
	pipelined = 128 << 10
	// newcomerBound is how long a new one waits for its first answer.
	newcomerBound = 3 * time.Second
)

// flooded checks that nobody starves while a swarm floods.
func (s *subject) flooded(w *Swarm) {
	s.Helper()
	s.attack(w)
	s.swarmed(w, "they flood", func(c SwarmCounts) bool { return c.Connected == int64(w.Conns) && c.Received > 8<<20 })
	var p peak
	longest := max(s.turn(&p), s.turn(&p), s.turn(&p))
	wait, err := s.newcomer(newcomerBound)
	if err != nil {
		s.Errorf("one that comes later: %v", err)
	}
	s.Logf("%d connections that flood, %d ahead: all honest clients had two answers within %v; a new one its first after %v; %+v",
		w.Conns, w.Ahead, longest, wait, w.Counts())
	s.gone(w)
}

// neverRead has peers send and never read, with the limits that there are by default, until the kernel takes no
// more: honest clients are served all the while, and memory is what is counted and little more.
func (s *subject) neverRead(w *Swarm) {
	s.Helper()
	s.attack(w)
	var p peak
	for sent, moved := int64(-1), time.Now(); time.Since(moved) < 300*time.Millisecond; {
		s.turn(&p)
		if now := w.Counts(); now.Sent != sent || now.Connected < int64(w.Conns) {
			sent, moved = now.Sent, time.Now()
		}
	}
	s.wantResident(&p, w, p.buffered*3/2)
	s.gone(w)
}

// TestHandlers attacks by what handlers do: those that panic or never return cost their own connections, and
// nobody else waits for them.
func TestHandlers(t *testing.T) {
	run(t, []fault{{
		name: "faulty", auto: true, descriptors: 100,
		// Each loop under Auto finds out for itself that handlers block, so there is one.
		spec: spec{Workers: 32, Loops: 1, Drain: 300 * time.Millisecond, Limits: tcp.Limits{HandlerTime: 100 * time.Millisecond}},
		ends: func(s *subject) {
			s.begin(&Honest{Conns: 20, Think: 10 * time.Millisecond})
			for i, line := range []string{"panic\n", "goexit\n"} {
				w := s.attack(HalfOpen(s.addr, 50, []byte(line)))
				s.counts("all are closed", func(st tcp.Stats) bool {
					return st.Closed.Panic == 50*int64(i+1) && st.Panics == st.Closed.Panic
				})
				s.lost(w)
			}
			s.block()
			s.order("release")
			s.gone()
			s.round()
			s.back()
			s.block()
			if r := s.clients.Stop(); r.First != nil {
				s.Errorf("honest clients: %+v", r)
			}
			s.orders.Close()
			const want = "and 16 are still open because of handlers that have not returned"
			if code := s.process.ExitCode(); code == 0 || !strings.Contains(s.process.Output.String(), want) {
				s.Errorf("a shutdown with 16 handlers that do not return: exit code %d\n%s", code, s.process.Output)
			}
		},
	}})
}

// block has the handler of 16 connections block whose peers then leave. Before, handlers sleep: so under Auto all
// are moved to workers, where they stay while calls are out.
func (s *subject) block() {
	s.Helper()
	slow := s.stats().SlowHandlers
	sleeping := s.attack(&Swarm{Target: s.addr, Conns: 4, Stream: []byte("sleep 150ms\n"), Every: 200 * time.Millisecond})
	s.counts("slow handlers are counted", func(st tcp.Stats) bool {
		return st.SlowHandlers > slow && (s.spec.Model != tcp.Auto || st.OnWorkers > 0)
	})
	held := s.attack(HalfOpen(s.addr, 16, []byte("block\n")))
	s.swarmed(held, "all have asked", func(c SwarmCounts) bool { return c.Sent == 16*6 })
	s.round()
	sleeping.Stop()
	held.Stop()
	s.counts("those that block are left", func(st tcp.Stats) bool { return st.Open == s.counted.Open+16 })
	s.round()
	if st := s.stats(); s.spec.Model == tcp.Auto && st.OnWorkers == 0 {
		s.Errorf("handlers are called on their loop while 16 calls have not returned: %+v", st)
	}
}

// TestOrders attacks while orders are given: each is obeyed in its time, and costs nobody an answer.
func TestOrders(t *testing.T) {
	flooded := spec{Socket: smallSockets, Drain: time.Second, Limits: tcp.Limits{ShutdownRate: 1}} // so that there is no end to it
	run(t, []fault{
		{name: "shutdown under flood", spec: flooded, ends: func(s *subject) { s.endFlooded(s.spec.Drain) }},
		{name: "close under flood", spec: flooded, ends: func(s *subject) { s.endFlooded(0, "drain", "close") }},
		{name: "drain", auto: true, descriptors: 100, spec: spec{Workers: 8, Loops: 1}, ends: drained},
		{
			name: "worker killed", spec: spec{Processes: 2}, descriptors: 30,
			honest: func(*subject) *Honest { return &Honest{Conns: 30, Think: 5 * time.Millisecond, Redial: true} },
			attack: func(s *subject) {
				victim := testkit.Dial(s, s.addr.String())
				victim.Send("pid\n")
				pid, err := strconv.Atoi(victim.ReadLine())
				if err != nil {
					s.Fatal(err)
				}
				if err := unix.Kill(pid, unix.SIGKILL); err != nil {
					s.Fatal(err)
				}
				victim.ExpectClosed()
				s.counts("the worker is started again, and its clients are back", func(st tcp.Stats) bool {
					return st.Restarts == 1 && st.Processes == 2 && st.Open == 30
				})
				if r := s.clients.Report(); r.Wrong > 0 || r.Lost == 0 || r.Lost == 30 {
					s.Errorf("one of two workers was killed, with some of 30 connections: %+v", r)
				}
			},
		},
	})
}

// endFlooded checks that a server that is flooded hears its orders, and ends in the time that it has: a
// shutdown at its end, a close at once. It does not blame handlers that have returned.
func (s *subject) endFlooded(allowed time.Duration, orders ...string) {
	const orderTime = 2 * time.Second // many times what it takes on a machine at rest
	w := s.attack(Flood(s.addr, 100, lines, 0))
	s.swarmed(w, "they flood", func(c SwarmCounts) bool { return c.Received > 16<<20 })
	begun := time.Now()
	for _, order := range orders {
		s.order(order)
	}
	s.orders.Close()
	s.process.ExitCode()
	took := time.Since(begun)
	s.Logf("the end after %v: %s", took, s.process.Output)
	if took > allowed+orderTime {
		s.Errorf("the end was after %v; expected within %v", took, allowed+orderTime)
	}
	if strings.Contains(s.process.Output.String(), "have not returned") {
		s.Errorf("it blames handlers that have returned: %s", s.process.Output)
	}
}

// drained has clients send about as much as a socket takes while handlers are at work for some time, and then
// stops the server: what the kernel has received is answered before the end, wherever handlers run.
func drained(s *subject) {
	if s.spec.Model == tcp.Auto {
		s.attack(&Swarm{Target: s.addr, Conns: 4, Stream: []byte("sleep 150ms\n"), Every: 200 * time.Millisecond})
		s.counts("handlers have moved to workers", func(st tcp.Stats) bool { return st.OnWorkers > 0 })
	}
	text := "sleep 20ms\n"
	for n := range 100 { // more than is read at once
		text += fmt.Sprintf("%01023d\n", n)
	}
	all := make([]*testkit.Conn, 100)
	for i := range all {
		all[i] = testkit.Dial(s, s.addr.String())
		all[i].Exchange("hello", "hello")
	}
	for _, c := range all {
		c.Send(text)
	}
	for _, c := range all {
		testkit.WaitFor(s, "the server's kernel has all that was sent", func() bool {
			left := -1
			err := control(c.Conn, func(fd int) (err error) { left, err = unix.IoctlGetInt(fd, unix.SIOCOUTQ); return err })
			return err == nil && left == 0
		})
	}
	s.orders.Close()
	for _, c := range all {
		c.ExpectEOF(text)
	}
	s.shut()
}

// Clients of servers that answer wrongly, or no more, notice it: so the honest clients of the tests above do.
func TestHonestNotices(t *testing.T) {
	if (&Honest{}).Start() == nil || (&Swarm{Conns: 1}).Start() == nil {
		t.Error("clients have started without a server")
	}
	for answer, want := range map[string]Report{"wrong\n": {Wrong: 1}, "": {Lost: 1}} {
		h := &Honest{Conns: 1, Dial: func() (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() {
				defer theirs.Close()
				if _, err := theirs.Read(make([]byte, 1024)); err == nil {
					theirs.Write([]byte(answer))
				}
			}()
			return ours, nil
		}}
		if err := h.Start(); err != nil {
			t.Fatal(err)
		}
		h.ended.Wait()
		if got := h.Stop(); got.First == nil || got.Wrong != want.Wrong || got.Lost != want.Lost || got.Answers > 0 {
			t.Errorf("answered %q: %+v, want %+v", answer, got, want)
		}
	}
}

// A Namespace has its own loopback, which is up, and nothing else.
func TestNamespace(t *testing.T) {
	if _, err := OpenNamespace("/nowhere"); err == nil {
		t.Error("a namespace that is not there was opened")
	}
	n, err := NewNamespace()
	if err != nil && os.Geteuid() != 0 {
		t.Skip("network namespaces: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	var all []net.Interface
	if err := n.Do(func() (err error) { all, err = net.Interfaces(); return err }); err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].Flags&(net.FlagLoopback|net.FlagUp) != net.FlagLoopback|net.FlagUp {
		t.Errorf("it has %+v; want loopback alone, up", all)
	}
}
