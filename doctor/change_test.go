package doctor

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
)

func TestCommand(t *testing.T) {
	for _, c := range []struct {
		change Change
		want   string
	}{
		{Change{Sysctl, "net.core.somaxconn", "4096", "65535"}, "sysctl -w net.core.somaxconn=65535"},
		{Change{Sysctl, "net.ipv4.ip_local_port_range", "32768 60999", "1024 65535"}, "sysctl -w net.ipv4.ip_local_port_range='1024 65535'"},
		{Change{Sysctl, "net.ipv4.ip_local_reserved_ports", "9000", ""}, "sysctl -w net.ipv4.ip_local_reserved_ports=''"},
		{Change{Sysctl, "a.b", "", "it's; rm"}, `sysctl -w a.b='it'\''s; rm'`},
		{Change{Nofile, "", "1024", "50000"}, "ulimit -n 50000"},
		{Change{Nofile, "", "1024:4096", "50000"}, "ulimit -n 50000"},
		{Change{Nofile, "", "1024:1048576", "50000"}, "ulimit -Sn 50000"},
		{Change{Nofile, "", "1024:unlimited", "50000"}, "ulimit -Sn 50000"},
		{Change{Nofile, "", "1024:50000", "50000"}, "ulimit -Sn 50000"},
		{Change{Nofile, "", "50000:50000", "1024:4096"}, "ulimit -Sn 1024 && ulimit -Hn 4096"},
		{Change{Nofile, "", "50000:50000", "1024:50000"}, "ulimit -Sn 1024"},
		{Change{Nofile, "", "50:60", "1024:4096"}, "ulimit -Hn 4096 && ulimit -Sn 1024"},
		{Change{Nofile, "", "50:60", "-1"}, "ulimit -n unlimited"},
		{Change{Memlock, "", "8388608", "8388609"}, "ulimit -l 8193"},
		{Change{Memlock, "", "65536:unlimited", "1048576"}, "ulimit -Sl 1024"},
		{Change{Link, "lo", "down", "up"}, "ip link set lo up"},
		{Change{Address, "eth0", "", "10.0.0.2/24"}, "ip addr add 10.0.0.2/24 dev eth0"},
		{Change{Address, "eth0", "10.0.0.2/24", ""}, "ip addr del 10.0.0.2/24 dev eth0"},
		{Change{Cgroup, "/sys/fs/cgroup/pids/a b/pids.max", "10", "max"}, "echo max > '/sys/fs/cgroup/pids/a b/pids.max'"},
	} {
		if got := c.change.Command(); got != c.want {
			t.Errorf("%+v: %q, expected %q", c.change, got, c.want)
		}
	}
}

func TestTarget(t *testing.T) {
	const refused = "refused"
	ports, buffers := "net.ipv4.ip_local_port_range", "net.ipv4.tcp_rmem"
	for _, c := range []struct {
		change        Change
		present, want string
	}{
		{Change{Sysctl, "net.core.somaxconn", "4096", "65535"}, "4096", "65535"},
		{Change{Sysctl, "net.core.somaxconn", "4096", "65535"}, "128", "65535"},
		{Change{Sysctl, "net.core.somaxconn", "4096", "65535"}, "100000", "100000"},
		{Change{Sysctl, "net.core.somaxconn", "65535", "4096"}, "65535", "4096"},
		{Change{Sysctl, "net.core.somaxconn", "65535", "4096"}, "70000", refused},
		{Change{Sysctl, ports, "32768 60999", "1024 65535"}, "32768 60999", "1024 65535"},
		{Change{Sysctl, ports, "32768 60999", "9000 65000"}, "1024 60999", "1024 65000"},
		{Change{Sysctl, ports, "1024 65535", "32768 60999"}, "1024 65535", "32768 60999"},
		{Change{Sysctl, ports, "1024 65535", "32768 60999"}, "1025 65535", refused},
		{Change{Sysctl, buffers, "4096 131072 6291456", "4096 16384 33554432"}, "4096 131072 6291456", "4096 16384 33554432"}, // its second is less, as it says
		{Change{Sysctl, buffers, "4096 131072 6291456", "4096  131072\t33554432"}, "4096 200000 6291456", "4096 200000 33554432"},
		{Change{Sysctl, "kernel.io_uring_disabled", "2", "0"}, "2", "0"}, // no amount
		{Change{Sysctl, "net.ipv4.tcp_tw_reuse", "0", "1"}, "2", refused},
		{Change{Sysctl, "net.ipv4.tcp_tw_reuse", "0", "1"}, "1", "1"},
		{Change{Sysctl, "net.ipv4.tcp_tw_reuse", "", "1"}, "2", "1"},
		{Change{Sysctl, reservedName, "9000", "9000,9100"}, "9000,9101", "9000,9100-9101"},
		{Change{Sysctl, reservedName, "", "9000"}, "9001", "9000-9001"},
		{Change{Sysctl, reservedName, "9000", ""}, "9000,9200", refused},
		{Change{Sysctl, reservedName, "9000,9001", "8080"}, "9000-9001", "8080"},
		{Change{Sysctl, "net.ipv4.ip_local_reserved_ports", "9000", ""}, "9000", ""},
		{Change{Nofile, "", "1024", "50000"}, "1024:4096", "50000:50000"},
		{Change{Nofile, "", "1024", "50000"}, "1024:1048576", "50000:1048576"},
		{Change{Nofile, "", "1024", "50000"}, "60000:60000", "60000:60000"},
		{Change{Nofile, "", "1024", "50000"}, "1024:unlimited", "50000:unlimited"},
		{Change{Nofile, "", "50000:50000", "1024:4096"}, "50000:50000", "1024:4096"},
		{Change{Nofile, "", "50000:50000", "1024:4096"}, "60000:60000", refused},
		{Change{Cgroup, "/sys/fs/cgroup/p/pids.max", "10", "max"}, "10", "max"},
		{Change{Cgroup, "/sys/fs/cgroup/p/pids.max", "10", "100"}, "max", "max"},
		{Change{Link, "lo", "up", "down"}, "up", "down"},
		{Change{Address, "lo", "", "10.0.0.2"}, "", "10.0.0.2/32"},
		{Change{Address, "lo", "10.0.0.2/32", ""}, "10.0.0.2/32", ""},
	} {
		got, err := c.change.target(c.present)
		if err != nil {
			got = refused
		}
		if got != c.want {
			t.Errorf("%v at %q: %q (%v), expected %q", c.change, c.present, got, err, c.want)
		}
	}
}

