package faults

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/internal/sample"
)

// These tests prove what docs/reliability.md promises. The simulation and the conformance suite of package
// engine test each limit precisely; here many real attackers run in a process separate from the server.

// TestTimeLimits attacks with slowness: peers that drip, fall silent or do not read are closed and counted,
// and nobody else is, even if packets are lost, the process is stopped or clocks differ.
func TestTimeLimits(t *testing.T) {
	limits := tcp.Limits{
		FirstByteTimeout: shortTimeout, IdleTimeout: shortTimeout, MessageTimeout: time.Second,
		WriteTimeout: time.Second, MaxUnsent: 64 << 10,
	}
	const seconds = "8640000" // the clock is 100 days ahead
	runFaults(t, []faultCase{
		{name: "slow peers", spec: serverSpec{Limits: limits}, descriptors: attackerCount(11_500, 200), attack: func(s *testServer) {
			s.testSlowPeers(attackerCount(10_000, 50), attackerCount(500, 50))
		}},
		{name: "worker processes", spec: serverSpec{Limits: limits, Processes: 2}, descriptors: 200, attack: testFewSlowPeers},
		{
			name: "shifted clock", spec: serverSpec{Limits: limits}, descriptors: 200,
			wrapper: []string{"unshare", "--time", "--monotonic", seconds, "--boottime", seconds, "--"},
			attack:  testFewSlowPeers,
		},
		{
			name: "cut link", spec: serverSpec{Limits: tcp.Limits{IdleTimeout: shortTimeout, WriteTimeout: time.Second}},
			descriptors: 50, attack: testCutLink, needsRoot: true,
		},
		{
			name: "lost packets", descriptors: 20, needsRoot: true,
			honest: func(s *testServer) *HonestClients {
				return &HonestClients{Conns: 20, Dial: func() (net.Conn, error) {
					c, err := net.Dial("tcp", s.addr.String())
					if err == nil {
						err = dropPackets(c, 0.1)
					}
					return c, err
				}}
			},
			attack: func(s *testServer) {
				testkit.WaitForFunc(s, func() bool { return s.clients.TakeLatency().Max() > 100_000 }, func() string { return "no packet is lost" })
				s.waitEachClientAnswered()
			},
		},
		{
			name: "stopped process", descriptors: 50, attack: testStoppedProcess,
			spec: serverSpec{Limits: tcp.Limits{IdleTimeout: shortTimeout, MessageTimeout: shortTimeout}},
		},
	})
	t.Run("wall clock", testNoWallClock)
}

func testFewSlowPeers(s *testServer) { s.testSlowPeers(50, 50) }

// testSlowPeers runs peers that are slow in each way for which there is a time limit: drips that drip and n
// of each other kind.
func (s *testServer) testSlowPeers(drips, n int) {
	begun := time.Now()
	all := []*Swarm{
		Slowloris(s.addr, drips, 300*time.Millisecond),
		HalfOpen(s.addr, n, nil),
		HalfOpen(s.addr, n, []byte("hello\n")),
		NeverRead(s.addr, n, floodLines, 50*time.Millisecond),
	}
	for _, w := range all {
		s.startSwarm(w)
	}
	closed := func(st tcp.Stats) int64 {
		return st.Closed.Message + st.Closed.FirstByte + st.Closed.Idle + st.Closed.Write + st.Closed.Reset
	}
	s.waitForStats("one is closed", func(st tcp.Stats) bool { return closed(st) > 0 })
	if took := time.Since(begun); took < time.Second {
		s.Errorf("a limit of a second was over after %v", took)
	}
	s.waitEachClientAnswered()
	st := s.waitForStats("all are closed", func(st tcp.Stats) bool { return closed(st) == int64(drips+3*n) })
	// The kernel's limit, which is the same, may close peers that never read.
	c := st.Closed
	if c.Message != int64(drips) || c.FirstByte != int64(n) || c.Idle != int64(n) || c.Write+c.Reset != int64(n) {
		s.Errorf("of %d that drip and %d of each other: %+v", drips, n, c)
	}
	if st.Processes != s.spec.Processes || st.Restarts > 0 {
		s.Errorf("worker processes have ended: %+v", st)
	}
	s.waitAllConnsLost(all...)
}

// floodLines exceed what is read from a connection that does not read its output.
var floodLines = bytes.Repeat(append(bytes.Repeat([]byte("r"), 4095), '\n'), 64)

