package procfs

import (
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/testkit"
)

// none is above the kernel's largest process number.
const none = 1 << 30

// TestProcesses finds this very process in its group, and among its parent's children.
func TestProcesses(t *testing.T) {
	self := os.Getpid()
	s, err := ReadStat(self)
	if err != nil || s.PID != self || s.Parent != os.Getppid() || s.Threads < 1 || s.Ended {
		t.Errorf("this process is %+v, %v", s, err)
	}
	if children, err := ChildPIDs(s.Parent); err != nil || !slices.Contains(children, self) {
		t.Errorf("the children of process %d are %v, %v; want %d among them", s.Parent, children, err, self)
	}
	if groups, err := PIDsByProcessGroup(s.Group, none); err != nil || !slices.Contains(groups[s.Group], self) || len(groups[none]) > 0 {
		t.Errorf("the groups are %v, %v; want %d in %d", groups, err, self, s.Group)
	}
	if n, err := CountTasksOfUser(uint32(os.Geteuid())); err != nil || n < s.Threads {
		t.Errorf("%d tasks of this user, %v; want at least %d", n, err, s.Threads)
	}
	if n, err := CountTasksOfMachine(); err != nil || n < int64(s.Threads) {
		t.Errorf("%d tasks of the machine, %v; want at least %d", n, err, s.Threads)
	}
	if _, err := ReadStat(none); !IsNotFoundOrExited(err) {
		t.Errorf("no process: %v, want an error that says gone", err)
	}
	if _, err := CountDescriptorsAndSockets(none); !IsNotFoundOrExited(err) {
		t.Errorf("descriptors of no process: %v, want an error that says gone", err)
	}
	if tables, err := CountDescriptorsByTable(none); !IsNotFoundOrExited(err) {
		t.Errorf("tables of no process: %+v, %v; want an error that says gone", tables, err)
	}
}

func TestReadDescriptors(t *testing.T) {
	before := testkit.Must(CountDescriptorsAndSockets(os.Getpid()))(t)
	for range 3 {
		listenTCP(t, "127.0.0.1:0")
	}
	after, err := CountDescriptorsAndSockets(os.Getpid())
	if err != nil || after.Sockets != before.Sockets+3 || after.Open < before.Open+3 {
		t.Errorf("got %+v, %v, want 3 sockets more than %+v", after, err, before)
	}
}

// TestRights compares with what the system calls say.
func TestRights(t *testing.T) {
	r, err := ReadRights(os.Getpid())
	var caps [2]unix.CapUserData
	testkit.RequireNoError(t, unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0]))
	if want := uint64(caps[0].Effective) | uint64(caps[1].Effective)<<32; err != nil || int(r.User) != os.Getuid() || r.Capabilities != want {
		t.Errorf("got %+v, %v; want user %d with %x", r, err, os.Getuid(), want)
	}
	if inner := (ProcessRights{Capabilities: 1 << CapSysAdmin}); inner.HasInFirstUserNamespace(CapSysAdmin) {
		t.Errorf("in another user namespace: %+v has CAP_SYS_ADMIN for the machine", inner)
	}
	first := ProcessRights{First: true, Capabilities: 1<<CapSysAdmin | 1<<CapNetAdmin}
	if !first.HasInFirstUserNamespace(CapSysAdmin, CapNetAdmin) || first.HasInFirstUserNamespace(CapSysAdmin, CapIPCLock) {
		t.Errorf("%+v has not what it has", first)
	}
	for in, want := range map[string]bool{
		"         0          0 4294967295\n": true, "": false, "0 1000 1\n": false, "0 0 65536\n": false,
		"0 1000 1\n1 100000 65536\n": false, "0 0 4294967295\n1 1 1\n": false,
	} {
		if got := mapsAllUsersToThemselves(in); got != want {
			t.Errorf("uid_map %q: got %v, want %v", in, got, want)
		}
	}
	if _, err := ReadRlimits(none); !IsNotFoundOrExited(err) {
		t.Errorf("limits of no process: %v, want an error that says gone", err)
	}
}

