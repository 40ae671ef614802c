package walls

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/doctor"
)

// The kernel has these walls once for the whole machine, so each test here changes a
// setting of the machine for some seconds.

// restoreAfterTest has the files put back when the test ends, in whatever way: a process of its
// own does it as soon as this one is gone or lets it. It skips the test where the files
// aren't to be written.
func restoreAfterTest(t *testing.T, files ...string) {
	t.Helper()
	for _, file := range files {
		value, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, value, 0)
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
			t.Skip("the setting is not this machine's to change: ", err)
		} else if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if now, err := os.ReadFile(file); err != nil || string(now) != string(value) {
				t.Errorf("%s is %q, %v; want it back at %q", file, now, err, value)
			}
		})
		runAfterTest(t, fmt.Sprintf("printf %%s '%s' > %s", value, file))
	}
}

// runAfterTest has a shell run a command as soon as the test ends, or this process.
func runAfterTest(t *testing.T, command string) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-e", "-c", "cat >/dev/null; "+command)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // so that Ctrl-C is not for it
	in, err := cmd.StdinPipe()
	testkit.RequireNoError(t, err)
	shell := testkit.Start(t, cmd)
	t.Cleanup(func() {
		in.Close()
		if code := shell.WaitExitCode(); code != 0 {
			t.Errorf("the machine was not cleaned up: %d: %s", code, shell.Output)
		}
	})
}

func writeFile(t *testing.T, file, value string) {
	t.Helper()
	testkit.RequireNoError(t, os.WriteFile(file, []byte(value), 0))
}

// The firewall's table of connections has one entry for each, on loopback too. When it
// is full, SYNs are dropped.
func TestConntrack(t *testing.T) {
	const most, wanted = 500, 1500
	const file = "/proc/sys/net/netfilter/nf_conntrack_max"
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("nft, which switches the tracking of connections on, is not installed (nftables)")
	}
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	if tracked, _ := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && tracked > most/10 {
		t.Skipf("the firewall of this machine tracks %d connections, and would let in no more with a table of %d", tracked, most)
	}
	restoreAfterTest(t, file)
	writeFile(t, file, strconv.Itoa(most))
	plan := doctor.Plan{Connections: wanted, Side: doctor.Both, Model: "epoll"}
	holding := []string{"-n", strconv.Itoa(wanted), "--connect-timeout", "500ms", "--duration", "100ms", target}

	w := newTestNamespace(t)
	w.enableConntrack(nft)
	report := w.examineFirstWall("conntrack", 0, plan)
	w.startServe("--model", "epoll")
	got := w.runHold(holding...)
	checkClose(t, "tracked connections", got.Connected, report.Holds)
	checkTimedOut(t, got)
	if dropped := w.examineProcess(0, plan).Facts.Sockets.Counters["nf_conntrack_drop"]; dropped == 0 {
		t.Error("the firewall has counted nothing that it dropped")
	}

	// The setting can be written in the first namespace only, where this process is.
	applyWallChanges(t, report, "conntrack")
	// In the namespace that was, entries outlive their connections by 10 s.
	w = newTestNamespace(t)
	w.enableConntrack(nft)
	w.checkMoved("conntrack", plan)
	w.startServe("--model", "epoll")
	if got = w.runHold(holding...); got.Connected != wanted {
		t.Errorf("after what the doctor changed: %d connections, errors %v; want %d", got.Connected, got.ConnectErrors, wanted)
	}
}

// enableConntrack has the firewall track connections: a rule that asks for their state does that.
func (w *testNamespace) enableConntrack(nft string) {
	w.t.Helper()
	for _, rule := range []string{"add table inet t", "add chain inet t c { type filter hook output priority 0; }", "add rule inet t c ct state new counter"} {
		if p := w.startCommand(nft, rule); p.WaitExitCode() != 0 {
			w.t.Fatalf("nft %s: %s", rule, p.stderr)
		}
	}
}

// The buffers of all sockets of the machine have a bound together. Where the kernel calls
// it pressure, buffers stop growing; TCPMemoryPressures counts that.
func TestMemoryOfBuffers(t *testing.T) {
	const file = "/proc/sys/net/ipv4/tcp_mem"
	restoreAfterTest(t, file)
	// Whatever else this machine does meanwhile takes buffers too, or gives some back.
	const attempts = 5
	for i := range attempts {
		before, err := os.ReadFile(file)
		testkit.RequireNoError(t, err)
		off := checkTCPMemPressure(t, file)
		writeFile(t, file, string(before))
		if off == "" {
			return
		}
		t.Logf("attempt %d: %s", i+1, off)
	}
	t.Errorf("in none of %d attempts was the kernel under pressure where the doctor predicted it", attempts)
}

// checkTCPMemPressure sets the bound low, fills buffers up to a hundredth below what the doctor
// predicts, then to a hundredth above, and says what was not as predicted.
func checkTCPMemPressure(t *testing.T, file string) (off string) {
	// The kernel may have up to 256 pages for each processor that it has not counted.
	const room = 100_000 // pages
	// One segment, which is acknowledged at once: of a second one the sender keeps a
	// copy for 40 ms.
	const unread = 32_000
	plan := doctor.Plan{Connections: 20_000, Side: doctor.Both, Model: "epoll", Unread: unread}
	bound := func() (*doctor.Report, *doctor.Wall) {
		facts, err := doctor.Read(0)
		testkit.RequireNoError(t, err)
		report, err := doctor.Examine(facts, plan)
		testkit.RequireNoError(t, err)
		return report, findWall(t, report, "tcp_mem-pressure")
	}
	pages := int64(-1)
	testkit.WaitFor(t, "buffers of the attempt before are given back", func() bool {
		last := pages
		report, _ := bound()
		pages = report.Facts.Sockets.Pages
		return last >= 0 && max(last-pages, pages-last) < room/500
	})
	low := pages + room
	writeFile(t, file, fmt.Sprint(low, low, 10*low))

	w := newTestNamespace(t)
	w.setSysctl("net.core.somaxconn", "65535")
	server := w.startDeaf()
	defer server.kill()
	pressures := func() int64 {
		return w.examineProcess(0, doctor.Plan{Connections: 1}).Facts.Sockets.Counters["TCPMemoryPressures"]
	}
	report, wall := bound()
	n := wall.Holds
	defer w.sendUnread(server, n-n/100, unread).kill()
	if got := pressures(); got != 0 {
		return fmt.Sprintf("a hundredth below %d connections: the kernel was under pressure %d times", n, got)
	}
	defer w.sendUnread(server, 2*n/100, unread).kill()
	if pressures() == 0 {
		return fmt.Sprintf("a hundredth above %d connections: the kernel was not under pressure", n)
	}
	t.Logf("predicted %d, measured between %d and %d", n, n-n/100, n+n/100)

	applyWallChanges(t, report, "tcp_mem-pressure")
	if _, after := bound(); after.Holds <= n {
		t.Errorf("after what the doctor changed: the wall is at %d more", after.Holds)
	}
	return ""
}

// applyWallChanges makes the doctor's changes for a wall, outside of any world.
func applyWallChanges(t *testing.T, r *doctor.Report, name string) {
	t.Helper()
	changes := findWall(t, r, name).Changes
	if len(changes) == 0 {
		t.Fatalf("the doctor has nothing to change for %s", name)
	}
	if _, err := doctor.Apply(t.Context(), io.Discard, changes); err != nil {
		t.Fatal(err)
	}
}
