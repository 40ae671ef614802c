package faults

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

// What a server may have more of after an attack than before, when all garbage is collected and
// free memory given back. Its own account is exact; it keeps its slab, which has a bound (16,384
// entries of some 150 bytes in these tests), and free buffers, 4 MiB in each loop; there are more
// loops where there are more processors. Resident are also the runtime's own structures and stacks
// of threads, which do not shrink. With the race detector, which remembers who used what memory,
// nothing can be said about resident memory.
const (
	heapTolerance     = 4 << 20
	residentTolerance = 20 << 20
	loopTolerance     = 4 << 20
	// bufferTolerance is for the buffers that honest clients have just then.
	bufferTolerance = 1 << 20
	// idleWorkers is for a pool that ends an eighth of its workers a second.
	idleWorkers = 64
)

// raced says whether the race detector watches this program.
var raced = func() bool {
	info, _ := debug.ReadBuildInfo()
	for _, s := range info.Settings {
		if s.Key == "-race" && s.Value == "true" {
			return true
		}
	}
	return false
}()

// short is a limit of time within which all clients of a test connect and act, on a busy machine too.
var short = func() time.Duration {
	if raced {
		return 4 * time.Second
	}
	return 2 * time.Second
}()

// full has as many attackers as docs/reliability.md promises.
var full = os.Getenv("MYRIAD_TEST_FULL") != "" && !raced

// many is a number of attackers, or of them at most where it is not to be full.
func many(n, most int) int {
	if full {
		return n
	}
	return min(n, most)
}

// fault is a row of the table in docs/reliability.md.
type fault struct {
	name        string
	spec        spec
	auto        bool                     // it is of handlers, so under Auto too
	through     []string                 // the command that starts the server, for root alone
	descriptors int                      // how many clients have open; 0 is of a fault that loads the machine, so it is alone
	honest      func(s *subject) *Honest // by default 20 that wait a little between lines
	attack      func(s *subject)
	ends        func(s *subject) // in place of all others: an attack that ends the server
}

// run has honest clients use a server while it is attacked, under every model, in short runs under one. It
// checks that they get every answer, during the attack, as often as it asks, and after it, and
// that the server has nothing more in the end than before.
func run(t *testing.T, faults []fault) {
	models := tcp.Models()
	if testing.Short() {
		models = models[min(1, len(models)-1):min(2, len(models))] // epoll, or the only one
	}
	if !slices.ContainsFunc(faults, func(f fault) bool { return f.descriptors == 0 }) {
		t.Parallel()
	}
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			if f.through != nil && os.Geteuid() != 0 {
				t.Skip(f.through[0], "takes root")
			}
			if f.descriptors > 0 {
				t.Parallel()
			}
			for _, model := range slices.Concat(models, []string{tcp.Auto}) {
				if model == tcp.Auto && !f.auto {
					continue
				}
				t.Run(model, func(t *testing.T) {
					if f.descriptors > 0 {
						t.Parallel()
						testkit.ReserveDescriptors(t, f.descriptors+50)
					}
					sp := f.spec
					sp.Model = model
					command := append(f.through[:len(f.through):len(f.through)], os.Args[0])
					f.test(serve(t, sp, exec.Command(command[0], command[1:]...)))
				})
			}
		})
	}
}

func (f *fault) test(s *subject) {
	if f.ends != nil {
		f.ends(s)
		return
	}
	h := &Honest{Conns: 20, Think: 10 * time.Millisecond}
	if f.honest != nil {
		h = f.honest(s)
	}
	s.begin(h)
	f.attack(s)
	s.round()
	if s.spec.Model != tcp.Auto { // which keeps workers as long as honest clients keep them busy
		s.back()
	}
	if r := h.Stop(); r.First != nil && !h.Redial {
		s.Errorf("honest clients: %+v", r)
	}
	s.shut()
}