// dropPackets makes the kernel drop a share of the packets received by a connection.
func dropPackets(c net.Conn, share float64) error {
	const random = -0x1000 + 56 // SKF_AD_OFF + SKF_AD_RANDOM
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: random & 0xffffffff},
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: uint32(share * 0xffffffff), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return withDescriptor(c, func(fd int) error {
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program)
	})
}

func withDescriptor(c net.Conn, f func(fd int) error) error {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	return errors.Join(raw.Control(func(fd uintptr) { err = f(int(fd)) }), err)
}

// testCutLink silently cuts links. The idle timeout finds silent peers. Peers with pending output are
// found by the write timeout of the server or of the kernel, which is the same and counts as a reset.
func testCutLink(s *testServer) {
	const n = 10
	for i := range 2 * n {
		c := testkit.Dial(s, s.addr.String())
		c.ExchangeLine([]string{"hold", "hello"}[i%2], []string{"hold", "hello"}[i%2])
		testkit.RequireNoError(s, dropPackets(c.Conn, 1))
	}
	var p pushResult
	s.sendOrder("push", &p)
	if p.Sent != n {
		s.Fatalf("more is sent to %d connections: %+v", n, p)
	}
	s.waitEachClientAnswered()
	// A silent peer whose last acknowledgement was dropped has pending output, too.
	s.waitForStats("all are closed", func(st tcp.Stats) bool {
		owed := st.Closed.Write + st.Closed.Reset
		return owed >= n && st.Closed.Idle > 0 && owed+st.Closed.Idle == 2*n
	})
	s.sendOrderDiscardReply("release")
}

// testStoppedProcess stops the server for longer than its limits. The server does not blame its peers: it
// reads what they have sent meanwhile before it checks their idle time.
func testStoppedProcess(s *testServer) {
	const n = 20
	halves := make([]*testkit.Conn, n)
	for i := range halves {
		halves[i] = testkit.Dial(s, s.addr.String())
	}
	for _, c := range halves {
		c.ExchangeLine("hello", "hello")
		c.Send("half a ")
	}
	s.process.Signal(unix.SIGSTOP)
	stopped := time.Now()
	for _, c := range halves {
		c.Send("line\n")
	}
	testkit.WaitFor(s, "the limits are over", func() bool { return time.Since(stopped) > shortTimeout*5/4 })
	s.process.Signal(unix.SIGCONT)
	for _, c := range halves {
		if got := c.ReadLine(); got != "half a line" {
			s.Fatalf("got %q, want the line of which half was sent while the process was stopped", got)
		}
	}
	s.waitEachClientAnswered()
	s.waitForStats("those that have nothing more to say are idle", func(st tcp.Stats) bool { return st.Closed.Idle == n })
}

// testNoWallClock searches serving code for uses of the wall clock, which can jump. Time limits use the
// monotonic reading of time.Now, as long as nothing strips it.
func testNoWallClock(t *testing.T) {
	const use = `\.(Unix|UnixMilli|UnixMicro|UnixNano|UTC|Local)\(\)|\.AddDate\(|\.(Round|Truncate)\(0\)|` +
		`time\.(Date|Parse|ParseInLocation)\(|Gettimeofday|ClockSettime|CLOCK_(REALTIME|TAI)`
	search := func(expr string) string {
		cmd := exec.Command("grep", "-rnE", expr, "tcp", "internal/engine", "internal/admission", "internal/sock", "internal/supervisor",
			"--include=*.go", "--exclude=*_test.go", "--exclude-dir=tcptest", "--exclude-dir=testdata", "--exclude-dir=enginetest")
		cmd.Dir = "../../.."
		out, err := cmd.Output()
		if ended, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || ended.ExitCode() != 1) {
			t.Fatal(err)
		}
		return string(out)
	}
	if found := search(use); found != "" {
		t.Errorf("what serves uses time.Now, Since, Until and Sub alone; this does more:\n%s", found)
	}
	if n := strings.Count(search("^package "), "\n"); n < 50 {
		t.Errorf("only %d files were looked at", n)
	}
}

