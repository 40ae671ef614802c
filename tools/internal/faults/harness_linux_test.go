package faults

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

// Tolerances for a server's resources after an attack, when garbage is collected and free memory is
// returned. The server's own accounting is exact. It keeps its connection table, which is limited (16,384
// entries of about 150 bytes in these tests), and up to 4 MiB of free buffers for each loop; there are more
// loops on machines with more processors. Resident memory includes the runtime's structures and thread
// stacks, which do not shrink. With the race detector, resident memory is not checked.
const (
	heapTolerance     = 4 << 20
	residentTolerance = 20 << 20
	loopTolerance     = 4 << 20
	// bufferTolerance is for the buffers that honest clients use at that moment.
	bufferTolerance = 1 << 20
	// idleWorkers is for a pool that ends an eighth of its workers per second.
	idleWorkers = 64
)

// shortTimeout is long enough for all clients of a test to connect and act, even on a busy machine.
var shortTimeout = func() time.Duration {
	if testkit.RaceEnabled {
		return 4 * time.Second
	}
	return 2 * time.Second
}()

// fullScale runs as many attackers as docs/reliability.md promises.
var fullScale = os.Getenv("MYRIAD_TEST_FULL") != "" && !testkit.RaceEnabled

// attackerCount returns n, or at most reduced unless the test is at full scale.
func attackerCount(fullCount, reducedCount int) int {
	if fullScale {
		return fullCount
	}
	return min(fullCount, reducedCount)
}

// faultCase is a row of the table in docs/reliability.md.
type faultCase struct {
	name        string
	spec        serverSpec
	auto        bool     // also run under Auto, because handlers matter
	wrapper     []string // the command that starts the server; needs root
	needsRoot   bool
	descriptors int                                // descriptors of the clients; 0: the fault loads the machine and runs alone
	honest      func(s *testServer) *HonestClients // default: 20 clients with a short pause between lines
	attack      func(s *testServer)
	attackAlone func(s *testServer) // replaces all other fields: an attack that ends the server
}

// modelsToAttack returns all models, or one in short runs.
func modelsToAttack() []string {
	models := tcp.Models()
	if testing.Short() {
		models = models[min(1, len(models)-1):min(2, len(models))] // epoll, or the only one
	}
	return models
}

// runFaults attacks a server under every model (one in short runs) while honest clients use it. It checks
// that they get every answer, during the attack, as often as the attack asks, and after it, and
// that the server's resources are released.
func runFaults(t *testing.T, faults []faultCase) {
	if !slices.ContainsFunc(faults, func(f faultCase) bool { return f.descriptors == 0 }) {
		t.Parallel()
	}
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			if (f.wrapper != nil || f.needsRoot) && os.Geteuid() != 0 {
				t.Skip("needs root")
			}
			if f.descriptors > 0 {
				t.Parallel()
			}
			for _, model := range append(modelsToAttack(), tcp.Auto) {
				if model == tcp.Auto && !f.auto {
					continue
				}
				t.Run(model, func(t *testing.T) {
					if f.descriptors > 0 {
						t.Parallel()
						testkit.AcquireDescriptorsOrSkip(t, f.descriptors+50)
					}
					sp := f.spec
					sp.Model = model
					command := append(f.wrapper[:len(f.wrapper):len(f.wrapper)], os.Args[0])
					f.runAttack(startServer(t, sp, exec.Command(command[0], command[1:]...)))
				})
			}
		})
	}
}

func (f *faultCase) runAttack(s *testServer) {
	if f.attackAlone != nil {
		f.attackAlone(s)
		return
	}
	h := &HonestClients{Conns: 20, ThinkTime: 10 * time.Millisecond}
	if f.honest != nil {
		h = f.honest(s)
	}
	s.startHonestClients(h)
	f.attack(s)
	s.waitEachClientAnswered()
	if s.spec.Model != tcp.Auto { // Auto keeps workers that honest clients keep busy
		s.waitResourcesReleased()
	}
	if r := h.Stop(); r.First != nil && !h.Redial {
		s.Errorf("honest clients: %+v", r)
	}
	s.stopServer()
}

