package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/faults"
)

// inNamespace runs f in a network of its own.
func inNamespace(t *testing.T, f func()) {
	t.Helper()
	ns, err := faults.NewNamespace()
	if errors.Is(err, os.ErrPermission) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := ns.Do(func() error { f(); return nil }); err != nil {
		t.Fatal(err)
	}
}

// has says what a file has, its fields separated by one space.
func has(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return strings.Join(strings.Fields(string(b)), " ")
}

func TestApplySysctls(t *testing.T) {
	const (
		backlog = "/proc/sys/net/core/somaxconn"
		ports   = "/proc/sys/net/ipv4/ip_local_port_range"
	)
	inNamespace(t, func() {
		before := [2]string{has(t, backlog), has(t, ports)}
		undo, err := Apply(t.Context(), []Change{
			{Sysctl, "net.core.somaxconn", before[0], "65535"},
			{Sysctl, "net.ipv4.ip_local_port_range", before[1], "9000 65535"},
			{Sysctl, "net.core.somaxconn", before[0], "128"}, // less than it is
		})
		if err == nil || !strings.HasPrefix(err.Error(), "net.core.somaxconn: it is 65535 now, expected "+before[0]) {
			t.Errorf("something that is lowered: %v", err)
		}
		if now, want := ([2]string{has(t, backlog), has(t, ports)}), [2]string{"65535", "9000 65535"}; now != want {
			t.Errorf("they are %q, expected %q", now, want)
		}
		want := []Change{
			{Sysctl, "net.ipv4.ip_local_port_range", "9000 65535", before[1]},
			{Sysctl, "net.core.somaxconn", "65535", before[0]},
		}
		if !slices.Equal(undo, want) {
			t.Errorf("undo is %v, expected %v", undo, want)
		}
		redo, err := Apply(t.Context(), undo)
		if now := [2]string{has(t, backlog), has(t, ports)}; err != nil || now != before {
			t.Errorf("after the undo they are %q, %v; expected %q", now, err, before)
		}
		if len(redo) != 2 {
			t.Errorf("the undo's undo is %v", redo)
		}
	})
}

// What can't be made is named with the reason; what comes after it is made.
func TestApplyFailures(t *testing.T) {
	inNamespace(t, func() {
		undo, err := Apply(t.Context(), []Change{
			{Sysctl, "net.ipv4.tcp_mem", "", "1 2 3"},
			{Sysctl, "net.netfilter.nf_conntrack_max", "", "99999999"},
			{Sysctl, "net.core.somaxconn", "", "99999999999"},
			{Sysctl, "net.ipv4.ip_local_reserved_ports", "", "30000,30001"},
			{Link, "nil0", "", "up"},
			{"luck", "", "", "more"},
			{Sysctl, "net.ipv4.tcp_tw_reuse", "", "1"},
		})
		for i, want := range []string{
			"net.ipv4.tcp_mem: this kernel, or this network namespace, has no such setting",
			"net.netfilter.nf_conntrack_max: it takes root, and outside of containers",
			`net.core.somaxconn: the kernel does not take the value "99999999999": `,
			"link nil0: no such interface",
			`: the kind "luck"`,
		} {
			if lines := strings.Split(fmt.Sprint(err), "\n"); len(lines) != 5 || !strings.HasPrefix(lines[i], want) {
				t.Errorf("line %d of %d is not %q: %v", i, len(lines), want, err)
			}
		}
		if failed, ok := errors.AsType[*ChangeError](err); !ok || failed.Change.Name != "net.ipv4.tcp_mem" || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the error is no ChangeError of the first: %#v", err)
		}
		if len(undo) != 2 || undo[0].Name != "net.ipv4.tcp_tw_reuse" || undo[1].From != "30000-30001" {
			t.Errorf("undo is %v; expected the last and the list of ports, as the kernel writes it", undo)
		}
		if _, err := Apply(t.Context(), undo); err != nil || has(t, "/proc/sys/net/ipv4/ip_local_reserved_ports") != "" {
			t.Errorf("the undo: %v", err)
		}
	})
}

func TestApplyEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	undo, err := Apply(ctx, []Change{{Link, "lo", "", "up"}, {Link, "lo", "", "up"}})
	if undo != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v, %v", undo, err)
	}
	if _, err := Apply(t.Context(), make([]Change, maxChanges+1)); err == nil || err.Error() != "doctor: 1025 changes; expected at most 1024" {
		t.Errorf("too many: %v", err)
	}
}