// TestMemoryLimits attacks memory: what a connection may use is limited, and so is the total.
func TestMemoryLimits(t *testing.T) {
	const unread = 64 << 10
	runFaults(t, []faultCase{
		{
			name: "readers that never read", descriptors: 50,
			spec: serverSpec{Limits: tcp.Limits{
				MaxUnsent: unread, MaxMessage: unread, WriteTimeout: tcp.Never, MessageTimeout: tcp.Never,
			}},
			attack: func(s *testServer) { s.testNeverReaders(unread) },
		},
		{name: "one connection", descriptors: 260, spec: serverSpec{Limits: tcp.Limits{MaxMessage: 32 << 10}}, attack: testGreedyPeers},
		{name: "Refs", descriptors: 100, attack: testKeptRefs},
		{
			name: "output of all", spec: serverSpec{Socket: smallSockets, Limits: tcp.Limits{MaxBuffered: attackerCount(1500, 200) * 10 << 10}},
			attack: func(s *testServer) {
				s.testBufferBudget(NeverReadAtSpeed(s.addr, attackerCount(1500, 200), floodLines))
			},
		},
		{
			name: "input of all", spec: serverSpec{Loops: 4, Limits: tcp.Limits{MaxBuffered: 16 << 20, MaxMessage: 256 << 10}},
			attack: func(s *testServer) {
				w := HalfOpen(s.addr, attackerCount(1500, 200), bytes.Repeat([]byte("i"), 200<<10))
				w.FullSpeed = true
				s.testBufferBudget(w)
			},
		},
	})
}

// testNeverReaders has peers send and never read, whose connections may have unread bytes of input and of output.
func (s *testServer) testNeverReaders(unread int64) {
	const n = 50
	w := s.startSwarm(NeverRead(s.addr, n, floodLines, 20*time.Millisecond))
	allowed := 2*(unread+unread) + 128<<10 // twice, because buffers grow by doubling, and two more reads
	if s.spec.Model == tcp.Uring {
		allowed += 32 * 64 << 10 // what a multishot receive may fill before it is stopped
	}
	most, last, moved := int64(0), int64(-1), time.Now()
	s.waitForStats("they are paused, and the kernel takes no more", func(st tcp.Stats) bool {
		most = max(most, st.Buffered)
		if sent := w.Counts().Sent; sent == 0 || sent != last {
			last, moved = sent, time.Now()
		}
		// In the goroutine model a goroutine waits for its peer instead.
		paused := st.Paused >= n/2 || s.spec.Model == tcp.Goroutine
		return paused && time.Since(moved) > 400*time.Millisecond
	})
	if most > n*allowed {
		s.Errorf("connections that may have %d bytes of output and as many of input had buffers of %d each", unread, most/n)
	}
	s.stopSwarms(w)
}

// testGreedyPeers exceeds the limits of a connection for input, for output that is read, and for output that
// is not read. Garbage in short lines is not a reason to close.
func testGreedyPeers(s *testServer) {
	const n = 60
	long, zeros := s.startSwarm(LongLines(s.addr, n, 'x', 20*time.Millisecond)), s.startSwarm(LongLines(s.addr, n, 0, 20*time.Millisecond))
	noise := s.startSwarm(Garbage(s.addr, n, 1, 20*time.Millisecond))
	consumers := s.startSwarm(NeverRead(s.addr, n, []byte("flood 30000000\n"), 100*time.Millisecond))
	s.waitForStats("all are closed", func(st tcp.Stats) bool { return st.Closed.TooLong == 2*n && st.Closed.SlowConsumer == n })
	s.waitAllConnsLost(long, zeros, consumers)
	s.waitForSwarm(noise, "lines in noise are echoed", func(c SwarmCounts) bool { return c.Received > 1<<20 })
	if c := noise.Counts(); c.Lost > 0 {
		s.Errorf("noise with short lines is no reason to close: %+v", c)
	}
	s.stopSwarms(noise)
	for _, w := range []*Swarm{
		{First: []byte("half a line"), Stream: []byte("\n")}, // many small buffers at a time
		{First: []byte("flood 1000000\n")},                   // and many large ones
	} {
		w.Target, w.Conns, w.Interval = s.addr, n, 200*time.Millisecond
		s.startSwarm(w)
		s.waitForSwarm(w, "all are answered", func(c SwarmCounts) bool { return c.Answered == n })
		s.stopSwarms(w)
	}
}

