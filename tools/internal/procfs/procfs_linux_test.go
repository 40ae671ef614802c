package procfs

import (
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/sock"
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
	if n, err := CountNUMANodesWithMemory(); err != nil || n < 1 {
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
	n, err := ReadNetworkOfCurrentNamespace()
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

func listenTCP(t *testing.T, addr string) (*net.TCPListener, uint16) {
	t.Helper()
	network := "tcp4" // "tcp" would make 0.0.0.0 the wildcard of both
	if addr == "[::]:0" {
		network = "tcp"
	}
	ln := testkit.Must(net.Listen(network, addr))(t)
	t.Cleanup(func() { ln.Close() })
	return ln.(*net.TCPListener), ln.Addr().(*net.TCPAddr).AddrPort().Port()
}

var local4, local6 = netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()

// TestListener finds this very process, by the address that it listens at and by the wildcards.
func TestListener(t *testing.T) {
	for _, c := range []struct {
		listen string
		find   netip.Addr
		ok     bool
	}{
		{"127.0.0.1:0", local4, true},
		{"127.0.0.1:0", netip.MustParseAddr("::ffff:127.0.0.1"), true},
		{"127.0.0.1:0", netip.MustParseAddr("127.0.0.2"), false},
		{"0.0.0.0:0", netip.MustParseAddr("127.0.0.2"), true},
		{"0.0.0.0:0", local6, false},
		{"[::]:0", local4, true},
		{"[::]:0", local6, true},
	} {
		_, port := listenTCP(t, c.listen)
		pids, err := FindListenerPIDs(port, c.find)
		if c.ok && (err != nil || !slices.Equal(pids, []int{os.Getpid()})) {
			t.Errorf("listening at %s, looking for %v: got %v, %v; want %d", c.listen, c.find, pids, err, os.Getpid())
		}
		if !c.ok && (err == nil || !strings.Contains(err.Error(), "no process")) {
			t.Errorf("listening at %s, looking for %v: got %v, %v; want an error", c.listen, c.find, pids, err)
		}
	}
}

func TestUnixListener(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "a b.sock"), "@myriad test " + filepath.Base(dir)} {
		if pids, err := FindUnixListenerPIDs(path); err == nil {
			t.Errorf("%q before it listens: got %v; want an error", path, pids)
		}
		ln := testkit.Must(net.Listen("unix", path))(t)
		defer ln.Close()
		if pids, err := FindUnixListenerPIDs(path); err != nil || !slices.Equal(pids, []int{os.Getpid()}) {
			t.Errorf("%q: got %v, %v; want %d", path, pids, err, os.Getpid())
		}
	}
}

// TestSearchIsBounded has a search end when it has looked at what it may.
func TestSearchIsBounded(t *testing.T) {
	s := socketOwnerSearch{links: map[string]bool{"none": true}, left: 3}
	for range 5 {
		s.searchMainDescriptorTable(os.Getpid())
	}
	if s.left != 0 {
		t.Errorf("%d descriptors are left to look at; want the search to end at 0", s.left)
	}
}

func TestRank(t *testing.T) {
	all4, all6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	for _, c := range []struct {
		bound, to netip.Addr
		want      int
	}{
		{local4, local4, 3}, {local6, local6, 3}, {all4, local4, 2}, {all6, local6, 2}, {all6, local4, 1}, {all4, local6, 0}, {local6, local4, 0},
	} {
		if got := addrMatchRankOrZero(c.bound, c.to); got != c.want {
			t.Errorf("bound to %v for %v: got %d, want %d", c.bound, c.to, got, c.want)
		}
	}
}

// TestReadTables counts in the first table, and in that of a thread that has its own.
func TestReadTables(t *testing.T) {
	before := testkit.Must(CountDescriptorsByTable(os.Getpid()))(t)
	if len(before) != 1 {
		t.Fatalf("%d tables before any thread has its own: %+v", len(before), before)
	}
	const more = 10
	sock.RunOnNewThread(func() {
		release, err := sock.UnshareDescriptorTable(nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer release()
		var opened []int
		for range more {
			fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
			testkit.ExpectNoError(t, err)
			opened = append(opened, fd)
		}
		var tables []DescriptorTable
		elsewhere := make(chan struct{})
		go func() { // not on this thread, in whose table it would open a directory
			defer close(elsewhere)
			tables, err = CountDescriptorsByTable(os.Getpid())
		}()
		<-elsewhere
		if err != nil || len(tables) != 2 {
			t.Errorf("tables %+v, %v; want two", tables, err)
			return
		}
		// Its descriptors below sock.FirstPrivateFD are all taken, and none above but these.
		if own := tables[1]; own.Thread != unix.Gettid() || own.Open != sock.FirstPrivateFD+more {
			t.Errorf("the thread's own table is %+v, want thread %d with %d descriptors", own, unix.Gettid(), sock.FirstPrivateFD+more)
		}
		for _, fd := range opened {
			unix.Close(fd)
		}
	})
	// The kernel takes a moment to end the thread.
	testkit.WaitFor(t, "one table is left when the thread has ended", func() bool {
		after, err := CountDescriptorsByTable(os.Getpid())
		return err == nil && len(after) == 1
	})
}
