package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

func TestCommand(t *testing.T) {
	for _, c := range []struct {
		change Change
		want   string
	}{
		{Change{Sysctl, "net.core.somaxconn", "4096", "65535"}, "sysctl -w net.core.somaxconn=65535"},
		{Change{Sysctl, rangeName, "32768 60999", "1024 65535"}, "sysctl -w net.ipv4.ip_local_port_range='1024 65535'"},
		{Change{Sysctl, reservedName, "9000", ""}, "sysctl -w net.ipv4.ip_local_reserved_ports=''"},
		{Change{Sysctl, "a.b", "", "it's; rm"}, `sysctl -w a.b='it'\''s; rm'`},
		{Change{Sysctl, "a;b", "", "1"}, `sysctl -w 'a;b'=1`},
		{Change{Nofile, "nofile", "1024", "50000"}, "ulimit -n 50000"},
		{Change{Memlock, "memlock", "8388608", "8388609"}, "ulimit -l 8193"},
		{Change{Link, "lo", "down", "up"}, "ip link set lo up"},
		{Change{Address, "eth0", "", "10.0.0.2/24"}, "ip addr add 10.0.0.2/24 dev eth0"},
		{Change{Address, "eth0", "10.0.0.2/24", ""}, "ip addr del 10.0.0.2/24 dev eth0"},
		{Change{Cgroup, "/sys/fs/cgroup/pids/a b/pids.max", "10", "max"}, "echo max > '/sys/fs/cgroup/pids/a b/pids.max'"},
	} {
		if got := c.change.Command(); got != c.want {
			t.Errorf("%+v: %q, want %q", c.change, got, c.want)
		}
	}
}

// TestChanges gives each setting what suits all walls, those first that others need.
func TestChanges(t *testing.T) {
	near := func(changes ...Change) Wall { return Wall{Holds: 1, Changes: changes} }
	r := &Report{Plan: Plan{Connections: 10}, Walls: []Wall{
		near(Change{Nofile, "nofile", "1024", "2000000"}, Change{Sysctl, "fs.nr_open", "1048576", "2000000"}),
		near(Change{Sysctl, rangeName, "32768 60999", "9000 60999"}, Change{Sysctl, tcpMemName, "1 2 3", "10 20 30"}, Change{Sysctl, reuseName, "2", "1"}),
		near(Change{Sysctl, rangeName, "32768 60999", "16384 65535"}, Change{Sysctl, tcpMemName, "1 2 3", "5 25 30"}, Change{Sysctl, "fs.nr_open", "1048576", "1500000"}),
		near(Change{Sysctl, reservedName, "", "9001,9000"}), near(Change{Sysctl, reservedName, "", "8080,9002"}),
		near(Change{Address, "eth0", "", "10.0.0.2/32"}, Change{Address, "eth0", "", "10.0.0.3/32"}),
		near(Change{Cgroup, "/p", "5", "100"}), near(Change{Cgroup, "/p", "5", "max"}),
		{Holds: 10, Changes: []Change{{Sysctl, "net.core.somaxconn", "1", "2"}}}, // far enough
	}}
	var got []string
	for _, c := range r.Changes() {
		got = append(got, c.String())
	}
	want := []string{
		"fs.nr_open: 1048576 -> 2000000", "net.ipv4.ip_local_reserved_ports: none -> 8080,9000-9002",
		"nofile: 1024 -> 2000000", "net.ipv4.ip_local_port_range: 32768 60999 -> 9000 65535", "net.ipv4.tcp_mem: 1 2 3 -> 10 25 30",
		"net.ipv4.tcp_tw_reuse: 2 -> 1", "address eth0: none -> 10.0.0.2/32", "address eth0: none -> 10.0.0.3/32", "/p: 5 -> max",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("changes\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestApply makes what can be made, says so, passes over the rest, and can be undone.
func TestApply(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a b")
	testkit.RequireNoError(t, os.WriteFile(file, []byte("10\n"), 0o644))
	checkFile := func(want string) {
		t.Helper()
		if text, _ := os.ReadFile(file); string(text) != want {
			t.Errorf("the file has %q, want %q", text, want)
		}
	}
	changes := []Change{
		{Cgroup, file, "10", "20"},
		{Nofile, "nofile", "1024", "5000"},
		{Cgroup, filepath.Join(t.TempDir(), "none", "x"), "1", "2"},
	}
	var out strings.Builder
	undo, err := Apply(t.Context(), &out, changes)
	checkFile("20\n")
	if want := "  " + file + ": 10 -> 20\n"; out.String() != want {
		t.Errorf("it says %q, want %q", out.String(), want)
	}
	for _, want := range []string{changes[1].String(), "run `ulimit -n 5000` in the shell", "none/x"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("what was not done: %v; want %q in it", err, want)
		}
	}
	if len(undo) != 1 || undo[0] != (Change{Cgroup, file, "20", "10"}) {
		t.Fatalf("to undo: %+v", undo)
	}
	_, err = Apply(t.Context(), &out, undo)
	testkit.ExpectNoError(t, err)
	checkFile("10\n")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if undo, err := Apply(ctx, &out, changes[:1]); len(undo) != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %+v, %v", undo, err)
	}
}