func TestMachine(t *testing.T) {
	if m, err := ReadKernelCPUsAndMemory(); err != nil || m.Kernel == "" || m.CPUs < 1 || m.Memory < 1<<20 {
		t.Errorf("got %+v, %v", m, err)
	}
	if n, err := CountNUMANodes(); err != nil || n < 1 {
		t.Errorf("%d nodes, %v", n, err)
	}
	if receive, send, err := CountInterfaceQueues("lo", 1, "00:00:00:00:00:00"); err == nil && (receive != 1 || send != 1) {
		t.Errorf("lo has %d and %d queues", receive, send)
	}
	if _, _, err := CountInterfaceQueues("lo", 77, ""); err == nil || !strings.Contains(err.Error(), "belongs to another network namespace") {
		t.Errorf("an interface of another network namespace: %v", err)
	}
	for in, want := range map[string][2]int{"0": {0, 1}, "2-5,8": {2, 5}, "3,7-8": {3, 3}} {
		if first, count, err := parseNumberList(in); err != nil || first != want[0] || count != want[1] {
			t.Errorf("list %q: %d, %d, %v; want %v", in, first, count, err, want)
		}
	}
	for _, in := range []string{"", "a", "1-", "5-2", "-1", "99999999"} {
		if first, count, err := parseNumberList(in); err == nil {
			t.Errorf("list %q: %d, %d; want an error", in, first, count)
		}
	}
}

// TestReadNetwork finds both ends of a connection, and every counter.
func TestReadNetwork(t *testing.T) {
	ln, port := listenTCP(t, "127.0.0.1:0")
	c := testkit.Must(net.Dial("tcp4", ln.Addr().String()))(t)
	defer c.Close()
	n, err := ReadNetworkCountersOfNamespace()
	if err != nil || n.Established < 2 || n.Open < n.Established+1 {
		t.Errorf("connected to port %d: got %+v, %v", port, n, err)
	}
	for _, name := range append(limitCounters, "softnet_dropped") {
		if _, ok := n.Counters[name]; !ok {
			t.Errorf("no counter %s among %v", name, n.Counters)
		}
	}
}

// TestSysctl reads settings in one form, and finds out which can't be written.
func TestSysctl(t *testing.T) {
	const several, fixed, missing = "net.ipv4.tcp_rmem", "kernel.osrelease", "net.core.none"
	if value, err := ReadSysctl(several); err != nil || len(strings.Split(value, " ")) != 3 {
		t.Errorf("%s is %q, %v; want three numbers", several, value, err)
	}
	if SysctlWritable(fixed) || SysctlWritable(missing) {
		t.Errorf("%s or %s can be written", fixed, missing)
	}
	if value, err := ReadSysctl(missing); !IsNotFoundOrExited(err) {
		t.Errorf("a setting that does not exist: %q, %v", value, err)
	}
}

// TestSlabs opens sockets, which the cache of TCP's has to show, and finds names that share a cache.
func TestSlabs(t *testing.T) {
	const sockets = 500
	for range sockets {
		listenTCP(t, "127.0.0.1:0")
	}
	s, err := ReadSlabCaches()
	if err != nil && !os.IsPermission(err) {
		t.Fatal(err)
	}
	if tcp := s["TCP"]; err == nil && (tcp.Objects < sockets || tcp.Each < 1000) {
		t.Errorf("TCP with %d sockets open: got %+v", sockets, tcp)
	}
	dir := t.TempDir()
	for name, target := range map[string]string{"eventpoll_epi": ":A-0000128", "bind_bucket": ":A-0000128", "hidden": ":0000064"} {
		testkit.RequireNoError(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	got := map[string]Slab{"eventpoll_epi": {Each: 128}}
	addMergedCacheNames(dir, got)
	if want := map[string]Slab{"eventpoll_epi": {Each: 128}, "bind_bucket": {Each: 128}}; !maps.Equal(got, want) {
		t.Errorf("with those that are merged: got %v, want %v", got, want)
	}
}