// subject is a server under test in a process of its own, with its honest clients.
type subject struct {
	testing.TB
	process *testkit.Process
	spec    spec
	addr    netip.AddrPort
	orders  io.WriteCloser
	answers *json.Decoder
	timer   interface{ SetReadDeadline(time.Time) error } // of answers
	clients *Honest

	before     Footprint // when the attack begins
	heapBefore account
	counted    tcp.Stats
}

// serve starts a server, which ends with the test.
func serve(t testing.TB, sp spec, cmd *exec.Cmd) *subject {
	t.Helper()
	if sp.Limits.Linger == 0 {
		sp.Limits.Linger = 100 * time.Millisecond
	}
	if sp.Drain == 0 {
		sp.Drain = 40 * time.Second
	}
	settings, err := json.Marshal(sp)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), specVariable+"="+string(settings), "GORACE=atexit_sleep_ms=0 halt_on_error=1")
	orders, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s := &subject{
		TB: t, process: testkit.Start(t, cmd), spec: sp,
		orders: orders, answers: json.NewDecoder(answers), timer: answers.(*os.File),
	}
	s.hear(&s.addr)
	return s
}

// ask gives an order and puts the answer into what v points to.
func (s *subject) ask(order string, v any) {
	s.Helper()
	if _, err := io.WriteString(s.orders, order+"\n"); err != nil {
		s.Fatalf("order %q: %v", order, err)
	}
	s.hear(v)
}

func (s *subject) hear(v any) {
	s.Helper()
	s.timer.SetReadDeadline(time.Now().Add(testkit.Timeout))
	if err := s.answers.Decode(v); err != nil {
		s.Fatalf("the server's answer: %v", err)
	}
}

func (s *subject) order(order string) { s.ask(order, new(any)) }

func (s *subject) stats() (st tcp.Stats) { s.ask("stats", &st); return st }

func (s *subject) heap() (h account) { s.ask("memory", &h); return h }

// begin starts honest clients, and looks at the server when it knows them.
func (s *subject) begin(h *Honest) {
	s.Helper()
	s.clients, h.Addr = h, s.addr.String()
	if err := h.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { h.Stop() })
	s.round()
	s.heapBefore, s.before, s.counted = s.heap(), s.footprint(), s.stats()
}

// round waits until each honest client has had an answer to a line that it has sent from now on.
func (s *subject) round() {
	s.Helper()
	from := s.clients.Each()
	s.eventually(func() bool { return s.starved(from) == 0 || s.clients.Report().First != nil }, func() string {
		return fmt.Sprintf("honest clients have had %v answers, before %v", s.clients.Each(), from)
	})
	if r := s.clients.Report(); r.First != nil && !s.clients.Redial {
		s.Fatalf("honest clients: %+v\n%+v", r, s.stats())
	}
}

// starved is how many honest clients have not had an answer to a line that they have sent since
// they had had so many answers.
func (s *subject) starved(from []int64) (n int) {
	for i, now := range s.clients.Each() {
		if now < from[i]+2 {
			n++
		}
	}
	return n
}

// back waits until the server has no more than at the beginning.
func (s *subject) back() {
	s.Helper()
	var now Footprint
	var h account
	var buffered int64
	loops := keptByLoops(s.stats())
	s.eventually(func() bool {
		h, now, buffered = s.heap(), s.footprint(), s.stats().Buffered
		return buffered <= s.counted.Buffered+bufferTolerance &&
			now.Descriptors <= s.before.Descriptors && now.Sockets <= s.before.Sockets &&
			(raced || now.RSS <= s.before.RSS+residentTolerance+loops) &&
			h.Bytes <= s.heapBefore.Bytes+heapTolerance+uint64(loops) && h.Goroutines <= s.heapBefore.Goroutines+idleWorkers
	}, func() string {
		return fmt.Sprintf("after the attack: %v, %+v, %d buffered; before: %v, %+v, %d",
			now, h, buffered, s.before, s.heapBefore, s.counted.Buffered)
	})
	s.Logf("before: %v, %+v; after: %v, %+v", s.before, s.heapBefore, now, h)
}

