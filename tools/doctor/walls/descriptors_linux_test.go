package walls

import (
	"strconv"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/doctor"
)

// A server keeps within its descriptors: it turns away what it has no room for.
func TestDescriptors(t *testing.T) {
	const wanted = 1500
	w := newTestNamespace(t)
	w.nofile = 1024
	report := w.examineFirstWall("nofile", 0, doctor.Plan{Connections: wanted, Side: doctor.Server, Model: "goroutine"})
	w.checkRefusesToStart(wanted, "goroutine", strconv.FormatInt(report.Holds, 10))
	w.startServe("--model", "goroutine")
	w.callWhileHolding(wanted, func() {
		testkit.WaitFor(t, "all are served or turned away", func() bool {
			return w.servedConns()+w.readMetric(`myriad_connections_refused_total{cause="full"}`) == wanted
		})
		checkClose(t, "a server", w.servedConns(), report.Holds)
	})
}

// checkRefusesToStart starts a server for more connections than its limit of descriptors has room for.
func (w *testNamespace) checkRefusesToStart(conns int64, model, says string) {
	w.t.Helper()
	server := w.startCommand("myriad", "serve", "--addr", target, "--model", model, "--max-conns", strconv.FormatInt(conns, 10))
	code, text := server.WaitExitCode(), server.stderr.String()
	if code != 2 || !strings.Contains(text, "RLIMIT_NOFILE") || !strings.Contains(text, says) {
		w.t.Errorf("a server of %d: exit code %d, %q; want 2, RLIMIT_NOFILE and %s", conns, code, text, says)
	}
}

// callWhileHolding does f while n connections are held, all of which have been made.
func (w *testNamespace) callWhileHolding(n int, f func()) {
	w.t.Helper()
	holding := w.startCommand("myriad", "hold", "--json", "-n", strconv.Itoa(n), target)
	defer holding.kill()
	holding.WaitForOutput(`"phase":"measuring"`)
	f()
}

// With loops each descriptor table has the limit for itself; the doctor knows how far
// that goes.
func TestDescriptorTables(t *testing.T) {
	w := newTestNamespace(t)
	w.nofile = 680
	report := w.examineFirstWall("nofile", 0, doctor.Plan{Connections: 1_000_000, Side: doctor.Server, Model: "epoll"})
	w.checkRefusesToStart(report.Holds+report.Holds/100, "epoll", "")
	w.startServe("--model", "epoll", "--max-conns", strconv.FormatInt(report.Holds, 10))
	w.nofile = 0
	w.callWhileHolding(int(report.Holds), func() {
		testkit.WaitFor(t, "the server has as many as its tables hold", func() bool { return int64(w.servedConns()) == report.Holds })
	})
}

// A server on package net accepts no more connections than the limit allows. The other clients wait in its accept
// queue.
func TestEMFILE(t *testing.T) {
	w := newTestNamespace(t)
	w.setSysctl("net.core.somaxconn", "4096")
	w.nofile = 1024
	server := w.startCommand("myriad", "plain", "--addr", target)
	server.WaitForOutput("serving echo")
	examine := func() *doctor.Report {
		return w.examineProcess(server.Process.Process.Pid, doctor.Plan{Connections: 1500, Side: doctor.Server, Model: "goroutine"})
	}
	report := examine()
	w.nofile = 0
	w.callWhileHolding(1500, func() {
		testkit.WaitFor(t, "the server has as many descriptors as it may", func() bool {
			process := examine().Facts.Process
			return int64(process.Open) == process.Nofile.Soft
		})
	})
	if effect := findWall(t, report, "nofile").Effect; !strings.Contains(effect, "EMFILE") {
		t.Errorf("the doctor says that %q is seen there; want EMFILE", effect)
	}
}