// testServer is a server under test in a separate process, with its honest clients.
type testServer struct {
	testing.TB
	process *testkit.Process
	spec    serverSpec
	addr    netip.AddrPort
	orders  io.WriteCloser
	answers *json.Decoder
	timer   interface{ SetReadDeadline(time.Time) error } // of answers
	clients *HonestClients

	before      Footprint // before the attack
	heapBefore  heapUsage
	statsBefore tcp.Stats
}

func startServer(t testing.TB, sp serverSpec, cmd *exec.Cmd) *testServer {
	t.Helper()
	if sp.Limits.Linger == 0 {
		sp.Limits.Linger = 100 * time.Millisecond
	}
	if sp.Drain == 0 {
		sp.Drain = 40 * time.Second
	}
	settings, err := json.Marshal(sp)
	testkit.RequireNoError(t, err)
	cmd.Env = append(os.Environ(), specEnv+"="+string(settings), "GORACE=atexit_sleep_ms=0 halt_on_error=1")
	orders, err := cmd.StdinPipe()
	testkit.RequireNoError(t, err)
	answers, err := cmd.StdoutPipe()
	testkit.RequireNoError(t, err)
	s := &testServer{
		TB: t, process: testkit.Start(t, cmd), spec: sp,
		orders: orders, answers: json.NewDecoder(answers), timer: answers.(*os.File),
	}
	s.readReply(&s.addr)
	return s
}

func (s *testServer) sendOrder(order string, reply any) {
	s.Helper()
	if _, err := io.WriteString(s.orders, order+"\n"); err != nil {
		s.Fatalf("order %q: %v", order, err)
	}
	s.readReply(reply)
}

func (s *testServer) readReply(v any) {
	s.Helper()
	s.timer.SetReadDeadline(time.Now().Add(testkit.Timeout))
	if err := s.answers.Decode(v); err != nil {
		s.Fatalf("the server's answer: %v", err)
	}
}

func (s *testServer) sendOrderDiscardReply(order string) { s.sendOrder(order, new(any)) }

func (s *testServer) readStats() (st tcp.Stats) { s.sendOrder("stats", &st); return st }

func (s *testServer) readServerHeap() (h heapUsage) { s.sendOrder("memory", &h); return h }

func (s *testServer) startHonestClients(h *HonestClients) {
	s.Helper()
	s.clients, h.Addr = h, s.addr.String()
	testkit.RequireNoError(s, h.Start())
	s.Cleanup(func() { h.Stop() })
	s.waitEachClientAnswered()
	s.heapBefore, s.before, s.statsBefore = s.readServerHeap(), s.readFootprint(), s.readStats()
}

// waitEachClientAnswered waits until each honest client has an answer to a line sent from now on.
func (s *testServer) waitEachClientAnswered() {
	s.Helper()
	from := s.clients.AnswersByClient()
	testkit.WaitForFunc(s, func() bool { return s.countStarved(from) == 0 || s.clients.Report().First != nil }, func() string {
		return fmt.Sprintf("honest clients have had %v answers, before %v", s.clients.AnswersByClient(), from)
	})
	if r := s.clients.Report(); r.First != nil && !s.clients.Redial {
		s.Fatalf("honest clients: %+v\n%+v", r, s.readStats())
	}
}

// countStarved returns how many honest clients have had no answer to a line sent since they had from
// answers.
func (s *testServer) countStarved(from []int64) (n int) {
	for i, now := range s.clients.AnswersByClient() {
		if now < from[i]+2 {
			n++
		}
	}
	return n
}

// waitResourcesReleased waits until the server uses no more resources than before the attack.
func (s *testServer) waitResourcesReleased() {
	s.Helper()
	var now Footprint
	var h heapUsage
	var buffered int64
	loops := memoryKeptByLoops(s.readStats())
	testkit.WaitForFunc(s, func() bool {
		h, now, buffered = s.readServerHeap(), s.readFootprint(), s.readStats().Buffered
		return buffered <= s.statsBefore.Buffered+bufferTolerance &&
			now.Descriptors <= s.before.Descriptors && now.Sockets <= s.before.Sockets &&
			(testkit.RaceEnabled || now.RSS <= s.before.RSS+residentTolerance+loops) &&
			h.Bytes <= s.heapBefore.Bytes+heapTolerance+uint64(loops) && h.Goroutines <= s.heapBefore.Goroutines+idleWorkers
	}, func() string {
		return fmt.Sprintf("after the attack: %v, %+v, %d buffered; before: %v, %+v, %d",
			now, h, buffered, s.before, s.heapBefore, s.statsBefore.Buffered)
	})
	s.Logf("before: %v, %+v; after: %v, %+v", s.before, s.heapBefore, now, h)
}

