package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/procfs"
	"github.com/myriad-go/myriad/internal/sock"
)

// patience bounds the wait for what a test waits for.
const patience = 2 * time.Minute

// watchUntil follows until a reading is what is waited for, and gives it back.
func watchUntil(t *testing.T, cfg WatchConfig, what string, is func(Reading) bool) (found Reading) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cfg.Interval = MinWatchInterval
	var last Reading
	err := Watch(ctx, cfg, func(r Reading) {
		if last = r; ctx.Err() == nil && is(r) {
			found = r
			cancel()
		}
	})
	if err != nil || found.At.IsZero() {
		t.Fatalf("no reading with %s: %v; the last was %+v", what, err, last)
	}
	return found
}

// wall is a level of a reading, the zero one if it has none.
func (r *Reading) wall(name string) Level {
	for _, l := range r.Levels {
		if l.Wall == name {
			return l
		}
	}
	return Level{}
}

// lazyListener listens on a free port with room for so many connections, and accepts
// none.
func lazyListener(t *testing.T, backlog int) netip.AddrPort {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	raw, err := ln.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), backlog) }), err); err != nil {
		t.Fatal(err)
	}
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

// dialMany begins connections, and does not wait for them.
func dialMany(t *testing.T, to netip.AddrPort, n int) {
	t.Helper()
	for range n {
		fd, err := sock.Dial(to, netip.Addr{}, sock.Options{})
		if err != nil {
			t.Fatal(err)
		}
		unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		t.Cleanup(func() { unix.Close(int(fd)) })
	}
}

// TestWatchServer follows a server whose queue fills until it overflows: this process,
// found by its address.
func TestWatchServer(t *testing.T) {
	if !ownNetwork(t) {
		return
	}
	const backlog = 9 // lets ten in
	at := lazyListener(t, backlog)
	cfg := WatchConfig{Target: at}
	r := watchUntil(t, cfg, "a first reading", func(Reading) bool { return true })
	if len(r.Processes) != 1 || r.Processes[0] != os.Getpid() {
		t.Fatalf("processes %v are followed, want %d", r.Processes, os.Getpid())
	}
	dialMany(t, at, 9)
	r = watchUntil(t, cfg, "nine connections waiting", func(r Reading) bool { return r.wall("somaxconn").Used == 9 })
	if l := r.wall("somaxconn"); l.Limit != backlog+1 || l.Of != at.String() || l.Share != 0.9 {
		t.Errorf("the queue is %+v, want one of %d at %s", l, backlog+1, at)
	}
	if l := r.wall("ports"); l.Used != 9 || l.Of != "127.0.0.1" || l.Limit < 9 {
		t.Errorf("the ports are %+v, want 9 of 127.0.0.1", l)
	}
	// In the first reading of a Watch nothing has risen yet.
	first := true
	r = watchUntil(t, cfg, "an overflow", func(r Reading) bool {
		if first {
			dialMany(t, at, 5)
			first = false
		}
		return r.Rose["ListenOverflows"] > 0
	})
	if l := r.wall("somaxconn"); l.Used != l.Limit {
		t.Errorf("the queue overflowed at %+v", l)
	}
	if !warns(r, "ListenOverflows") {
		t.Errorf("warnings %v, want one of ListenOverflows", r.Warnings)
	}
}

func warns(r Reading, wall string) bool {
	for _, w := range r.Warnings {
		if w.Wall == wall && w.Text != "" {
			return true
		}
	}
	return false
}

// TestWatchMachine has the walls of the whole machine.
func TestWatchMachine(t *testing.T) {
	r := watchUntil(t, WatchConfig{}, "a first reading", func(Reading) bool { return true })
	for _, name := range []string{"tcp_mem", "tcp_max_orphans", "memory"} {
		if l := r.wall(name); l.Limit <= 0 || l.Used < 0 {
			t.Errorf("%s is %+v, want something of a limit; unknown: %q", name, l, r.Unknown)
		}
	}
}

// unprivileged is a process without capabilities, where this one may make it.
func unprivileged(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("sleep", "300")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd.Process.Pid
}

// TestWatchFiles counts the machine's files for a process that they limit, and not for
// one that they don't.
func TestWatchFiles(t *testing.T) {
	for _, pid := range []int{os.Getpid(), unprivileged(t)} {
		rights, err := procfs.ReadRights(pid)
		if err != nil {
			t.Fatal(err)
		}
		r := watchUntil(t, WatchConfig{PID: pid}, "a first reading", func(Reading) bool { return true })
		if l := r.wall("file-max"); rights.Has(procfs.CapSysAdmin) != (l.Limit == 0) {
			t.Errorf("capabilities %x, and file-max is %+v", rights.Capabilities, l)
		}
	}
}