func TestCheckChange(t *testing.T) {
	for _, c := range []struct {
		change Change
		want   string
	}{
		{Change{Sysctl, "net.core.somaxconn", "", "1"}, ""},
		{Change{Sysctl, "../core", "", "1"}, `the name "../core"; expected the name of a kernel setting, such as net.core.somaxconn`},
		{Change{Sysctl, "net..core", "", "1"}, `the name "net..core"; expected the name of a kernel setting, such as net.core.somaxconn`},
		{Change{Sysctl, "net/core", "", "1"}, `the name "net/core"; expected the name of a kernel setting, such as net.core.somaxconn`},
		{Change{Nofile, "", "", "many"}, `the limit "many"; expected a number, SOFT:HARD with SOFT not above HARD, or unlimited`},
		{Change{Nofile, "", "", "5:4"}, `the limit "5:4"; expected a number, SOFT:HARD with SOFT not above HARD, or unlimited`},
		{Change{Memlock, "", "", "unlimited:4"}, `the limit "unlimited:4"; expected a number, SOFT:HARD with SOFT not above HARD, or unlimited`},
		{Change{Link, "lo", "", "on"}, `the state "on"; expected up or down`},
		{Change{Address, "lo", "", "10.0.0"}, `the address "10.0.0"; expected one such as 10.0.0.2/24`},
		{Change{Cgroup, "/etc/passwd", "", "1"}, `the name "/etc/passwd"; expected the path of a file below /sys/fs/cgroup/`},
		{Change{Cgroup, "/sys/fs/cgroup/../../../etc/passwd", "", "1"}, `the name "/sys/fs/cgroup/../../../etc/passwd"; expected the path of a file below /sys/fs/cgroup/`},
		{Change{"luck", "", "", "1"}, `the kind "luck"; expected one of sysctl, nofile, memlock, link, address, cgroup`},
	} {
		got := ""
		if err := c.change.check(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%+v: %q, expected %q", c.change, got, c.want)
		}
	}
}

// halfway is a setting that takes other values than it is given, and can fail.
type halfway struct {
	value   string
	becomes func(value string) string
	failed  error
}

func (h *halfway) read() (string, error) { return h.value, nil }

func (h *halfway) write(value string) error {
	h.value = h.becomes(value)
	return h.failed
}

// What was made is told and can be taken back, also when the rest of it failed; and an
// amount may come out larger than it was asked for.
func TestHalfWay(t *testing.T) {
	failed := errors.New("it failed")
	const buckets, choice = "net.netfilter.nf_conntrack_buckets", "net.ipv4.tcp_tw_reuse"
	as := func(value string) func(string) string { return func(string) string { return value } }
	for _, c := range []struct {
		change Change
		at     halfway
		made   *Change
		err    string
	}{
		{Change{Sysctl, buckets, "1024", "1500"}, halfway{"1024", as("1536"), nil}, &Change{Sysctl, buckets, "1536", "1024"}, "<nil>"},
		{Change{Sysctl, buckets, "1024", "1500"}, halfway{"1024", as("1400"), nil}, &Change{Sysctl, buckets, "1400", "1024"}, "it was to be 1500, and the kernel made it 1400"},
		{Change{Sysctl, buckets, "1536", "1024"}, halfway{"1536", as("1025"), nil}, &Change{Sysctl, buckets, "1025", "1536"}, "it was to be 1024, and the kernel made it 1025"},
		{Change{Sysctl, choice, "0", "1"}, halfway{"0", as("2"), nil}, &Change{Sysctl, choice, "2", "0"}, "it was to be 1, and the kernel made it 2"},
		{Change{Sysctl, choice, "0", "1"}, halfway{"0", as("1"), failed}, &Change{Sysctl, choice, "1", "0"}, "it failed"},
		{Change{Sysctl, choice, "0", "1"}, halfway{"0", as("0"), failed}, nil, "it failed"},
	} {
		made, err := c.change.write(&c.at, c.change.From, c.change.To)
		if !reflect.DeepEqual(made, c.made) || fmt.Sprint(err) != c.err {
			t.Errorf("%v: to undo it: %+v, %v; expected %+v, %s", c.change, made, err, c.made, c.err)
		}
	}
}
