package doctor

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/myriad-go/myriad/internal/testkit"
)

// Three machines: a new network namespace, a client of another machine's server, and
// a container in which nothing fits.
func TestWriteText(t *testing.T) {
	for _, test := range []struct {
		golden string
		plan   Plan
		change func(*Facts)
	}{
		{"text-namespace", Plan{Connections: 100000}, func(f *Facts) {
			setRoot(f)
			f.Interfaces = []Interface{{Name: "lo", Loopback: true}}
			f.ReadOnly = []string{"net.core.netdev_max_backlog", "net.ipv4.tcp_max_orphans"}
			f.Unknown = []string{"queues of eth0: /sys is another network namespace's"}
		}},
		{"text-client", Plan{Connections: 100000, Side: Client, Targets: mustParseTargets("10.0.0.9:9000"), Sources: mustParseAddrs("10.0.0.5", "10.0.0.6", "10.0.0.7"), Closing: 100}, nil},
		{"text-container", Plan{Connections: 50000, Side: Server, Model: goroutine, Processes: 2, Unread: 100, Burst: 8000}, func(f *Facts) {
			f.Shards = "close_range: operation not permitted"
			f.Cgroup = CgroupFacts{Memory: CgroupLimit{Max: 256 << 20, Used: 10 << 20, From: "cgroup /a memory.max"}, Tasks: CgroupLimit{Max: 100, Used: 50}}
			f.Process.GoMemoryLimit = 200 << 20
			f.Sockets.Tracked = 40000
			f.Process.Nofile.Hard = 10000
		}},
		{"text-fits", Plan{Connections: 1000, Side: Server, Model: epoll}, nil},
	} {
		var got strings.Builder
		testkit.RequireNoError(t, mustExamine(t, test.plan, test.change).WriteText(&got))
		checkGolden(t, test.golden, got.String())
		_, rest, _ := strings.Cut(got.String(), "\n") // the first line says it all
		for line := range strings.Lines(rest) {
			if n := utf8.RuneCountInString(line); n > 121 && !strings.HasPrefix(line, "  myriad ") {
				t.Errorf("%s: a line of %d characters: %s", test.golden, n, line)
			}
		}
	}
}

func TestCommands(t *testing.T) {
	for _, test := range []struct {
		plan Plan
		want string
	}{
		{Plan{Connections: 10}, "myriad serve --addr 127.0.0.1:9000 --max-conns 10 --first-byte-timeout never; myriad hold -n 10 127.0.0.1:9000"},
		{Plan{Connections: 10, Side: Server, Model: epoll, Processes: 2, Targets: mustParseTargets("10.0.0.1:80")},
			"myriad serve --addr 10.0.0.1:80 --model epoll --processes 2 --max-conns 26 --first-byte-timeout never"},
		{Plan{Connections: 10, Side: Client, Model: goroutine, Targets: mustParseTargets("127.0.0.1:1", "127.0.0.1:2"), Sources: mustParseAddrs("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.7")},
			"myriad hold -n 10 --model goroutine --src 127.0.0.1-127.0.0.3 --src 127.0.0.7 127.0.0.1:1 127.0.0.1:2"},
		{Plan{Connections: 10, Side: Client, Targets: mustParseTargets("[::1]:9")}, "myriad hold -n 10 '[::1]:9'"},
	} {
		if got := strings.Join(mustExamine(t, test.plan, nil).CommandsToRunPlan(), "; "); got != test.want {
			t.Errorf("got  %s\nwant %s", got, test.want)
		}
	}
}

// What can't be changed from here bounds the commands; a limit of a shell is to be
// raised in each.
func TestCommandsAfterChanges(t *testing.T) {
	goroutines := Plan{Connections: 100000, Model: goroutine, Side: Server}
	for _, test := range []struct {
		name, want string
		plan       Plan
		change     func(*Facts)
	}{
		{"shown, but read-only", "Then, for the 65,536 connections that fit:", Plan{Connections: 100000, Side: Server}, func(f *Facts) {
			setRoot(f)
			f.Sockets.Tracking, f.ReadOnly = true, []string{"net.netfilter.nf_conntrack_max"}
		}},
		{"one of two changes is read-only", "Then, for the 19,872 connections that fit:", goroutines, func(f *Facts) {
			setRoot(f)
			setSysctls("fs.nr_open", "50000")(f)
			f.Process.Raise, f.ReadOnly = true, []string{"fs.nr_open"}
		}},
		{"both made", "Then:", goroutines, func(f *Facts) { f.Process.Raise = true }},
		{"in both shells", "Then, each in a shell of its own, after the ulimit above in both:", Plan{Connections: 100000}, func(f *Facts) {
			f.Shards, f.Process.Raise = "EPERM", true
		}},
	} {
		var out strings.Builder
		testkit.RequireNoError(t, mustExamine(t, test.plan, test.change).WriteText(&out))
		if !strings.Contains(out.String(), "\n"+test.want+"\n") {
			t.Errorf("%s: no line %q in\n%s", test.name, test.want, &out)
		}
	}
}

// A container is given at least what the plan needs, in a unit that it knows.
func TestPrintedMemory(t *testing.T) {
	for _, n := range []int{1, 200_000, 20_000_000} {
		r := mustExamine(t, Plan{Connections: n, Side: Server}, nil)
		x := newAnalysis(r.Facts, r.Plan)
		need := x.memoryNeededByPlan(x.cgroupBytesPerConn())
		for format, line := range map[string]string{
			"kubernetes": `\n          memory: (\d+)Mi\n`, "docker": `--memory is given, it needs (\d+)m:`, "systemd": `MemoryMax= is set, it needs (\d+)M:`,
		} {
			var out strings.Builder
			testkit.RequireNoError(t, WriteSettings(&out, format, r))
			found := regexp.MustCompile(line).FindStringSubmatch(out.String())
			if found == nil {
				t.Fatalf("%d connections: no line %s in\n%s", n, line, &out)
			}
			if given, _ := strconv.ParseInt(found[1], 10, 64); given<<20 < need || given<<20 > need+need/4+1<<20 {
				t.Errorf("%d connections, %s: %s MiB; want at least %d bytes, and not a quarter more", n, format, found[1], need)
			}
		}
	}
}

// A size that is needed is never written smaller. A command line can be copied from what is wrapped.
func TestFormats(t *testing.T) {
	for n, want := range map[int64]string{1000: "1,005 B", 1 << 20: "1 MiB", 10<<30 + 1<<29: "10.6 GiB"} {
		if got := formatBytesRoundedUp(n); got != want {
			t.Errorf("%d bytes are %s, want %s", n, got, want)
		}
	}
	long := strings.Repeat("word ", 18)
	const command = "(`sysctl -w net.ipv4.ip_local_port_range='1024 65535'`), and more"
	if got, want := wrapText(long+command, "  "), strings.TrimSpace(long)+"\n  "+command; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