// testKeptRefs keeps the Ref of each connection forever: that keeps an identifier for which Send returns
// ErrClosed, but not the memory of the connection.
func testKeptRefs(s *testServer) {
	const n = 3000
	w := s.startSwarm(&Swarm{
		Target: s.addr, Conns: 100, Interval: 20 * time.Millisecond, MaxDials: n,
		First: []byte("hold\n"), MaxActs: 3, Redial: true,
	})
	s.waitForSwarm(w, "connections come and go", func(c SwarmCounts) bool { return c.Closed == n })
	// The last ones may have closed before the server accepted them.
	s.waitForStats("all have come and are gone", func(st tcp.Stats) bool {
		return st.Open == s.statsBefore.Open && st.Accepted-s.statsBefore.Accepted == n
	})
	s.waitResourcesReleased() // while all Refs are held
	var p pushResult
	if s.sendOrder("push", &p); p != (pushResult{Closed: n}) {
		s.Errorf("sent to %d Refs of closed connections: %+v", n, p)
	}
	s.sendOrderDiscardReply("release")
}

// smallSockets keep the memory of floods in the kernel far below net.ipv4.tcp_mem, beyond which it resets
// connections of other programs, too.
var smallSockets = tcp.Socket{SendBuffer: 32 << 10, ReceiveBuffer: 32 << 10}

// testBufferBudget has a swarm try to exceed MaxBuffered. The limit holds at any moment, apart from the input
// and output of one iteration of the loops, and the connections with the most are closed.
func (s *testServer) testBufferBudget(w *Swarm) {
	turn := int64(max(s.statsBefore.Loops, 1)) * 64 * (64 + 128) << 10 // input and output of 64 events
	w.Redial, w.Interval = true, 100*time.Millisecond
	s.startSwarm(w)
	var p peakUsage
	s.waitForStats("connections are closed for the budget", func(st tcp.Stats) bool {
		p.record(s)
		return st.Closed.Budget > int64(w.Conns)/4
	})
	for range 5 {
		s.measureAnswerRound(&p)
	}
	budget := int64(s.spec.Limits.MaxBuffered)
	if p.buffered > budget+turn {
		s.Errorf("%d bytes were buffered, with a limit of %d", p.buffered, budget)
	}
	s.checkResidentMemory(&p, w, 2*(budget+turn))
	s.stopSwarms(w)
}

// checkResidentMemory checks that a server under attack uses at most allowedGrowth more memory than before,
// plus what its loops and goroutines keep.
func (s *testServer) checkResidentMemory(p *peakUsage, w *Swarm, allowedGrowth int64) {
	s.Helper()
	most := s.before.RSS + allowedGrowth + residentTolerance + memoryKeptByLoops(s.readStats())
	if s.spec.Model == tcp.Goroutine {
		most += int64(w.Conns) * 16 << 10 // stacks
	}
	if p.resident > most && !testkit.RaceEnabled {
		s.Errorf("%d bytes were resident, at the beginning %d; expected at most %d", p.resident, s.before.RSS, most)
	}
	s.Logf("at most %.1f MB buffered, %.1f resident; %+v", float64(p.buffered)/1e6, float64(p.resident)/1e6, w.Counts())
}

// TestAdmission attacks by connecting: with resets, more connections at once than fit in the kernel's queue, and more
// than there are descriptors.
func TestAdmission(t *testing.T) {
	backlog, crowd := attackerCount(4096, 200), attackerCount(4596, 400)
	runFaults(t, []faultCase{
		{name: "resets", descriptors: 150, attack: testResetStorms},
		{
			name: "full queue", spec: serverSpec{Loops: 1, Backlog: backlog}, descriptors: crowd,
			attack: func(s *testServer) { s.testFullQueue(backlog, crowd) },
		},
		{
			name: "descriptors", spec: serverSpec{MaxOpenDescriptors: 120, Limits: tcp.Limits{MaxConns: 800}}, descriptors: 200,
			attack: testNoDescriptors,
		},
	})
}

// testResetStorms resets connections immediately, or with a pending request.
func testResetStorms(s *testServer) {
	const rate, most = 4000, 2000
	made := int64(0)
	for _, request := range []string{"", "hello\n"} {
		w := s.startSwarm(ResetStorm(s.addr, rate, most, []byte(request)))
		made += most
		s.waitForSwarm(w, "connections are made and reset", func(c SwarmCounts) bool { return c.Closed+c.Lost+c.Failed == most })
		s.waitEachClientAnswered()
		s.waitForStats("each connection is closed as reset", func(st tcp.Stats) bool {
			taken := st.Accepted - s.statsBefore.Accepted
			return taken >= made*9/10 && taken <= made && st.Closed.Reset == taken && st.Open == s.statsBefore.Open
		})
	}
}