// keptByLoops is how many bytes all loops of a server may keep.
func keptByLoops(st tcp.Stats) int64 { return int64(max(st.Loops, 1)) * loopTolerance }

// shut ends the server, which must succeed.
func (s *subject) shut() {
	s.Helper()
	s.orders.Close()
	if code := s.process.ExitCode(); code != 0 {
		s.Errorf("the server has ended with %d: %s", code, s.process.Output)
	}
}

// footprint is what the server has of the machine, seen from outside.
func (s *subject) footprint() Footprint {
	s.Helper()
	f, err := ReadFootprint(s.process.Process.Pid)
	if err != nil {
		s.Fatal(err)
	}
	return f
}

// attack starts a swarm, which ends with the test at the latest.
func (s *subject) attack(w *Swarm) *Swarm {
	s.Helper()
	if w.Every == 0 {
		w.Every = 100 * time.Millisecond
	}
	if err := w.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(w.Stop)
	return w
}

// lost waits until a swarm has noticed that the server has ended all of its connections.
func (s *subject) lost(swarms ...*Swarm) {
	s.Helper()
	for _, w := range swarms {
		s.swarmed(w, "all connections are ended", func(c SwarmCounts) bool { return c.Lost == int64(w.Conns) })
	}
}

// gone stops a swarm, and waits until the server has its honest clients alone.
func (s *subject) gone(swarms ...*Swarm) {
	s.Helper()
	for _, w := range swarms {
		w.Stop()
	}
	s.counts("all are gone", func(st tcp.Stats) bool { return st.Open == s.counted.Open })
}

// swarmed waits until the counters of a swarm are as they should be.
func (s *subject) swarmed(w *Swarm, what string, so func(c SwarmCounts) bool) {
	s.Helper()
	s.eventually(func() bool { return so(w.Counts()) }, func() string { return fmt.Sprintf("%s: %+v", what, w.Counts()) })
}

// counts waits until the server's counters are as they should be.
func (s *subject) counts(what string, so func(st tcp.Stats) bool) tcp.Stats {
	s.Helper()
	var st tcp.Stats
	s.eventually(func() bool { st = s.stats(); return so(st) }, func() string {
		return fmt.Sprintf("%s: %+v, at the beginning %+v", what, st, s.counted)
	})
	return st
}

// eventually waits for a condition; what says what is not so.
func (s *subject) eventually(so func() bool, what func() string) {
	s.Helper()
	testkit.WaitForFunc(s, so, what)
}

// peak is the most that was seen of a server.
type peak struct {
	buffered, resident int64
	at                 time.Time // when memory was looked at last
}

// look looks at a server.
func (p *peak) look(s *subject) {
	p.buffered = max(p.buffered, s.stats().Buffered)
	if time.Since(p.at) > 50*time.Millisecond { // it is work
		p.resident, p.at = max(p.resident, s.footprint().RSS), time.Now()
	}
}

// turnBound is how long an honest client waits at most for two answers while others flood: many times
// what it takes on a machine that is at rest.
var turnBound = func() time.Duration {
	if raced {
		return 10 * time.Second
	}
	return 3 * time.Second
}()

// turn is round with a bound. It looks at the server meanwhile, and returns how long it took.
func (s *subject) turn(p *peak) time.Duration {
	s.Helper()
	from, begun := s.clients.Each(), time.Now()
	for s.starved(from) > 0 {
		if time.Since(begun) > turnBound {
			s.Fatalf("within %v %d of %d honest clients have had no two answers: %+v",
				turnBound, s.starved(from), len(from), s.clients.Report())
		}
		p.look(s)
	}
	return time.Since(begun)
}

// newcomer connects and asks, and returns how long that took. It is for any goroutine.
func (s *subject) newcomer(most time.Duration) (time.Duration, error) {
	begun := time.Now()
	c, err := net.DialTimeout("tcp", s.addr.String(), most)
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
