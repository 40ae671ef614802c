// Package enginetest is the promise of package engine as a test suite: what an
// I/O model must do, whatever the kernel interface below it. Each case runs
// against real sockets on the loopback, with plain net connections as clients,
// and ends with a look for goroutines and descriptors that were left behind.
//
// Nothing in it waits for a time to pass but where time is what is tested. It
// waits for conditions, for no longer than patience.
package enginetest

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/myriad-go/myriad/internal/await"
	"github.com/myriad-go/myriad/internal/engine"
)

// patience bounds every wait. It is far longer than anything takes, on a busy machine
// too.
const patience = time.Minute

// bench is what a case runs on: a model with a number of loops.
type bench struct {
	testing.TB
	model engine.Model
	loops int
}

// testCase is one promise.
type testCase struct {
	name string
	run  func(b *bench)
}

// Run runs the suite against a model: with one loop and with two, if it has
// loops.
func Run(t *testing.T, m engine.Model) {
	if !hasLoops(t, m) {
		t.Run("no loops", func(t *testing.T) { runCases(t, m, 1) })
		return
	}
	for _, loops := range []int{1, 2} {
		t.Run(fmt.Sprintf("loops=%d", loops), func(t *testing.T) { runCases(t, m, loops) })
	}
}

// hasLoops starts the model once, which also lets Go open the descriptors that
// it keeps.
func hasLoops(t *testing.T, m engine.Model) bool {
	e, err := m.Start(engine.Config{
		Network: "tcp", Addr: "127.0.0.1:0", Handler: newWitness(t, &Script{}),
		Limits: Limits(), Loops: 1, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	if err := e.Stop(context.Background()); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	return e.Loops() > 0
}

func runCases(t *testing.T, m engine.Model, loops int) {
	for _, cases := range [][]testCase{
		inputCases, outputCases, gatherCases, fileCases, closeCases, mailCases, refCases, sendWaitCases, panicCases, limitCases, stopCases, dialCases, stormCases, systemCases,
		castCases, waterCases, entryCases, layerCases, overloadCases, paceCases, listenCases, operatorCases, relayCases(m, loops), fanCases,
	} {
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				checkLeaks(t)
				c.run(&bench{TB: t, model: m, loops: loops})
			})
		}
	}
	runTogether(t, m, loops, timeCases)
}

// runTogether runs the cases that wait for times to pass, all at once.
func runTogether(t *testing.T, m engine.Model, loops int, cases []testCase) {
	t.Run("times", func(t *testing.T) {
		checkLeaks(t)
		t.Run("", func(t *testing.T) { // ends when all have ended
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					c.run(&bench{TB: t, model: m, loops: loops})
				})
			}
		})
	})
}

// systemCases are those of the system that the suite runs on.
var systemCases []testCase

// Limits are bounds that no case comes near unless it means to.
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

// checkLeaks makes the test fail if it leaves goroutines or descriptors behind.
// It comes first in a case, so that it looks after all other cleaning up.
func checkLeaks(t *testing.T) {
	running := goleak.IgnoreCurrent()
	before := openFiles()
	t.Cleanup(func() {
		err := goleak.Find(running)
		for end := time.Now().Add(patience); err != nil && time.Now().Before(end); { // each look takes half a second
			err = goleak.Find(running)
		}
		if err != nil {
			t.Errorf("goroutines are left behind: %v", err)
		}
		if before < 0 {
			return
		}
		eventually(t, "descriptors are left behind", func() bool { return openFiles() <= before })
	})
}

// openFiles counts the descriptors of this process; -1 where that is unknown.
func openFiles() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	return len(entries)
}

var eventually = await.True

// receive waits for a value.
func receive[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	return await.Receive(t, ch, what)
}

// listen opens a listener of this test's own.
func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}