// testFullQueue has more clients connect at once than fit in the kernel's queue: all are served eventually.
// The server is stopped meanwhile, so that the queue is certain to fill.
func (s *testServer) testFullQueue(backlog, n int) {
	s.process.Signal(unix.SIGSTOP)
	w := s.startSwarm(ConnectStorm(s.addr, n, []byte("hello\n")))
	s.waitForSwarm(w, "the queue is filled", func(c SwarmCounts) bool { return c.Dials == int64(n) && c.Connected >= int64(backlog) })
	if c := w.Counts(); c.Connected >= int64(n) {
		s.Errorf("%d connections are established with a queue of %d: it is not full", c.Connected, backlog)
	}
	s.process.Signal(unix.SIGCONT)
	s.waitForSwarm(w, "all are answered", func(c SwarmCounts) bool { return c.Answered == int64(n) && c.Received == 6*int64(n) })
	if c, st := w.Counts(), s.readStats(); c.Lost+c.Failed > 0 || st.Refused.Total() > 0 {
		s.Errorf("connections are refused: %+v, %+v", c, st)
	}
	s.stopSwarms(w)
}

// testNoDescriptors uses all descriptors: the server continues to serve, does not spin, and accepts again
// when some are free.
func testNoDescriptors(s *testServer) {
	w := s.startSwarm(HalfOpen(s.addr, 200, []byte("hello\n")))
	s.waitForStats("descriptors run out", func(st tcp.Stats) bool { return st.AcceptErrors > 0 && st.Open > 60 })
	s.waitEachClientAnswered()
	cpu := func() time.Duration {
		taken, err := sample.TakeSample(sample.CPU, s.process.Process.Pid)
		testkit.RequireNoError(s, err)
		return taken.Processes[0].CPU()
	}
	begun, before, used := time.Now(), s.readStats().AcceptErrors, cpu()
	testkit.WaitFor(s, "half a second has passed", func() bool { return time.Since(begun) > 500*time.Millisecond })
	took, errs, work := time.Since(begun), s.readStats().AcceptErrors-before, cpu()-used
	if errs > took.Milliseconds() || work > took*7/10 && !testkit.RaceEnabled {
		s.Errorf("in %v accept failed %d times, and took %v of processor time: it spins", took, errs, work)
	}
	w.Stop()
	for range 50 {
		c := testkit.Dial(s, s.addr.String())
		c.ExchangeLine("hello", "hello")
		defer c.Close()
	}
	s.waitForStats("those that come later are served", func(st tcp.Stats) bool { return st.Open == s.statsBefore.Open+50 })
}

// TestFairness attacks by sending at full speed: nobody else starves, and new clients are served.
func TestFairness(t *testing.T) {
	runFaults(t, []faultCase{{
		name: "floods", spec: serverSpec{Socket: smallSockets}, auto: true,
		honest: func(*testServer) *HonestClients { return &HonestClients{Conns: 200} },
		attack: func(s *testServer) {
			s.testFlood(Flood(s.addr, attackerCount(1000, 200), floodLines, 0))
			if s.spec.Model == tcp.Auto { // its models have been tested with the others
				return
			}
			s.testFlood(Flood(s.addr, 10, floodLines, 0))
			s.testFlood(Flood(s.addr, 100, floodLines, pipelineBytes))
			s.testNeverRead(NeverReadAtSpeed(s.addr, attackerCount(3000, 200), floodLines))
		},
	}})
}

const (
	// pipelineBytes is how much is in flight on each connection of a pipelined flood.
	pipelineBytes = 128 << 10
	// newcomerTimeout limits the wait of a new client for its first answer.
	newcomerTimeout = 3 * time.Second
)