// TestWatchReadsAll has every wall in a network namespace too, and no complaints.
func TestWatchReadsAll(t *testing.T) {
	if !ownNetwork(t) {
		return
	}
	r := watchUntil(t, WatchConfig{PID: os.Getpid(), Target: lazyListener(t, 10)}, "a first reading", func(Reading) bool { return true })
	if len(r.Unknown) > 0 {
		t.Errorf("unknown: %q", r.Unknown)
	}
	for _, name := range []string{"nofile", "tcp_mem", "tcp_max_orphans", "tcp_max_tw_buckets", "memory", "somaxconn", "ports"} {
		if l := r.wall(name); l.Limit <= 0 || l.Used < 0 {
			t.Errorf("%s is %+v, want something of a limit", name, l)
		}
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if l := r.wall("nofile"); l.Limit != int64(limit.Cur) || l.Used < 4 {
		t.Errorf("descriptors %+v, want some of %d", l, limit.Cur)
	}
}

// ownNetwork runs the test in a process that has a network namespace of its own,
// with a loopback interface, and says whether this is that process.
func ownNetwork(t *testing.T) bool {
	t.Helper()
	const inside = "MYRIAD_TEST_IN_NAMESPACE"
	if os.Getenv(inside) != "" {
		raiseLoopback(t)
		return true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) {
		t.Skipf("a network namespace takes root: %v", err)
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("in a network namespace: %v\n%s", err, out)
	}
	return false
}

func raiseLoopback(t *testing.T) {
	t.Helper()
	control, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(control)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		t.Fatal(err)
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(control, unix.SIOCSIFFLAGS, req); err != nil {
		t.Fatal(err)
	}
}

// sleeper is another process.
func sleeper(t *testing.T, flags uintptr) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "300")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		if flags != 0 && errors.Is(err, syscall.EPERM) {
			t.Skipf("a network namespace takes root: %v", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}

// TestWatchEnded says that the process has ended, and ends.
func TestWatchEnded(t *testing.T) {
	other := sleeper(t, 0)
	var readings []Reading
	err := Watch(t.Context(), WatchConfig{PID: other.Process.Pid, Interval: MinWatchInterval}, func(r Reading) {
		if readings = append(readings, r); len(readings) == 1 {
			other.Process.Kill() // it is noticed before it is waited for
		}
	})
	other.Wait()
	if !errors.Is(err, ErrEnded) || len(readings) < 2 {
		t.Fatalf("error %v after %d readings, want ErrEnded after 2 or more", err, len(readings))
	}
	if first := readings[0]; len(first.Processes) != 1 || first.wall("nofile").Used == 0 {
		t.Errorf("the first reading is %+v, want the process's descriptors", first)
	}
	if last := readings[len(readings)-1]; !warns(last, "process") || len(last.Processes) != 0 {
		t.Errorf("the last reading is %+v, want a warning that the process has ended", last)
	}
	err = Watch(t.Context(), WatchConfig{PID: other.Process.Pid}, func(Reading) { t.Error("a reading of a process that isn't there") })
	if want := fmt.Sprintf("there is no process %d", other.Process.Pid); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want one that says %q", err, want)
	}
}

// TestWatchElsewhere names the command that reaches another network namespace.
func TestWatchElsewhere(t *testing.T) {
	pid := sleeper(t, syscall.CLONE_NEWNET).Process.Pid
	err := Watch(t.Context(), WatchConfig{PID: pid}, func(Reading) { t.Error("a reading of another namespace") })
	if want := fmt.Sprintf("nsenter -t %d -n", pid); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want one that says %q", err, want)
	}
}

// TestWatchCgroup follows what a control group lets a process have, and warns when a
// task was refused.
func TestWatchCgroup(t *testing.T) {
	group := filepath.Join("/sys/fs/cgroup/pids", fmt.Sprintf("myriad-watch-%d", os.Getpid()))
	if err := os.Mkdir(group, 0o700); err != nil {
		t.Skipf("no control group for processes can be made: %v", err)
	}
	t.Cleanup(func() { os.Remove(group) })
	set := func(file, to string) {
		if err := os.WriteFile(filepath.Join(group, file), []byte(to), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set("pids.max", "10")
	other := sleeper(t, 0)
	shell := exec.Command("sh", "-c", "read x; (:)") // and then it is over
	shell.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := shell.StdinPipe()
	if err == nil {
		err = shell.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		shell.Process.Kill()
		shell.Wait()
	})
	for _, p := range []*os.Process{other.Process, shell.Process} {
		set("cgroup.procs", strconv.Itoa(p.Pid))
	}
	step := 0
	r := watchUntil(t, WatchConfig{PID: other.Process.Pid}, "a task that was refused", func(r Reading) bool {
		if step++; step == 2 { // the group is known
			if l := r.wall("cgroup-pids"); l.Used != 2 || l.Limit != 10 {
				t.Errorf("the control group is %+v, want 2 of 10 tasks", l)
			}
			set("pids.max", "2")
			fmt.Fprintln(in)
		}
		return r.Rose["pids refused"] > 0
	})
	if l := r.wall("cgroup-pids"); !warns(r, "pids refused") || l.Limit != 2 {
		t.Errorf("a task was refused at %+v with warnings %v", l, r.Warnings)
	}
}

// BenchmarkWatch is what a reading takes.
func BenchmarkWatch(b *testing.B) {
	cfg := WatchConfig{PID: os.Getpid()}
	if name := os.Getenv("MYRIAD_TARGET"); name != "" {
		cfg = WatchConfig{Target: netip.MustParseAddrPort(name)}
	}
	w, err := newWatcher(cfg)
	if err != nil {
		b.Fatal(err)
	}
	var o outlook
	for b.Loop() {
		s, err := w.sample(time.Now())
		if err != nil {
			b.Fatal(err)
		}
		o.next(s)
	}
}
