package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/faults"
	"github.com/myriad-go/myriad/tools/internal/procfs"
)

func mustRead(t testing.TB, pid int) *Facts {
	t.Helper()
	f, err := Read(pid)
	testkit.RequireNoError(t, err)
	return f
}

// TestRead compares with what the system says of this process.
func TestRead(t *testing.T) {
	f := mustRead(t, 0)
	for _, limit := range []struct {
		name     string
		resource int
		got      Rlimit
	}{
		{"nofile", unix.RLIMIT_NOFILE, f.Process.Nofile}, {"memlock", unix.RLIMIT_MEMLOCK, f.Process.Memlock}, {"nproc", unix.RLIMIT_NPROC, f.Process.Nproc},
	} {
		var r unix.Rlimit
		testkit.RequireNoError(t, unix.Getrlimit(limit.resource, &r))
		// No limit is all ones there.
		if want := (Rlimit{int64(r.Cur), int64(r.Max)}); limit.got != want {
			t.Errorf("%s is %+v, getrlimit says %+v", limit.name, limit.got, want)
		}
	}
	if f.Process.PID != os.Getpid() || int(f.Process.User) != os.Getuid() || f.Process.UserTasks < 2 || f.Process.Open < 3 {
		t.Errorf("process: got %+v", f.Process)
	}
	if f.Nodes < 1 || f.Meminfo.Free <= 0 || f.Machine.Kernel == "" || f.FilesOpen < 3 {
		t.Errorf("got %d nodes, %+v, %+v, %d open files", f.Nodes, f.Meminfo, f.Machine, f.FilesOpen)
	}
	for _, name := range []string{"fs.nr_open", "fs.file-max", "net.ipv4.ip_local_port_range", "net.core.somaxconn"} {
		if f.Sysctls[name] == "" {
			t.Errorf("no %s among %v", name, f.Sysctls)
		}
	}
	if len(f.Caches) == 0 {
		if !isUnknown(f, "sizes of the kernel's objects") {
			t.Errorf("no sizes of the kernel's objects, and no reason: %q", f.Unknown)
		}
	} else if tcp := f.Caches["TCP"]; tcp < 1000 || tcp > 10000 {
		t.Errorf("one TCP socket takes %g bytes of its cache, of %v", tcp, f.Caches)
	}
	b, err := json.Marshal(f)
	var again Facts
	if err == nil {
		err = json.Unmarshal(b, &again)
	}
	again.At = f.At // which has a monotonic clock too
	if err != nil || !reflect.DeepEqual(*f, again) {
		t.Errorf("through JSON: %v\n%+v\n%+v", err, *f, again)
	}
}

func isUnknown(f *Facts, what string) bool {
	return slices.ContainsFunc(f.Unknown, func(u string) bool { return strings.HasPrefix(u, what+": ") })
}

func TestReadOfNobody(t *testing.T) {
	for pid, want := range map[int]string{-1: "pid is -1; expected a process ID, or 0 for the current process", 1 << 30: "process 1073741824: "} {
		if f, err := Read(pid); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("process %d: got %+v, %v; want an error with %q", pid, f, err, want)
		}
	}
}

// newNamespace makes a network namespace, which takes root.
func newNamespace(t *testing.T) *faults.Namespace {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a network namespace takes root")
	}
	n, err := faults.NewNamespace()
	testkit.RequireNoError(t, err)
	t.Cleanup(func() { n.Close() })
	return n
}

// TestReadNetwork opens connections in a namespace where nobody else does.
func TestReadNetwork(t *testing.T) {
	const connections = 20
	outside := mustRead(t, 0)
	err := newNamespace(t).RunInside(func() error {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("20000 20063"), 0); err != nil {
			return err
		}
		before := mustRead(t, 0)
		if got := before.Sysctls["net.ipv4.ip_local_port_range"]; got != "20000 20063" {
			t.Errorf("ip_local_port_range is %q", got)
		}
		if len(before.Interfaces) != 1 || !before.Interfaces[0].Up || !before.Interfaces[0].Loopback || len(before.Interfaces[0].Addrs) == 0 {
			t.Errorf("got the interfaces %+v, want lo, up", before.Interfaces)
		}
		if s := before.Sockets; s.Open != 0 || s.TimeWait != 0 || len(s.Ports) != 0 || s.Counters["ListenOverflows"] != 0 || s.Tracking {
			t.Errorf("in a new namespace: got %+v", s)
		}
		if isUnknown(before, "whether connections are tracked") {
			t.Errorf("got %q", before.Unknown)
		}
		var conns []io.Closer
		defer func() {
			for _, c := range conns {
				c.Close()
			}
		}()
		for _, addr := range []string{"127.0.0.1:20007", "127.0.0.1:9000"} { // in and outside of the range
			l, err := net.Listen("tcp", addr)
			if err != nil {
				return err
			}
			conns = append(conns, l)
		}
		for range connections { // the kernel accepts them
			c, err := net.Dial("tcp", "127.0.0.1:9000")
			if err != nil {
				return err
			}
			conns = append(conns, c)
		}
		after := mustRead(t, 0)
		if got, want := after.Sockets.Open, int64(2+2*connections); got != want {
			t.Errorf("%d sockets are open, want %d: two that listen, and both ends of %d connections", got, want, connections)
		}
		if !slices.Equal(after.Sockets.Ports, []uint16{9000, 20007}) {
			t.Errorf("on ports %v sockets listen, want 9000, and 20007 which is in the range", after.Sockets.Ports)
		}
		if got := after.Process.Open; got < 2+connections {
			t.Errorf("%d descriptors are open, want at least %d", got, 2+connections)
		}
		return nil
	})
	testkit.RequireNoError(t, err)
	if got := mustRead(t, 0).Sysctls["net.ipv4.ip_local_port_range"]; got != outside.Sysctls["net.ipv4.ip_local_port_range"] {
		t.Errorf("outside ip_local_port_range has become %q", got)
	}
}