// testFlood checks that nobody starves while a swarm floods.
func (s *testServer) testFlood(w *Swarm) {
	s.Helper()
	s.startSwarm(w)
	s.waitForSwarm(w, "they flood", func(c SwarmCounts) bool { return c.Connected == int64(w.Conns) && c.Received > 8<<20 })
	var p peakUsage
	longest := max(s.measureAnswerRound(&p), s.measureAnswerRound(&p), s.measureAnswerRound(&p))
	begun := time.Now()
	newcomer := testkit.Dial(s, s.addr.String())
	newcomer.ExchangeLine("hello", "hello")
	wait := time.Since(begun)
	newcomer.Close()
	if wait > newcomerTimeout {
		s.Errorf("a new client had its first answer after %v", wait)
	}
	s.Logf("%d connections that flood, %d ahead: all honest clients had two answers within %v; a new one its first after %v; %+v",
		w.Conns, w.MaxInFlight, longest, wait, w.Counts())
	s.stopSwarms(w)
}

// testNeverRead has peers send and never read, with default limits, until the kernel accepts no more: honest
// clients are served meanwhile, and memory is little more than what is accounted for.
func (s *testServer) testNeverRead(w *Swarm) {
	s.Helper()
	s.startSwarm(w)
	var p peakUsage
	for sent, moved := int64(-1), time.Now(); time.Since(moved) < 300*time.Millisecond; {
		s.measureAnswerRound(&p)
		if now := w.Counts(); now.Sent != sent || now.Connected < int64(w.Conns) {
			sent, moved = now.Sent, time.Now()
		}
	}
	s.checkResidentMemory(&p, w, p.buffered*3/2)
	s.stopSwarms(w)
}

// TestHandlers attacks with handlers that panic or never return: they cost only their own connections, and
// nobody else waits for them.
func TestHandlers(t *testing.T) {
	runFaults(t, []faultCase{{
		name: "faulty", auto: true, descriptors: 100,
		// Each loop under Auto detects blocking handlers itself, so there is only one.
		spec: serverSpec{Workers: 32, Loops: 1, Drain: 300 * time.Millisecond, Limits: tcp.Limits{HandlerTime: 100 * time.Millisecond}},
		attackAlone: func(s *testServer) {
			s.startHonestClients(&HonestClients{Conns: 20, ThinkTime: 10 * time.Millisecond})
			for i, line := range []string{"panic\n", "goexit\n"} {
				w := s.startSwarm(HalfOpen(s.addr, 50, []byte(line)))
				s.waitForStats("all are closed", func(st tcp.Stats) bool {
					return st.Closed.Panic == 50*int64(i+1) && st.Panics == st.Closed.Panic
				})
				s.waitAllConnsLost(w)
			}
			s.blockHandlers()
			s.sendOrderDiscardReply("release")
			s.stopSwarms()
			s.waitEachClientAnswered()
			s.waitResourcesReleased()
			s.blockHandlers()
			if r := s.clients.Stop(); r.First != nil {
				s.Errorf("honest clients: %+v", r)
			}
			s.orders.Close()
			const want = "and 16 are still open because of handlers that have not returned"
			if code := s.process.WaitExitCode(); code == 0 || !strings.Contains(s.process.Output.String(), want) {
				s.Errorf("a shutdown with 16 handlers that do not return: exit code %d\n%s", code, s.process.Output)
			}
		},
	}})
}

// blockHandlers has the handlers of 16 connections block, whose peers then disconnect. Before that, handlers
// sleep, so that Auto moves all of them to workers, where they stay while calls are pending.
func (s *testServer) blockHandlers() {
	s.Helper()
	slow := s.readStats().SlowHandlers
	sleeping := s.startSwarm(&Swarm{Target: s.addr, Conns: 4, Stream: []byte("sleep 150ms\n"), Interval: 200 * time.Millisecond})
	s.waitForStats("slow handlers are counted", func(st tcp.Stats) bool {
		return st.SlowHandlers > slow && (s.spec.Model != tcp.Auto || st.OnWorkers > 0)
	})
	held := s.startSwarm(HalfOpen(s.addr, 16, []byte("block\n")))
	s.waitForSwarm(held, "all have asked", func(c SwarmCounts) bool { return c.Sent == 16*6 })
	s.waitEachClientAnswered()
	sleeping.Stop()
	held.Stop()
	s.waitForStats("those that block are left", func(st tcp.Stats) bool { return st.Open == s.statsBefore.Open+16 })
	s.waitEachClientAnswered()
	if st := s.readStats(); s.spec.Model == tcp.Auto && st.OnWorkers == 0 {
		s.Errorf("handlers are called on their loop while 16 calls have not returned: %+v", st)
	}
}

