package doctor

import (
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// newTestFacts is a made-up machine with Linux's defaults and little memory: 2 CPUs,
// 4 GiB, 20,000 descriptors.
func newTestFacts() *Facts {
	return &Facts{
		Machine: MachineFacts{Kernel: "6.18.0", CPUs: 2},
		Meminfo: MemoryFacts{Total: 4 << 30, Free: 3 << 30},
		Nodes:   1,
		Sysctls: map[string]string{
			"fs.nr_open": "1048576", "fs.file-max": "400000", "fs.epoll.max_user_watches": "900000",
			"net.core.somaxconn": "4096", "net.core.netdev_max_backlog": "1000",
			"net.ipv4.ip_local_port_range": "32768 60999", "net.ipv4.ip_local_reserved_ports": "",
			"net.ipv4.ip_unprivileged_port_start": "1024",
			"net.ipv4.tcp_max_syn_backlog":        "256", "net.ipv4.tcp_syncookies": "1",
			"net.ipv4.tcp_rmem": "4096 131072 6291456", "net.ipv4.tcp_wmem": "4096 16384 4194304",
			"net.ipv4.tcp_mem": "42000 56000 84000", "net.ipv4.tcp_max_orphans": "16384",
			"net.ipv4.tcp_max_tw_buckets": "16384", "net.ipv4.tcp_tw_reuse": "2",
			"net.netfilter.nf_conntrack_max": "65536", "net.netfilter.nf_conntrack_buckets": "65536",
			"kernel.threads-max": "30000", "kernel.pid_max": "32768", "vm.max_map_count": "65530",
			"vm.min_free_kbytes": "0",
		},
		Process: ProcessFacts{
			Nofile: Rlimit{1024, 20000}, Memlock: Rlimit{8 << 20, 8 << 20}, Nproc: Rlimit{15000, 15000},
			User: 1000, UserTasks: 100,
		},
		FilesOpen: 2000, Tasks: 100,
		Interfaces: []Interface{
			{Name: "lo", Loopback: true, Up: true, Addrs: mustParsePrefixes("127.0.0.1/8", "::1/128")},
			{Name: "eth0", Up: true, Addrs: mustParsePrefixes("10.0.0.5/24", "10.0.0.6/24", "fe80::1/64"), Receive: 1, Send: 1},
		},
	}
}

// mustParseAll parses each text, which must be valid.
func mustParseAll[T any](parse func(string) T, texts []string) (list []T) {
	for _, text := range texts {
		list = append(list, parse(text))
	}
	return list
}

func mustParsePrefixes(texts ...string) []netip.Prefix {
	return mustParseAll(netip.MustParsePrefix, texts)
}
func mustParseAddrs(texts ...string) []netip.Addr { return mustParseAll(netip.MustParseAddr, texts) }

func mustParseTargets(texts ...string) []netip.AddrPort {
	return mustParseAll(netip.MustParseAddrPort, texts)
}

// setSysctls gives settings of the kernel.
func setSysctls(pairs ...string) func(*Facts) {
	return func(f *Facts) {
		for i := 0; i < len(pairs); i += 2 {
			f.Sysctls[pairs[i]] = pairs[i+1]
		}
	}
}

// mustExamine is Examine of the machine with a change.
func mustExamine(t *testing.T, p Plan, change func(*Facts)) *Report {
	t.Helper()
	f := newTestFacts()
	if change != nil {
		change(f)
	}
	r, err := Examine(f, p)
	if err != nil {
		t.Fatalf("plan %+v: %v", p, err)
	}
	return r
}

// findWall is a wall of a report, nil if it has none of that name.
func (r *Report) findWall(name string) *Wall {
	if i := slices.IndexFunc(r.Walls, func(w Wall) bool { return w.Name == name }); i >= 0 {
		return &r.Walls[i]
	}
	return nil
}

// movable are the walls that a change of settings moves.
var movable = []string{"nofile", "nr_open", "file-max", "max_user_watches", "ports", "tcp_tw_reuse", "sources", "somaxconn",
	"tcp_max_syn_backlog", "netdev_max_backlog", "tcp_mem", "tcp_mem-pressure", "tcp_rmem", "tcp_wmem", "tcp_max_orphans", "tcp_max_tw_buckets",
	"conntrack", "conntrack-buckets", "threads-max", "pid_max", "max_map_count", "memlock", "loopback", "cgroup-memory", "cgroup-sockets", "cgroup-pids"}

// absent is for a wall that is not to be looked at.
const absent = -1

// TestWalls sets each wall where it is to be. After the changes of a report, every wall that had some
// holds the plan.
func TestWalls(t *testing.T) {
	far := mustParseTargets("10.0.0.9:9000")
	moved := make(map[string]bool)
	for _, test := range []struct {
		name   string
		wall   string
		plan   Plan
		change func(*Facts)
		holds  int64
	}{
		// 20,000 less 128 in reserve; of several processes 4 √19,317 less; with tables for loops the best of L × (limit
		// - 576 - 2 L).
		{"of a goroutine each", "nofile", Plan{Model: goroutine, Side: Server}, nil, 19872},
		{"in worker processes", "nofile", Plan{Model: goroutine, Side: Server, Processes: 3}, nil, 3 * 19317},
		{"with tables", "nofile", Plan{Model: epoll, Side: Server}, nil, 1024 * (20000 - 576 - 2048)},
		{"with few tables", "nofile", Plan{Model: epoll, Side: Server}, setNofile(1000), 106 * 212},
		{"too few for tables", "nofile", Plan{Model: epoll, Side: Server}, setNofile(578), 450},
		{"tables forbidden", "nofile", Plan{Model: epoll, Side: Server}, func(f *Facts) { f.Shards = "EPERM" }, 19872},
		{"none at all", "nofile", Plan{Model: goroutine}, setNofile(128), 0},
		{"no limit", "nofile", Plan{Model: goroutine}, setNofile(-1), Unlimited},
		{"which may be raised", "nofile", Plan{Connections: 50000, Model: goroutine, Side: Server}, func(f *Facts) { f.Process.Raise = true }, 19872},
		{"the client's model is the best", "nofile", Plan{Model: goroutine}, nil, 19872},
		{"", "nr_open", Plan{Model: goroutine, Side: Client}, setSysctls("fs.nr_open", "1000"), 872},
		{"nonsense", "nr_open", Plan{}, setSysctls("fs.nr_open", "many"), absent},
		{"two files a connection", "file-max", Plan{}, nil, (400000 - 2000 - 2*128) / 2},
		{"a supervisor", "file-max", Plan{Side: Server, Processes: 2}, nil, 400000 - 2000 - 3*128},
		{"privileged", "file-max", Plan{}, setRoot, Unlimited},
		{"both by epoll", "max_user_watches", Plan{Connections: 500000}, func(f *Facts) { f.Uring = "no" }, (900000 - 32) / 2},
		{"one by epoll", "max_user_watches", Plan{Model: goroutine}, nil, 900000 - 32},
		{"none by epoll", "max_user_watches", Plan{}, nil, absent},

		{"loopback's addresses", "ports", Plan{}, setSysctls(rangeName, "40000 40001"), 2 * 254 << 16},
		{"interfaces unknown", "sources", Plan{Side: Client, Sources: mustParseAddrs("10.0.0.5"), Targets: far}, func(f *Facts) { f.Interfaces = nil }, absent},
		{"not known", "nofile", Plan{}, setNofile(0), absent},
		{"one source", "ports", Plan{Sources: mustParseAddrs("127.0.0.1")}, nil, 28232},
		{"more than there are", "ports", Plan{Connections: 100000, Sources: mustParseAddrs("127.0.0.1")}, nil, 28232},
		{"the same twice", "ports", Plan{Sources: mustParseAddrs("127.0.0.1", "127.0.0.1")}, nil, 28232},
		{"the published range", "ports", Plan{Sources: mustParseAddrs("127.0.0.1")}, setSysctls(rangeName, "44620 48715"), 4096},
		{"with the server in it", "ports", Plan{Sources: mustParseAddrs("127.0.0.1"), Targets: mustParseTargets("127.0.0.1:45000")}, setSysctls(rangeName, "44620 48715"), 4095},
		{"with somebody else's server in it", "ports", Plan{Side: Client, Sources: mustParseAddrs("127.0.0.1"), Targets: mustParseTargets("127.0.0.1:45000")}, setSysctls(rangeName, "44620 48715"), 4096},
		{"from three, to two", "ports", Plan{Sources: mustParseAddrs("127.0.0.1", "127.0.0.2", "127.0.0.3"), Targets: mustParseTargets("127.0.0.1:1", "127.0.0.1:2")}, setSysctls(rangeName, "44620 48715"), 6 * 4096},
		{"to the same twice", "ports", Plan{Sources: mustParseAddrs("127.0.0.1"), Targets: mustParseTargets("127.0.0.1:1", "127.0.0.1:1")}, nil, 28232},
		{"odd", "ports", Plan{Sources: mustParseAddrs("127.0.0.1")}, setSysctls(rangeName, "40000 40002"), 2},
		{"reserved", "ports", Plan{Sources: mustParseAddrs("127.0.0.1")}, setSysctls(rangeName, "44620 48715", reservedName, "80,45000-45099,48715,50000"), 4096 - 101},
		{"reserved and taken", "ports", Plan{Sources: mustParseAddrs("127.0.0.1")}, func(f *Facts) {
			setSysctls(rangeName, "44620 48715", reservedName, "45000-45099")(f)
			f.Sockets.Ports = []uint16{45001, 46000}
		}, 4096 - 101},
		{"the kernel's choice", "ports", Plan{Side: Client, Targets: far}, nil, 28232},
		{"no interface", "interface", Plan{Side: Client, Targets: mustParseTargets("[2001:db8::1]:9000")}, nil, 0},
		{"loopback's only one", "ports", Plan{Targets: mustParseTargets("[::1]:9000")}, nil, 28232},
		{"", "port-search", Plan{Sources: mustParseAddrs("127.0.0.1")}, nil, 14116},
		{"one is not", "sources", Plan{Sources: mustParseAddrs("127.0.0.9", "10.0.0.7", "10.0.0.5")}, setRoot, 1},
		{"one of another network", "sources", Plan{Side: Client, Sources: mustParseAddrs("10.0.0.5", "10.9.0.7"), Targets: far}, nil, 1},
		{"none closes", "tcp_tw_reuse", Plan{Side: Client}, nil, absent},
		// 1,000 closed a second wait for 1 s on loopback: 28,232 × n / (n + 1000), n = 1000.
		{"loopback", "tcp_tw_reuse", Plan{Side: Client, Connections: 1000, Closing: 1000, Sources: mustParseAddrs("127.0.0.1")}, nil, 14116},
		{"a minute", "tcp_tw_reuse", Plan{Side: Client, Connections: 1000, Closing: 1000, Sources: mustParseAddrs("10.0.0.5"), Targets: far}, nil, 28232 / 61},
		{"allowed", "tcp_tw_reuse", Plan{Side: Client, Connections: 1000, Closing: 1000, Sources: mustParseAddrs("10.0.0.5"), Targets: far}, setSysctls(reuseName, "1"), 14116},

		{"one more than asked", "somaxconn", Plan{Connections: 1000, Burst: 102, Backlog: 100}, nil, 101},
		{"just enough", "somaxconn", Plan{Connections: 1000, Burst: 101, Backlog: 100}, nil, Unlimited},
		{"the kernel's bound", "somaxconn", Plan{Connections: 9999, Burst: 9999, Backlog: 50000}, nil, 4097},
		{"a small plan has no large burst", "somaxconn", Plan{Connections: 50, Backlog: 100}, nil, Unlimited},
		{"cookies", "tcp_max_syn_backlog", Plan{Connections: 1000}, nil, Unlimited},
		{"three quarters", "tcp_max_syn_backlog", Plan{Connections: 1000}, setSysctls("net.ipv4.tcp_syncookies", "0"), 192},
		{"", "netdev_max_backlog", Plan{Connections: 5000, Burst: 1001}, nil, 1000},
		{"of a small plan", "netdev_max_backlog", Plan{Connections: 5000, Burst: 1000}, nil, 64000},

		{"a page for a byte", "tcp_mem-pressure", Plan{Unread: 1}, nil, 56000},
		{"a page", "tcp_mem-pressure", Plan{Unread: 3264}, setTCPPages(6000), 50000},
		{"two", "tcp_mem-pressure", Plan{Unread: 3265}, setTCPPages(6000), 25000},
		{"a first segment comes in", "tcp_mem", Plan{Unread: 32741}, nil, Unlimited},
		// 60,000 bytes are two segments: 61,664 bytes, 16 pages.
		{"a second does not", "tcp_mem", Plan{Unread: 60000}, setTCPPages(4000), 5000},
		// 61,664 bytes are one page of 64 KiB.
		{"large pages", "tcp_mem", Plan{Unread: 60000}, func(f *Facts) { f.PageSize, f.Sockets.Pages = 65536, 4000 }, 80000},
		{"large pages", "cgroup-sockets", Plan{Unread: 60000}, func(f *Facts) { f.PageSize, f.Cgroup.Sockets.Max = 65536, 100*65536+65535 }, 100},
		{"", "cgroup-sockets", Plan{Unread: 60000}, func(f *Facts) { f.Cgroup.Sockets = CgroupLimit{Max: 5000 * 4096, Used: 1000 * 4096, File: "/s"} }, 250},
		{"first segments", "cgroup-sockets", Plan{Unread: 5}, func(f *Facts) { f.Cgroup.Sockets.Max = 4096 }, Unlimited},
		{"fits", "tcp_rmem", Plan{Unread: 127744}, nil, Unlimited},
		{"does not", "tcp_rmem", Plan{Unread: 127745}, nil, 0},
		{"does not", "tcp_wmem", Plan{Unread: 4 << 20}, nil, 0},

		{"", "tcp_max_orphans", Plan{}, func(f *Facts) { f.Sockets.Orphans = 384 }, 16000},
		// 100 a second are 6,000 in TIME_WAIT when there are 1,000: 15,000 at 2,500.
		{"", "tcp_max_tw_buckets", Plan{Connections: 1000, Closing: 100}, func(f *Facts) { f.Sockets.TimeWait = 1384 }, 2500},
		{"not tracked", "conntrack", Plan{}, nil, Unlimited},
		{"a rule and no connection yet", "conntrack", Plan{}, func(f *Facts) { f.Sockets.Tracking = true }, 65536},
		{"", "conntrack", Plan{}, setTracked(536), 65000},
		{"full", "conntrack", Plan{}, setTracked(70000), 0},
		// Each closed entry stays for 120 s, or as the setting says.
		{"closed ones", "conntrack", Plan{Connections: 1000, Closing: 10}, setTracked(536), 65000 * 1000 / 2200},
		{"closed ones, shorter", "conntrack", Plan{Connections: 1000, Closing: 10}, func(f *Facts) {
			setTracked(536)(f)
			f.Sysctls["net.netfilter.nf_conntrack_tcp_timeout_time_wait"] = "10"
		}, 65000 * 1000 / 1100},
		{"", "conntrack-buckets", Plan{Connections: 300000}, setTracked(144), 4*65536 - 144},

		{"all used", "cgroup-memory", Plan{}, func(f *Facts) { f.Cgroup.Memory.Max, f.Cgroup.Memory.Used, f.Cgroup.Memory.File = 1, 2, "/m" }, 0},
		// 24 MB less 3.5 for the process, by 3,800 bytes.
		{"", "GOMEMLIMIT", Plan{Model: goroutine, Side: Server}, func(f *Facts) { f.Process.GoMemoryLimit = 24_000_000 }, 20_500_000 / 3800},
		{"for each process", "GOMEMLIMIT", Plan{Model: goroutine, Side: Server, Processes: 3}, func(f *Facts) { f.Process.GoMemoryLimit = 24_000_000 }, 3 * (20_500_000 / 3800)},
		{"two", "numa", Plan{}, func(f *Facts) { f.Nodes = 2 }, Unlimited},

		// A process has 10 threads on 2 CPUs and one a loop: those that are left are loops.
		{"two loops", "cgroup-pids", Plan{Side: Server, Model: epoll}, setCgroupTasks(100, 88), 2 * (20000 - 576 - 4)},
		{"no thread to spare", "cgroup-pids", Plan{Side: Server, Model: epoll}, setCgroupTasks(100, 90), 0},
		{"one loop", "cgroup-pids", Plan{Connections: 50000, Side: Server, Model: epoll}, setCgroupTasks(100, 89), 19872},
		{"no loops", "cgroup-pids", Plan{Side: Server, Model: goroutine}, setCgroupTasks(100, 90), Unlimited},
		{"", "nproc", Plan{Side: Server, Model: epoll}, func(f *Facts) { f.Process.Nproc.Soft = 113 }, 3 * (20000 - 576 - 6)},
		{"privileged", "nproc", Plan{}, setRoot, absent},
		{"", "threads-max", Plan{Side: Server, Model: goroutine}, setSysctls("kernel.threads-max", "109"), 0},
		{"enough", "threads-max", Plan{Side: Server, Model: goroutine}, setSysctls("kernel.threads-max", "110"), Unlimited},
		{"other users' too", "threads-max", Plan{Side: Server, Model: goroutine}, func(f *Facts) { f.Tasks = 29991 }, 0},
		{"", "pid_max", Plan{Side: Server, Model: goroutine}, setSysctls("kernel.pid_max", "109"), 0},
		{"", "max_map_count", Plan{Connections: 50000, Side: Server, Model: epoll}, setSysctls("vm.max_map_count", "264"), 19872},
		{"can't be used", "io_uring", Plan{Model: uring}, func(f *Facts) { f.Uring = "EPERM" }, 0},
		{"need not be used", "io_uring", Plan{}, func(f *Facts) { f.Uring = "EPERM" }, Unlimited},
		// 10 pages for each ring and one more: 10 rings have 9 loops.
		{"", "memlock", Plan{Side: Server, Model: uring}, func(f *Facts) { f.Process.Memlock.Soft = 10 * 10 * 4096 }, 9 * (20000 - 576 - 18)},
		{"not for auto, which takes epoll then", "memlock", Plan{Side: Server}, func(f *Facts) { f.Process.Memlock.Soft = 0 }, Unlimited},
		{"for auto in worker processes, which can't", "memlock", Plan{Side: Server, Processes: 4}, func(f *Facts) { f.Process.Memlock.Soft = 0 }, 0},
		{"privileged", "memlock", Plan{}, func(f *Facts) { f.Process.Locks = true }, absent},
		{"privileged for something else", "memlock", Plan{Side: Server, Model: uring}, func(f *Facts) { f.Process.Root = true; f.Process.Memlock.Soft = 10 * 10 * 4096 }, 9 * (20000 - 576 - 18)},
		{"large pages", "memlock", Plan{Side: Server, Model: uring}, func(f *Facts) { f.PageSize, f.Process.Memlock.Soft = 65536, 2*3*65536 }, 19872},

		{"down", "loopback", Plan{}, func(f *Facts) { f.Interfaces[0].Up = false }, 0},
		{"down", "interface", Plan{Side: Client, Targets: far}, func(f *Facts) { f.Interfaces[1].Up = false }, 0},
		{"one for two", "queues", Plan{Side: Client, Targets: far}, nil, Unlimited},
		{"enough", "queues", Plan{Side: Client, Targets: far}, func(f *Facts) { f.Interfaces[1].Receive = 2 }, absent},
	} {
		t.Run(test.wall+" "+test.name, func(t *testing.T) {
			if test.plan.Connections == 0 {
				test.plan.Connections = 10000
			}
			f := newTestFacts()
			if test.change != nil {
				test.change(f)
			}
			before, err := examineAndCheck(f, test.plan)
			testkit.RequireNoError(t, err)
			w := before.findWall(test.wall)
			switch {
			case w == nil:
				if test.holds != absent {
					t.Errorf("the wall is missing, want %d", test.holds)
				}
			case w.Holds != test.holds:
				t.Errorf("holds %d, want %d: %+v", w.Holds, test.holds, *w)
			}
			after, err := examineAndCheck(factsAfter(t, f, before.Changes()), test.plan)
			if err != nil {
				t.Fatalf("changed: %v", err)
			}
			for _, w := range before.Walls {
				now := after.findWall(w.Name)
				if len(w.Changes) == 0 || now == nil {
					continue
				}
				if moved[w.Name] = true; now.Exceeded(test.plan.Connections) {
					t.Errorf("%d wanted, %s held %d and holds %d after %v", test.plan.Connections, w.Name, w.Holds, now.Holds, w.Changes)
				}
			}
		})
	}
	for _, name := range movable {
		if !moved[name] {
			t.Errorf("no case moves %s", name)
		}
	}
}

// Numbers of facts may be the largest there are.
func TestNumbers(t *testing.T) {
	const most = math.MaxInt64
	got := []int64{subtractDownToZero(1, -1), subtractDownToZero(1, 2), saturatingAdd(most, 1), saturatingMulDiv(most, most, 1), addEighthAndRoundUp(most)}
	if want := []int64{2, 0, Unlimited, Unlimited, Unlimited}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The wall of locked memory says how many loops fit, whatever the plan takes.
func TestMemlockNamesLoops(t *testing.T) {
	w := mustExamine(t, Plan{Side: Server, Model: epoll, Connections: 10000}, nil).findWall("memlock")
	if want := "8,388,608 bytes, enough for 203 loops on io_uring"; w == nil || w.Present != want {
		t.Errorf("%+v, want %q", w, want)
	}
	advice := mustExamine(t, Plan{Side: Server, Model: uring, Connections: 10000}, func(f *Facts) { f.Process.Memlock = Rlimit{1, 1} }).findWall("memlock").Advice
	if want := "run fewer loops, or use --model epoll; or raise the limit to "; !strings.HasPrefix(advice, want) {
		t.Errorf("the advice is %q, want one that begins with %q", advice, want)
	}
}

func setRoot(f *Facts) { f.Process.Root, f.Process.Locks = true, true }

func setNofile(n int64) func(*Facts) { return func(f *Facts) { f.Process.Nofile = Rlimit{n, n} } }

func setTCPPages(n int64) func(*Facts) { return func(f *Facts) { f.Sockets.Pages = n } }

func setTracked(n int64) func(*Facts) { return func(f *Facts) { f.Sockets.Tracked = n } }

func setCgroupTasks(pids, used int64) func(*Facts) {
	return func(f *Facts) { f.Cgroup.Tasks = CgroupLimit{Max: pids, Used: used, File: "/p"} }
}
