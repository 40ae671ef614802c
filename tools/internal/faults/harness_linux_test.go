package faults

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime/debug"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

// patience bounds every wait of these tests.
const patience = 2 * time.Minute

// What a server may have more of after an attack than before, when all garbage
// is collected and free memory given back. Its own account is exact; it keeps its
// slab, which has a bound (16,384 entries of some 150 bytes in these tests), and
// free buffers, 4 MiB in each loop; there are more loops where there are more
// processors. Resident are also the runtime's own structures and stacks of
// threads, which do not shrink. With the race detector, which remembers who used
// what memory, nothing can be said about resident memory.
const (
	heapTolerance     = 4 << 20
	residentTolerance = 20 << 20
	loopTolerance     = 4 << 20
	// bufferTolerance is for the buffers that honest clients have just then.
	bufferTolerance = 1 << 20
	// idleWorkers is for a pool that ends an eighth of its workers a second.
	idleWorkers = 64
)

// keptByLoops is how many bytes all loops of a server may keep.
func keptByLoops(st tcp.Stats) int64 { return int64(max(st.Loops, 1)) * loopTolerance }

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

// full has as many attackers as docs/reliability.md promises.
var full = os.Getenv("MYRIAD_TEST_FULL") != "" && !raced

// onModels runs a test under every model, in short runs under one.
func onModels(t *testing.T, f func(t *testing.T, model string)) {
	models := tcp.Models()
	if testing.Short() {
		models = models[min(1, len(models)-1):min(2, len(models))] // epoll, or the only one
	}
	for _, m := range models {
		t.Run(m, func(t *testing.T) { f(t, m) })
	}
}

// onModelsAtOnce does so at the same time, beside other such tests, as far as the descriptors
// go that each model's clients have open: most of it is waiting.
func onModelsAtOnce(t *testing.T, descriptors int, f func(t *testing.T, model string)) {
	t.Parallel()
	onModels(t, func(t *testing.T, model string) {
		t.Parallel()
		testkit.ReserveDescriptors(t, descriptors)
		f(t, model)
	})
}

// subject is a server under test, with its honest clients.
type subject struct {
	*Process
	testing.TB
	addr    netip.AddrPort
	clients *Honest

	before     Footprint // when the attack begins
	heapBefore account
	counted    tcp.Stats
}

// serve starts a server and ends it with the test.
func serve(t testing.TB, sp spec, in *Namespace) *subject {
	t.Helper()
	if sp.Addr == "" {
		sp.Addr = "127.0.0.1:0"
	}
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
	cmd := exec.Command(os.Args[0])
	return launch(t, cmd, string(settings), in)
}

func launch(t testing.TB, cmd *exec.Cmd, settings string, in *Namespace) *subject {
	t.Helper()
	cmd.Env = append(os.Environ(), specVariable+"="+settings, "GORACE=atexit_sleep_ms=0 halt_on_error=1")
	p, err := Launch(cmd, in)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	s := &subject{Process: p, TB: t}
	if s.addr, err = netip.ParseAddrPort(p.Addr); err != nil {
		t.Fatal(err)
	}
	return s
}

// besiege has honest clients use a server while it is attacked. It checks that
// they get every answer, during the attack, as often as it asks, and after it,
// and that the server has nothing more in the end than before.
func besiege(t *testing.T, sp spec, attack func(s *subject)) {
	t.Helper()
	s := serve(t, sp, nil)
	s.begin(&Honest{Addr: s.Addr, Conns: 20, Think: 10 * time.Millisecond})
	attack(s)
	s.round()
	s.back()
	s.end()
}

// begin starts honest clients, and looks at the server when it knows them.
func (s *subject) begin(h *Honest) {
	s.Helper()
	s.clients = h
	if err := h.Start(); err != nil {
		s.Fatalf("%v\n%s", err, s.Said())
	}
	s.Cleanup(func() { h.Stop() })
	s.round()
	s.heapBefore, s.before = s.heap(), s.footprint()
	s.counted = s.stats()
}

// round waits until each honest client has had an answer to a line that it has
// sent from now on.
func (s *subject) round() {
	s.Helper()
	from := s.clients.Each()
	s.eventually(func() bool { return s.starved(from) == 0 || s.clients.Report().First != nil }, func() string {
		return fmt.Sprintf("honest clients have had %v answers, before %v", s.clients.Each(), from)
	})
	if r := s.clients.Report(); r.First != nil && !s.clients.Redial {
		s.Fatalf("honest clients: %+v\n%+v\n%s", r, s.stats(), s.Said())
	}
}

// starved is how many honest clients have not had an answer to a line that they
// have sent since they had had so many answers.
func (s *subject) starved(from []int64) (n int) {
	for i, now := range s.clients.Each() {
		if now < from[i]+2*int64(max(s.clients.Pipeline, 1)) {
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
		h = s.heap()
		now = s.footprint()
		buffered = s.stats().Buffered
		return buffered <= s.counted.Buffered+bufferTolerance &&
			now.Descriptors <= s.before.Descriptors && now.Sockets <= s.before.Sockets &&
			(raced || now.RSS <= s.before.RSS+residentTolerance+loops) &&
			h.Bytes <= s.heapBefore.Bytes+heapTolerance+uint64(loops) && h.Goroutines <= s.heapBefore.Goroutines+idleWorkers
	}, func() string {
		return fmt.Sprintf("after the attack: %v, %+v, %d buffered; before: %v, %+v, %d", now, h, buffered, s.before, s.heapBefore, s.counted.Buffered)
	})
	s.Logf("before: %v, heap %.1f MB; after: %v, heap %.1f MB", s.before, float64(s.heapBefore.Bytes)/1e6, now, float64(h.Bytes)/1e6)
}

// end stops the honest clients, checks what they say, and ends the server.
func (s *subject) end() {
	s.Helper()
	r := s.clients.Stop()
	if r.Wrong+r.Lost+r.Failed > 0 || r.First != nil {
		s.Errorf("honest clients: %+v", r)
	}
	s.Logf("honest clients had %d answers, none wrong or missing", r.Answers)
	s.shut()
}

func (s *subject) shut() {
	s.Helper()
	if err := s.Stop(); err != nil {
		s.Errorf("the server's end: %v\n%s", err, s.Said())
	}
}

func (s *subject) stats() (st tcp.Stats) {
	s.Helper()
	s.ask("stats", &st)
	return st
}

func (s *subject) heap() (h account) {
	s.Helper()
	s.ask("memory", &h)
	return h
}

func (s *subject) ask(order string, v any) {
	s.Helper()
	if err := s.Ask(order, v); err != nil {
		s.Fatalf("order %q: %v", order, err)
	}
}

func (s *subject) footprint() Footprint {
	s.Helper()
	f, err := ReadFootprint(s.Pid())
	if err != nil {
		s.Fatal(err)
	}
	return f
}

// attack starts a swarm, which ends with the test at the latest.
func (s *subject) attack(w *Swarm) *Swarm {
	s.Helper()
	if err := w.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(w.Stop)
	return w
}

// eventually waits for a condition; what says what is not so.
func (s *subject) eventually(so func() bool, what func() string) {
	s.Helper()
	testkit.WaitForFunc(s, so, func() string { return what() + "\n" + s.Said() })
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
