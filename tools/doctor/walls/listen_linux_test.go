package walls

import (
	"strconv"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/tools/doctor"
	"github.com/myriad-go/myriad/tools/load"
)

// A server that stands still accepts nothing: its queue takes one connection more than
// the lesser of somaxconn and the backlog that it asked for.
func TestBacklog(t *testing.T) {
	const burst = 600
	w := newTestNamespace(t)
	w.setSysctl("net.core.somaxconn", "100")
	plan := doctor.Plan{Connections: burst, Side: doctor.Server, Burst: burst}
	report := w.examineProcess(0, plan)
	queue := findWall(t, report, "somaxconn")
	got, overflows := w.connectBurst(burst)
	checkClose(t, "a burst", got, queue.Holds)
	if overflows == 0 {
		t.Error("the kernel has counted no overflow of the queue")
	}

	w.applyChanges(report.Changes())
	w.checkMoved("somaxconn", plan)
	if got, overflows := w.connectBurst(burst); got != burst || overflows != 0 {
		t.Errorf("after what the doctor changed: %d connections, %d overflows; want %d and none", got, overflows, burst)
	}
}

// connectBurst sends n connections to a server that is stopped, and says how many are
// established and how many SYNs found the queue full.
func (w *testNamespace) connectBurst(n int) (established int, overflows int64) {
	w.t.Helper()
	server := w.startServe("--model", "goroutine")
	defer server.kill()
	server.Signal(syscall.SIGSTOP)
	counted := func() int64 {
		return w.examineProcess(0, doctor.Plan{Connections: 1}).Facts.Sockets.Counters["ListenOverflows"]
	}
	before := counted()
	result := w.runHold("-n", strconv.Itoa(n), "--connect-timeout", "500ms", "--duration", "100ms", target)
	if result.Connected < n {
		checkTimedOut(w.t, result)
	}
	return result.Connected, counted() - before
}

// checkTimedOut says that connections failed because nothing answered them, and for no other
// reason.
func checkTimedOut(t *testing.T, result *load.Result) {
	t.Helper()
	if e := result.ConnectErrors; len(e) != 1 || e["not established within 500ms"] == 0 {
		t.Errorf("connections failed by %v; want all by the time", e)
	}
}
