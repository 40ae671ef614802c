package walls

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/doctor"
)

// newCgroup makes a control group of version 1.
func newCgroup(t *testing.T, limit int64) (folder string) {
	t.Helper()
	if _, err := os.Stat("/sys/fs/cgroup/memory/cgroup.procs"); err != nil {
		t.Skipf("this machine has no control groups of version 1: %v", err)
	}
	return string(testkit.NewMemoryCgroup(t, limit))
}

// The memory of connections, the kernel's part included, is charged to the control group of the process that accepts
// them. At the group's limit the kernel kills the server. The server runs without its overload manager, which would
// refuse connections before. Version 1 charges for the socket itself only while some group of the machine limits the
// memory of TCP's buffers; the test's group does, with a limit that is never reached.
func TestMemoryOfGroup(t *testing.T) {
	const limit, wanted = 128 << 20, 45_000
	group := newCgroup(t, limit)
	w := newTestNamespace(t)
	w.setSysctl("net.core.somaxconn", "4096")
	w.group = group
	idle := w.startScript("echo ready; exec sleep 1h", nil)
	idle.WaitForOutput("ready")
	testkit.WaitFor(t, "the group is no longer charged for how the shell began", func() bool {
		used, err := os.ReadFile(filepath.Join(group, "memory.usage_in_bytes"))
		testkit.RequireNoError(t, err)
		n, err := strconv.Atoi(strings.TrimSpace(string(used)))
		return err == nil && n < limit/200
	})
	plan := doctor.Plan{Connections: wanted, Side: doctor.Server, Model: "epoll"}
	report := w.examineFirstWall("cgroup-memory", idle.Process.Process.Pid, plan)
	idle.kill()
	serve := func() *process {
		w.group = group
		defer func() { w.group = "" }()
		return w.startServe("--model", "epoll", "--max-conns", strconv.Itoa(wanted), "--overload", "off")
	}
	server := serve()

	// How many a killed server had can't be counted from outside: what waits in its queue
	// is reset like some of what it has accepted, and a busy client sees the ends late.
	below, above := int(report.Holds-report.Holds/40), int(report.Holds/20)
	w.callWhileHolding(below, func() {
		testkit.WaitFor(t, "a fortieth below the prediction, the server has all connections", func() bool { return w.servedConns() == below })
		w.runHold("-n", strconv.Itoa(above), "--connect-timeout", "1s", "--duration", "100ms", target)
		server.WaitExitCode()
	})
	if state := server.ProcessState.Sys().(syscall.WaitStatus); state.Signal() != syscall.SIGKILL {
		t.Errorf("the server's end a fortieth above the prediction of %d: %v; want it killed", report.Holds, server.ProcessState)
	}
	if wall := findWall(t, report, "cgroup-memory"); !strings.Contains(strings.ToLower(wall.Effect), "kill") {
		t.Errorf("the doctor says that %q is seen there; want word of the kill", wall.Effect)
	}

	applyWallChanges(t, report, "cgroup-memory")
	serve()
	w.callWhileHolding(wanted, func() {
		testkit.WaitFor(t, "after what the doctor changed, the server has all connections", func() bool { return w.servedConns() == wanted })
	})
}

// The buffers of a group's sockets have a bound of their own in version 1. Beyond it a
// connection gets one segment; what is behind that is dropped and sent again.
func TestBuffersOfGroup(t *testing.T) {
	const limit, wanted = 64_000_000, 1500
	const unread = 60_000 // two segments
	group := newCgroup(t, 1<<40)
	writeFile(t, filepath.Join(group, "memory.kmem.tcp.limit_in_bytes"), strconv.Itoa(limit))
	w := newTestNamespace(t)
	serve := func() *process {
		w.group = group
		defer func() { w.group = "" }()
		return w.startDeaf()
	}
	server := serve()
	plan := doctor.Plan{Connections: wanted, Side: doctor.Server, Model: "epoll", Unread: unread}
	report := w.examineProcess(server.Process.Process.Pid, plan)
	w.sendUnread(server, wanted, unread)
	checkClose(t, "connections whose message fits", server.unreadByConn()[unread], findWall(t, report, "cgroup-sockets").Holds)
	if dropped := w.examineProcess(0, doctor.Plan{Connections: 1}).Facts.Sockets.Counters["TCPRcvQDrop"]; dropped == 0 {
		t.Error("the kernel has counted no segment that it dropped")
	}
	server.kill()

	applyWallChanges(t, report, "cgroup-sockets")
	server = serve()
	w.sendUnread(server, wanted, unread)
	if got := server.unreadByConn()[unread]; got != wanted {
		t.Errorf("after what the doctor changed: %d messages fit; want %d", got, wanted)
	}
}

// sendUnread sends a message of that many bytes on each of n connections, one after the other,
// to a deaf server, and leaves the connections open.
func (w *testNamespace) sendUnread(server *process, n int64, bytes int) *process {
	w.t.Helper()
	before := server.countConns()
	role, err := json.Marshal(unreadSender{Conns: int(n), Bytes: bytes})
	testkit.RequireNoError(w.t, err)
	p := w.startRole(string(role))
	p.WaitForOutput("connected")
	// The group is charged for a connection from when it is accepted.
	testkit.WaitFor(w.t, "all are accepted", func() bool { return server.countConns() == before+int(n) })
	p.writeByte()
	p.WaitForOutput("done")
	return p
}

func (p *process) countConns() (sum int) {
	p.w.t.Helper()
	for _, n := range p.unreadByConn() {
		sum += n
	}
	return sum
}

// unreadByConn asks a deaf server on how many connections how many bytes wait.
func (p *process) unreadByConn() (conns map[int]int) {
	p.w.t.Helper()
	had := len(p.Output.String())
	p.writeByte()
	testkit.WaitFor(p.w.t, "the server has answered", func() bool { return strings.HasSuffix(p.Output.String()[had:], "\n") })
	testkit.RequireNoError(p.w.t, json.Unmarshal([]byte(p.Output.String()[had:]), &conns))
	return conns
}

func (p *process) writeByte() {
	p.w.t.Helper()
	_, err := p.in.Write([]byte{'!'})
	testkit.RequireNoError(p.w.t, err)
}
