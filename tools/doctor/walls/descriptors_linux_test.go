package walls

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/doctor"
)

const lowNofile = 1024

// A server keeps within its descriptors: it turns away what it has no room for.
func TestDescriptors(t *testing.T) {
	const wanted = 1500
	w := newTestNamespace(t)
	w.stage.Nofile = lowNofile
	report := w.examineProcess(0, doctor.Plan{Connections: wanted, Side: doctor.Server, Model: "goroutine"})
	checkFirstWall(t, report, "nofile")

	refused := w.startStage(stage{Exec: []string{myriad, "serve", "--addr", target, "--model", "goroutine", "--max-conns", strconv.Itoa(wanted)}})
	if code, out := refused.ExitCode(), refused.Output.String(); code != 2 || !strings.Contains(out, "RLIMIT_NOFILE") || !strings.Contains(out, strconv.FormatInt(report.Holds, 10)) {
		t.Errorf("a server of %d: exit code %d, %q; want 2, RLIMIT_NOFILE and %d", wanted, code, out, report.Holds)
	}
	server := w.startServe("--model", "goroutine")
	w.callWhileHolding(wanted, func() {
		testkit.WaitFor(t, "all are served or turned away", func() bool {
			return w.servedConns()+w.readMetric(`myriad_connections_refused_total{cause="full"}`) == wanted
		})
		checkClose(t, "a server", w.servedConns(), report.Holds)
	})
	server.kill()

	// The doctor's way out, where the limit can't be raised: loops.
	report = w.examineProcess(0, doctor.Plan{Connections: wanted, Side: doctor.Both, Model: "epoll"})
	if nofile := findWall(t, report, "nofile"); nofile.Exceeded(wanted) {
		t.Errorf("with loops: the wall is at %d", nofile.Holds)
	}
	defer w.startServe("--model", "epoll", "--max-conns", strconv.Itoa(wanted)).kill()
	w.callWhileHolding(wanted, func() {
		testkit.WaitFor(t, "with loops, the server has all connections", func() bool { return w.servedConns() == wanted })
	})
}

// callWhileHolding does f while n connections are held, all of which have been made.
func (w *testNamespace) callWhileHolding(n int, f func()) {
	w.t.Helper()
	holding := w.startStage(stage{Exec: []string{myriad, "hold", "--json", "-n", strconv.Itoa(n), target}})
	defer holding.kill()
	holding.waitForOutput(`"phase":"measuring"`)
	f()
}

// With loops each descriptor table has the limit for itself; the doctor knows how far
// that goes.
func TestDescriptorTables(t *testing.T) {
	w := newTestNamespace(t)
	w.stage.Nofile = 680
	report := w.examineProcess(0, doctor.Plan{Connections: 1_000_000, Side: doctor.Server, Model: "epoll"})
	checkFirstWall(t, report, "nofile")
	ask := func(n int64) *process {
		return w.startStage(stage{Exec: []string{myriad, "serve", "--addr", target, "--admin", admin, "--model", "epoll", "--max-conns", strconv.FormatInt(n, 10)}})
	}
	above := ask(report.Holds + report.Holds/100)
	if code, out := above.ExitCode(), above.Output.String(); code != 2 || !strings.Contains(out, "RLIMIT_NOFILE") {
		t.Errorf("a hundredth above: exit code %d, %q; want 2 and RLIMIT_NOFILE", code, out)
	}
	below := ask(report.Holds)
	below.waitForOutput("serving echo on")
	w.stage.Nofile = 0
	w.callWhileHolding(int(report.Holds), func() {
		testkit.WaitFor(t, "the server has as many as its tables hold", func() bool { return int64(w.servedConns()) == report.Holds })
	})
}

// A server on package net ends at the limit, with the error that everybody knows.
func TestEMFILE(t *testing.T) {
	w := newTestNamespace(t)
	w.stage.Nofile = lowNofile
	server := w.startStage(stage{Exec: []string{myriad, "plain", "--addr", target}})
	server.waitForOutput("serving echo")
	report := w.examineProcess(server.Process.Process.Pid, doctor.Plan{Connections: 1500, Side: doctor.Server, Model: "goroutine"})
	process := report.Facts.Process
	room := process.Nofile.Soft - int64(process.Open)

	w.stage.Nofile = 0
	got := w.runHold("-n", "1500", "--duration", "100ms", target)
	if code, out := server.ExitCode(), server.Output.String(); code != 1 || !strings.Contains(out, "too many open files") {
		t.Errorf("exit code %d, %q; want 1 and EMFILE", code, out)
	}
	checkClose(t, "an accept loop", int(got.Lost["closed by the server"]), room)
	if nofile := findWall(t, report, "nofile"); !slices.ContainsFunc([]string{"EMFILE", "too many open files"}, func(s string) bool { return strings.Contains(nofile.Effect, s) }) {
		t.Errorf("the doctor says that %q is seen there; want EMFILE", nofile.Effect)
	}
}