func TestSettingTooLong(t *testing.T) {
	f := file(filepath.Join(t.TempDir(), "setting"))
	for _, c := range []struct {
		size int
		want string
	}{{maxSetting, "<nil>"}, {maxSetting + 1, string(f) + " has more than 65536 bytes"}} {
		if err := os.WriteFile(string(f), make([]byte, c.size), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := f.read(); fmt.Sprint(err) != c.want {
			t.Errorf("%d bytes: %v, expected %s", c.size, err, c.want)
		}
	}
}

func TestApplyLinkAndAddress(t *testing.T) {
	inNamespace(t, func() {
		if _, err := Apply(t.Context(), []Change{{Link, "lo", "up", "down"}}); err != nil {
			t.Fatal(err)
		}
		undo, err := Apply(t.Context(), []Change{
			{Link, "lo", "down", "up"},
			{Address, "lo", "", "10.77.0.2/24"},
			{Address, "lo", "", "10.77.0.3"},
			{Address, "lo", "", "fd00:77::2/64"},
			{Address, "lo", "", "10.77.0.2/24"}, // has it
		})
		want := []Change{
			{Address, "lo", "fd00:77::2/64", ""},
			{Address, "lo", "10.77.0.3/32", ""},
			{Address, "lo", "10.77.0.2/24", ""},
			{Link, "lo", "up", "down"},
		}
		if err != nil || !reflect.DeepEqual(undo, want) {
			t.Fatalf("undo is %v, %v; expected %v", undo, err, want)
		}
		for _, addr := range []string{"10.77.0.2:0", "10.77.0.3:0"} {
			l, err := net.Listen("tcp", addr)
			if err != nil {
				t.Fatalf("an address that was added: %v", err)
			}
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatalf("an address that was added: %v", err)
			}
			c.Close()
			l.Close()
		}
		if _, err := Apply(t.Context(), undo); err != nil {
			t.Fatal(err)
		}
		if l, err := net.Listen("tcp", "10.77.0.2:0"); err == nil {
			l.Close()
			t.Error("the address is there after the undo")
		}
	})
}

// The kernel makes whole pages of a limit of memory: what it made is reported.
func TestApplyCgroup(t *testing.T) {
	dir := filepath.Join(cgroupRoot, "memory", fmt.Sprintf("myriad-doctor-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip("no cgroup of version 1 can be made: ", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	limit := filepath.Join(dir, "memory.limit_in_bytes")
	page := os.Getpagesize()
	if err := os.WriteFile(limit, []byte(fmt.Sprint(1000*page)), 0); err != nil {
		t.Fatal(err)
	}
	asked, made := fmt.Sprint(2000*page+1), fmt.Sprint(2000*page)
	undo, err := Apply(t.Context(), []Change{{Cgroup, limit, "", asked}})
	if want := limit + ": it was to be " + asked + ", and the kernel made it " + made; fmt.Sprint(err) != want {
		t.Errorf("%v; expected %s", err, want)
	}
	if want := []Change{{Cgroup, limit, made, fmt.Sprint(1000 * page)}}; !slices.Equal(undo, want) {
		t.Errorf("undo is %v, expected %v", undo, want)
	}
	if _, err := Apply(t.Context(), undo); err != nil || has(t, limit) != fmt.Sprint(1000*page) {
		t.Errorf("after the undo it is %s: %v", has(t, limit), err)
	}
}

// Which settings a network namespace has of its own is as the table says.
func TestOwnSettings(t *testing.T) {
	writable := func(name string) bool {
		info, err := os.Stat(sysctlPath(name))
		return err == nil && info.Mode().Perm()&0o200 != 0
	}
	var outside []string
	for name := range settings {
		if writable(name) {
			outside = append(outside, name)
		}
	}
	inNamespace(t, func() {
		for _, name := range outside {
			own := strings.HasPrefix(name, "net.") && writable(name)
			if own != settings[name].own {
				t.Errorf("%s: a namespace has it of its own: %v, expected %v", name, own, settings[name].own)
			}
		}
	})
	if len(outside) < len(settings)/2 {
		t.Errorf("of %d settings only %v can be written here", len(settings), outside)
	}
}