// TestOrders attacks while orders are given: each is executed in time and costs nobody an answer.
func TestOrders(t *testing.T) {
	flooded := serverSpec{Socket: smallSockets, Drain: time.Second, Limits: tcp.Limits{ShutdownRate: 1}} // a drain does not end it
	runFaults(t, []faultCase{
		{name: "shutdown under flood", spec: flooded, attackAlone: func(s *testServer) { s.testStopUnderFlood(s.spec.Drain) }},
		{name: "close under flood", spec: flooded, attackAlone: func(s *testServer) { s.testStopUnderFlood(0, "drain", "close") }},
		{name: "drain", auto: true, descriptors: 100, spec: serverSpec{Workers: 8, Loops: 1}, attackAlone: testDrain},
	})
}

// testStopUnderFlood checks that a flooded server executes orders and ends in time: a shutdown within its
// limit, a close immediately. It must not blame handlers that have returned.
func (s *testServer) testStopUnderFlood(allowed time.Duration, orders ...string) {
	const orderTime = 2 * time.Second // many times what an idle machine needs
	w := s.startSwarm(Flood(s.addr, 100, floodLines, 0))
	s.waitForSwarm(w, "they flood", func(c SwarmCounts) bool { return c.Received > 16<<20 })
	begun := time.Now()
	for _, order := range orders {
		s.sendOrderDiscardReply(order)
	}
	s.orders.Close()
	s.process.WaitExitCode()
	took := time.Since(begun)
	s.Logf("the end after %v: %s", took, s.process.Output)
	if took > allowed+orderTime {
		s.Errorf("the end was after %v; expected within %v", took, allowed+orderTime)
	}
	if strings.Contains(s.process.Output.String(), "have not returned") {
		s.Errorf("it blames handlers that have returned: %s", s.process.Output)
	}
}

// testDrain has clients send about as much as a socket buffers while handlers are slow, and stops the server:
// what the kernel has received is answered, wherever handlers run.
func testDrain(s *testServer) {
	if s.spec.Model == tcp.Auto {
		s.startSwarm(&Swarm{Target: s.addr, Conns: 4, Stream: []byte("sleep 150ms\n"), Interval: 200 * time.Millisecond})
		s.waitForStats("handlers have moved to workers", func(st tcp.Stats) bool { return st.OnWorkers > 0 })
	}
	text := "sleep 20ms\n"
	for n := range 100 { // more than a single read
		text += fmt.Sprintf("%01023d\n", n)
	}
	all := make([]*testkit.Conn, 100)
	for i := range all {
		all[i] = testkit.Dial(s, s.addr.String())
		all[i].ExchangeLine("hello", "hello")
	}
	for _, c := range all {
		c.Send(text)
	}
	for _, c := range all {
		testkit.WaitFor(s, "the server's kernel has all that was sent", func() bool {
			left := -1
			err := withDescriptor(c.Conn, func(fd int) (err error) { left, err = unix.IoctlGetInt(fd, unix.SIOCOUTQ); return err })
			return err == nil && left == 0
		})
	}
	s.orders.Close()
	for _, c := range all {
		c.ExpectEOF(text)
	}
	s.stopServer()
}

// TestHonestClientsDetectErrors checks that clients detect wrong and missing answers.
func TestHonestClientsDetectErrors(t *testing.T) {
	if (&HonestClients{}).Start() == nil || (&Swarm{Conns: 1}).Start() == nil {
		t.Error("clients have started without a server")
	}
	for answer, want := range map[string]Report{"wrong\n": {Wrong: 1}, "": {Lost: 1}} {
		ours, theirs := net.Pipe()
		h := &HonestClients{Conns: 1, Dial: func() (net.Conn, error) { return ours, nil }}
		testkit.RequireNoError(t, h.Start())
		_, err := theirs.Read(make([]byte, 1024))
		testkit.RequireNoError(t, err)
		theirs.Write([]byte(answer))
		theirs.Close()
		h.ended.Wait()
		if got := h.Stop(); got.First == nil || got.Wrong != want.Wrong || got.Lost != want.Lost || got.Answers > 0 {
			t.Errorf("answered %q: %+v, want %+v", answer, got, want)
		}
	}
}