// memoryKeptByLoops returns how many bytes all loops of a server may keep.
func memoryKeptByLoops(st tcp.Stats) int64 { return int64(max(st.Loops, 1)) * loopTolerance }

// stopServer ends the server, which must succeed.
func (s *testServer) stopServer() {
	s.Helper()
	s.orders.Close()
	if code := s.process.WaitExitCode(); code != 0 {
		s.Errorf("the server has ended with %d: %s", code, s.process.Output)
	}
}

// readFootprint measures the server's resources from outside.
func (s *testServer) readFootprint() Footprint {
	s.Helper()
	f, err := ReadFootprint(s.process.Process.Pid)
	testkit.RequireNoError(s, err)
	return f
}

func (s *testServer) startSwarm(w *Swarm) *Swarm {
	s.Helper()
	if w.Interval == 0 {
		w.Interval = 100 * time.Millisecond
	}
	testkit.RequireNoError(s, w.Start())
	s.Cleanup(w.Stop)
	return w
}

func (s *testServer) waitAllConnsLost(swarms ...*Swarm) {
	s.Helper()
	for _, w := range swarms {
		s.waitForSwarm(w, "all connections are ended", func(c SwarmCounts) bool { return c.Lost == int64(w.Conns) })
	}
}

// stopSwarms stops the swarms and waits until the server has only its honest clients.
func (s *testServer) stopSwarms(swarms ...*Swarm) {
	s.Helper()
	for _, w := range swarms {
		w.Stop()
	}
	s.waitForStats("all are gone", func(st tcp.Stats) bool { return st.Open == s.statsBefore.Open })
}

func (s *testServer) waitForSwarm(w *Swarm, what string, done func(c SwarmCounts) bool) {
	s.Helper()
	testkit.WaitForFunc(s, func() bool { return done(w.Counts()) }, func() string { return fmt.Sprintf("%s: %+v", what, w.Counts()) })
}

func (s *testServer) waitForStats(what string, done func(st tcp.Stats) bool) tcp.Stats {
	s.Helper()
	var st tcp.Stats
	testkit.WaitForFunc(s, func() bool { st = s.readStats(); return done(st) }, func() string {
		return fmt.Sprintf("%s: %+v, at the beginning %+v", what, st, s.statsBefore)
	})
	return st
}

// peakUsage contains the highest measured values of a server.
type peakUsage struct {
	buffered, resident int64
	at                 time.Time // time of the last memory measurement
}

func (p *peakUsage) record(s *testServer) {
	p.buffered = max(p.buffered, s.readStats().Buffered)
	if time.Since(p.at) > 50*time.Millisecond { // measuring costs time
		p.resident, p.at = max(p.resident, s.readFootprint().RSS), time.Now()
	}
}

// answersTimeout limits the time for two answers to each honest client during a flood: many times what an
// idle machine needs.
var answersTimeout = func() time.Duration {
	if testkit.RaceEnabled {
		return 10 * time.Second
	}
	return 3 * time.Second
}()

// measureAnswerRound is waitEachClientAnswered with a time limit. It records the server's usage and returns the time.
func (s *testServer) measureAnswerRound(p *peakUsage) time.Duration {
	s.Helper()
	from, begun := s.clients.AnswersByClient(), time.Now()
	for s.countStarved(from) > 0 {
		if time.Since(begun) > answersTimeout {
			s.Fatalf("within %v %d of %d honest clients have had no two answers: %+v",
				answersTimeout, s.countStarved(from), len(from), s.clients.Report())
		}
		p.record(s)
	}
	return time.Since(begun)
}
