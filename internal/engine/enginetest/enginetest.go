// Package enginetest tests the guarantees that package engine requires of I/O models, whatever their
// kernel interface. Each case uses real sockets on the loopback, with plain net connections as
// clients. No goroutine or descriptor may be left behind at the end.
//
// Decisions of the core are tested by the simulation in package engine. The cases here involve a
// driver, a loop or a worker. They wait for conditions, and for time only where time is tested.
package enginetest

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"os"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"

	"github.com/myriad-go/myriad/internal/engine"
)

// patience is the timeout of every wait.
const patience = testkit.Timeout

// testEnv is the environment of a test case: a model with a number of loops.
type testEnv struct {
	testing.TB
	model engine.Model
	loops int
}

// checkNoError reports an error. It may be called on any goroutine.
func (b *testEnv) checkNoError(err error) {
	b.Helper()
	testkit.ExpectNoError(b, err)
}

// requireNoError ends the test case after an error.
func (b *testEnv) requireNoError(err error) {
	b.Helper()
	testkit.RequireNoError(b, err)
}

// testCase checks one guarantee.
type testCase struct {
	name string
	run  func(b *testEnv)
}

// Kind selects test cases by what their outcome may depend on, besides the model.
type Kind uint8

const (
	// Handlers are cases that depend on whether handlers run on loops or workers.
	Handlers Kind = 1 << iota
	// Moves are cases that depend on when handlers move between loops and workers.
	Moves
	// Sockets are cases that depend on the descriptor table.
	Sockets
	// All are all cases, including those that depend on the model only.
	All Kind = 0
)

// Run runs the cases of a kind. loops is ignored for models without loops. Cases run in parallel,
// except those that must be alone in the process.
func Run(t *testing.T, m engine.Model, loops int, kind Kind) {
	testStartAndStop(t, m) // also lets Go open the descriptors that it keeps
	checkLeaks(t)
	for _, group := range []struct {
		kind  Kind
		alone bool
		cases []testCase
	}{
		{0, true, aloneCases},
		{0, false, relayTestCases(m, loops, timedRelayCases)}, // these cases mostly wait, in parallel with others
		{Moves, false, timeCases},
		{0, false, resetCases},
		{Handlers | Moves, false, inputCases},
		{Handlers, false, outputCases},
		{Handlers, false, fileCases},
		{Handlers | Moves, false, closeCases},
		{Handlers | Sockets | Moves, false, mailCases},
		{Handlers, false, refCases},
		{Handlers, true, sendWaitCases}, // in parallel, a loop of another engine could get the number of an ended thread
		{Handlers | Sockets | Moves, false, panicCases},
		{Handlers | Sockets | Moves, false, stopCases},
		{Sockets, false, dialCases},
		{Sockets, false, systemCases},
		{Handlers, false, castCases},
		{Handlers, false, backpressureCases},
		{Sockets, false, entryCases},
		{Handlers, false, layerCases},
		{Handlers, false, overloadCases},
		{Handlers | Moves, false, paceCases},
		{Handlers | Moves, false, listenCases},
		{Handlers | Sockets, false, operatorCases},
		{Handlers | Sockets, false, handoverCases},
		{Handlers | Sockets, false, relayTestCases(m, loops, relays)},
		{Handlers, false, fanCases},
	} {
		if kind != All && group.kind&kind == 0 {
			continue
		}
		for _, c := range group.cases {
			t.Run(c.name, func(t *testing.T) {
				if !group.alone {
					t.Parallel()
				}
				testkit.AcquireDescriptorsOrSkip(t, cmp.Or(manyDescriptors[c.name], fewDescriptors))
				c.run(&testEnv{TB: t, model: m, loops: loops})
			})
		}
	}
}

func testStartAndStop(t *testing.T, m engine.Model) {
	e, err := m.Start(engine.Config{
		Network: "tcp", Addr: "127.0.0.1:0", Handler: newWitness(t, &Script{}),
		Limits: Limits(), Loops: 1, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	waited := make(chan struct{})
	go func() { e.Wait(); close(waited) }()
	select {
	case <-waited:
		t.Error("Wait returned before Stop was called")
	default:
	}
	if err := e.Stop(context.Background()); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	testkit.Receive(t, waited, "the return of Wait")
	if nc, err := net.Dial("tcp", e.Addr().String()); err == nil {
		nc.Close()
		t.Error("connections are still accepted after Stop")
	}
}

// aloneCases measure the whole process, or require that nobody else listens on a port that was freed.
var aloneCases = []testCase{
	{"second listener that can't be opened", testBadListener},
	{"Dial to a port that refuses", testDialRefused},
	{"peer that ends while a layer is at work", testEOFInHandshake},
	{"Ref tells of its connection, and not of the next one", testRefValues},
}

// fewDescriptors is the maximum number of descriptors of a case that is not in manyDescriptors. No
// case needs more than the usual limit of 1,024.
const fewDescriptors = 100

var manyDescriptors = map[string]int{
	"many connections at once":                  620,
	"Pace touches many in one call":             420,
	"ShutdownRate when the connections end":     320,
	"ShutdownRate when its context ends":        320,
	"connection of a peer is closed among many": 760,
	"hand over": 760,
	"hand over that ends while a connection is saved":    760,
	"hand over that ends while a connection is restored": 760,
	"hand over while there are always broadcasts":        760,
}

// handoverCases are for engines that can export connections.
var handoverCases []testCase

// systemCases are for the current system; resetCases check that no sockets are left.
var systemCases, resetCases []testCase

// Limits returns limits that no case reaches unintentionally.
func Limits() engine.Limits {
	return engine.Limits{
		MaxConns:     1000,
		MaxMessage:   64 << 10,
		MaxUnsent:    1 << 20,
		MaxMail:      1024,
		MaxMailBytes: 16 << 20,
		CloseTimeout: 10 * patience,
		Linger:       10 * patience,
	}
}

// Kill stops an engine by force and waits for its end.
func Kill(e engine.Engine) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = e.Stop(ctx) // reports that connections were aborted
	e.Wait()
}

// checkLeaks fails the test if it or its cases leave goroutines or descriptors behind.
func checkLeaks(t *testing.T) {
	running := testkit.GoroutineIDs()
	before := countOpenFiles()
	t.Cleanup(func() {
		testkit.ExpectNoError(t, testkit.WaitGoroutinesEnd(running))
		if before < 0 {
			return
		}
		testkit.WaitFor(t, "descriptors are left behind", func() bool { return countOpenFiles() <= before })
	})
}

// countOpenFiles counts the descriptors of this process; it returns -1 if unknown.
func countOpenFiles() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	return len(entries)
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.RequireNoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}