// TestReadMachineWide finds settings that a namespace doesn't show.
func TestReadMachineWide(t *testing.T) {
	outside := mustRead(t, 0)
	err := newNamespace(t).RunInside(func() error {
		if _, err := procfs.ReadSysctl("net.ipv4.tcp_mem"); !procfs.IsNotFoundOrExited(err) {
			return fmt.Errorf("tcp_mem is shown here: %w", err)
		}
		f := mustRead(t, 0)
		for _, name := range []string{tcpMemName, orphansName, deviceName} {
			if f.Sysctls[name] != outside.Sysctls[name] || !slices.Contains(f.ReadOnly, name) {
				t.Errorf("%s is %q, outside %q; read-only are %q, unknown %q", name, f.Sysctls[name], outside.Sysctls[name], f.ReadOnly, f.Unknown)
			}
		}
		return nil
	})
	testkit.RequireNoError(t, err)
}

// startChild starts a process that does nothing until the test ends.
func startChild(t *testing.T, attributes *syscall.SysProcAttr) (pid int) {
	t.Helper()
	cmd := exec.Command("sleep", "1h")
	cmd.SysProcAttr = attributes
	return testkit.Start(t, cmd).Process.Pid
}

// TestReadOther reads a process that has other limits, in another network namespace.
func TestReadOther(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a network namespace takes root")
	}
	pid := startChild(t, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET})
	testkit.RequireNoError(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 100, Max: 200}, nil))
	f := mustRead(t, pid)
	if f.Process.PID != pid || f.Process.Nofile != (Rlimit{100, 200}) || f.Process.Open < 3 || !isUnknown(f, "GOMEMLIMIT") {
		t.Errorf("got %+v, unknown %q", f.Process, f.Unknown)
	}
	if len(f.Interfaces) != 1 || f.Interfaces[0].Up || f.Sockets.Open != 0 {
		t.Errorf("got %+v, %+v; want lo, down, and no sockets", f.Interfaces, f.Sockets)
	}
	// With lo down that can't be found out, which a wall says already.
	if isUnknown(f, "whether connections are tracked") || f.Sockets.Tracking {
		t.Errorf("lo is down: tracking %v, unknown %q", f.Sockets.Tracking, f.Unknown)
	}
}

// TestReadCgroup reads a process that cgroups limit.
func TestReadCgroup(t *testing.T) {
	pid := startChild(t, nil)
	memory := putInCgroup(t, pid, "memory", "memory.limit_in_bytes", "memory.max", "104857600")
	tasks := putInCgroup(t, pid, "pids", "pids.max", "pids.max", "50")
	c := mustRead(t, pid).Cgroup
	if m := c.Memory; m.Max != 100<<20 || m.File != memory || !strings.HasPrefix(m.From, "cgroup /myriad-doctor-") || m.Used >= m.Max {
		t.Errorf("got %+v, want a limit of 100 MiB by %s", c, memory)
	}
	if n := c.Tasks; n.Max != 50 || n.File != tasks || n.Used != 1 {
		t.Errorf("got %+v, want 1 of 50 tasks by %s", c, tasks)
	}
}

// putInCgroup moves a process to a cgroup with a limit until the test ends. controller and file are of version 1,
// file2 is of version 2.
func putInCgroup(t *testing.T, pid int, controller, file, file2, limit string) (path string) {
	t.Helper()
	mount := "/sys/fs/cgroup/" + controller
	if _, err := os.Stat(mount); err != nil {
		mount, file = "/sys/fs/cgroup", file2
	}
	dir := filepath.Join(mount, fmt.Sprint("myriad-doctor-", os.Getpid()))
	path = filepath.Join(dir, file)
	procs, member := "cgroup.procs", []byte(strconv.Itoa(pid))
	err := os.Mkdir(dir, 0o755)
	if err == nil {
		t.Cleanup(func() {
			// Back to where the rest is, for the group to be removed.
			_ = os.WriteFile(filepath.Join(mount, procs), member, 0)
			testkit.ExpectNoError(t, os.Remove(dir))
		})
	}
	if err == nil || os.IsExist(err) { // version 2 has one for both
		err = errors.Join(os.WriteFile(path, []byte(limit), 0), os.WriteFile(filepath.Join(dir, procs), member, 0))
	}
	if err != nil {
		t.Skip("cgroups that may be written are needed: ", err)
	}
	return path
}
