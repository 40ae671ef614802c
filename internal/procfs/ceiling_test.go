package procfs

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestCeilings(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  Ceilings
	}{
		"version 2, the group above leaves less": {map[string]string{
			"proc/7/cgroup": "0::/a/b\n",
			// 5000-1000 are left below, 6000-(4900-900) above.
			"sys/fs/cgroup/a/b/memory.max": "5000\n", "sys/fs/cgroup/a/b/memory.current": "1000\n",
			"sys/fs/cgroup/a/memory.max": "6000\n", "sys/fs/cgroup/a/memory.current": "4900\n",
			"sys/fs/cgroup/a/memory.stat": "anon 5\ninactive_file 600\nactive_file 300\nslab_reclaimable 100\n",
			"sys/fs/cgroup/a/pids.max":    "100\n", "sys/fs/cgroup/a/pids.current": "40\n", "sys/fs/cgroup/a/b/pids.max": "max\n",
		}, Ceilings{
			Memory: Ceiling{6000, 4000, "cgroup /a memory.max", "/sys/fs/cgroup/a/memory.max"},
			Tasks:  Ceiling{100, 40, "cgroup /a pids.max", "/sys/fs/cgroup/a/pids.max"},
		}},
		"version 2, memory.high": {map[string]string{
			"proc/7/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "5000\n", "sys/fs/cgroup/memory.high": "4000\n",
		}, Ceilings{Memory: Ceiling{4000, 0, "cgroup / memory.high", "/sys/fs/cgroup/memory.high"}}},
		"version 1": {map[string]string{
			"proc/7/cgroup": "8:pids:/p\n4:cpu,memory:/a\n0::/\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes":          "7000\n",
			"sys/fs/cgroup/memory/a/memory.usage_in_bytes":          "3000\n",
			"sys/fs/cgroup/memory/a/memory.stat":                    "inactive_file 1\ntotal_inactive_file 500\ntotal_active_file 9999\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":            noLimit,
			"sys/fs/cgroup/memory/a/memory.kmem.tcp.limit_in_bytes": "800\n",
			"sys/fs/cgroup/memory/a/memory.kmem.tcp.usage_in_bytes": "80\n",
			"sys/fs/cgroup/pids/p/pids.max":                         "10\n",
			"sys/fs/cgroup/pids/p/pids.current":                     "3\n",
		}, Ceilings{
			Memory:       Ceiling{7000, 0, "cgroup /a memory.limit_in_bytes", "/sys/fs/cgroup/memory/a/memory.limit_in_bytes"},
			SocketMemory: Ceiling{800, 80, "cgroup /a memory.kmem.tcp.limit_in_bytes", "/sys/fs/cgroup/memory/a/memory.kmem.tcp.limit_in_bytes"},
			Tasks:        Ceiling{10, 3, "cgroup /p pids.max", "/sys/fs/cgroup/pids/p/pids.max"},
		}},
		"version 2 beside 1": {map[string]string{
			"proc/7/cgroup": "4:memory:/\n0::/b\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": noLimit,
			"sys/fs/cgroup/unified/b/memory.max": "6000\n",
		}, Ceilings{Memory: Ceiling{6000, 0, "cgroup /b memory.max", "/sys/fs/cgroup/unified/b/memory.max"}}},
		"nothing may be used any more": {map[string]string{
			"proc/7/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "0\n", "sys/fs/cgroup/a/memory.current": "50\n",
		}, Ceilings{Memory: Ceiling{0, 50, "cgroup /a memory.max", "/sys/fs/cgroup/a/memory.max"}}},
		"none": {map[string]string{"proc/7/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/pids.max": "max\n"}, Ceilings{}},
		"rubbish": {map[string]string{
			"proc/7/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "much\n", "sys/fs/cgroup/memory.max": "5\n",
			"sys/fs/cgroup/memory.current": "3\n", "sys/fs/cgroup/memory.stat": "active_file many\n",
		}, Ceilings{Memory: Ceiling{5, 3, "cgroup / memory.max", "/sys/fs/cgroup/memory.max"}}},
	} {
		if got, err := readCeilings(tree(t, c.files), "7"); err != nil || got != c.want {
			t.Errorf("%s: got %+v, %v; want %+v", name, got, err, c.want)
		}
	}
	if got, err := readCeilings(t.TempDir(), "7"); !Gone(err) {
		t.Errorf("no such process: got %+v, %v", got, err)
	}
}

// TestReadCeilings reads this very process's.
func TestReadCeilings(t *testing.T) {
	onlyLinux(t)
	c, err := ReadCeilings(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range []Ceiling{c.Memory, c.SocketMemory, c.Tasks} {
		if one == (Ceiling{}) {
			continue
		}
		if n, err := readLimit(one.File); err != nil || n != one.Limit || !strings.HasPrefix(one.From, "cgroup /") {
			t.Errorf("got %+v, but %s has %d, %v", one, one.File, n, err)
		}
	}
}

func FuzzParseStatLines(f *testing.F) {
	f.Add(uint32(5), []byte("active_file 5\n"))
	f.Add(uint32(5), []byte("active_file -5\n"))
	f.Fuzz(func(t *testing.T, n uint32, raw []byte) {
		if got, err := parseStatLines(raw, []string{"active_file"}); err == nil && (len(got) != 1 || got[0] < 0) {
			t.Errorf("%q: got %v", raw, got)
		}
		in := fmt.Appendf(nil, "b 1\na %d\nactive_a 9\n", n)
		if got, err := parseStatLines(in, []string{"a", "none", "b"}); err != nil || !slices.Equal(got, []int64{int64(n), 0, 1}) {
			t.Errorf("%q: got %v, %v", in, got, err)
		}
	})
}
