package cgroup

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

func writeTree(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("no /proc")
	}
	root = t.TempDir()
	for name, text := range files {
		name = filepath.Join(root, name)
		testkit.RequireNoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		testkit.RequireNoError(t, os.WriteFile(name, []byte(text), 0o644))
	}
	return root
}

const unlimited = "9223372036854771712\n" // in version 1

func TestMemoryLimitOfTrees(t *testing.T) {
	const machine = "MemTotal: 1000 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		limit int64
		from  string
	}{
		"version 2, a group above is smaller": {map[string]string{
			"proc/self/cgroup": "0::/a/b/c\n", "proc/meminfo": machine,
			"sys/fs/cgroup/a/b/c/memory.max": "max\n", "sys/fs/cgroup/a/b/memory.max": "5000\n",
			"sys/fs/cgroup/a/memory.max": "4000\n",
		}, 4000, "cgroup /a memory.max"},
		"version 2, the host's path in a container": {map[string]string{
			"proc/self/cgroup": "0::/docker/abc\n", "proc/meminfo": machine, "sys/fs/cgroup/memory.max": "5000\n",
		}, 5000, "cgroup / memory.max"},
		"version 2, outside the namespace": {map[string]string{
			"proc/self/cgroup": "0::/../../a\n", "proc/meminfo": machine, "sys/fs/cgroup/memory.max": "5000\n",
		}, 5000, "cgroup / memory.max"},
		"version 2, a group with a colon": {map[string]string{
			"proc/self/cgroup": "0::/a:b\n", "proc/meminfo": machine, "sys/fs/cgroup/a:b/memory.max": "5000\n",
		}, 5000, "cgroup /a:b memory.max"},
		"version 1": {map[string]string{
			"proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/a/b\n", "proc/meminfo": machine,
			"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": unlimited,
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes":   "7000\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes":   "1\n", // not its group
		}, 7000, "cgroup /a memory.limit_in_bytes"},
		"the machine": {map[string]string{
			"proc/self/cgroup": "0::/a\n", "proc/meminfo": machine, "sys/fs/cgroup/a/memory.max": "2000000\n",
		}, 1000 << 10, "the machine's memory"},
		"no cgroups": {map[string]string{"proc/meminfo": machine}, 1000 << 10, "the machine's memory"},
		"nothing":    {nil, math.MaxInt64, "none known"},
		"rubbish": {map[string]string{
			"proc/self/cgroup": "rubbish\n0:\n::\n0::relative\n0::/a", "proc/meminfo": "rubbish\n",
			"sys/fs/cgroup/a/memory.max": "-5\n", "sys/fs/cgroup/a/memory.high": "many\n", "sys/fs/cgroup/memory.max": "0\n",
		}, math.MaxInt64, "none known"},
	} {
		if limit, from := smallestSystemMemoryLimit(writeTree(t, c.files)); limit != c.limit || from != c.from {
			t.Errorf("%s: got %d, %q; want %d, %q", name, limit, from, c.limit, c.from)
		}
	}
}

func TestRead(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  Limits
	}{
		"version 2, the group above leaves less": {map[string]string{
			"proc/7/cgroup": "0::/a/b\n",
			// headroom: 5000-1000 below, 6000-(4900-900) above
			"sys/fs/cgroup/a/b/memory.max": "5000\n", "sys/fs/cgroup/a/b/memory.current": "1000\n",
			"sys/fs/cgroup/a/memory.max": "6000\n", "sys/fs/cgroup/a/memory.current": "4900\n",
			"sys/fs/cgroup/a/memory.stat": "anon 5\ninactive_file 600\nactive_file 300\nslab_reclaimable 100\n",
			"sys/fs/cgroup/a/pids.max":    "100\n", "sys/fs/cgroup/a/pids.current": "40\n", "sys/fs/cgroup/a/b/pids.max": "max\n",
		}, Limits{
			Memory: Limit{6000, 4000, "cgroup /a memory.max", "/sys/fs/cgroup/a/memory.max"},
			Tasks:  Limit{100, 40, "cgroup /a pids.max", "/sys/fs/cgroup/a/pids.max"},
		}},
		"version 2, memory.high": {map[string]string{
			"proc/7/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "5000\n", "sys/fs/cgroup/memory.high": "4000\n",
		}, Limits{Memory: Limit{4000, 0, "cgroup / memory.high", "/sys/fs/cgroup/memory.high"}}},
		"version 1": {map[string]string{
			"proc/7/cgroup": "8:pids:/p\n4:cpu,memory:/a\n0::/\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes":          "7000\n",
			"sys/fs/cgroup/memory/a/memory.usage_in_bytes":          "3000\n",
			"sys/fs/cgroup/memory/a/memory.stat":                    "inactive_file 1\ntotal_inactive_file 500\ntotal_active_file 9999\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":            unlimited,
			"sys/fs/cgroup/memory/a/memory.kmem.tcp.limit_in_bytes": "800\n",
			"sys/fs/cgroup/memory/a/memory.kmem.tcp.usage_in_bytes": "80\n",
			"sys/fs/cgroup/pids/p/pids.max":                         "10\n",
			"sys/fs/cgroup/pids/p/pids.current":                     "3\n",
		}, Limits{
			Memory:       Limit{7000, 0, "cgroup /a memory.limit_in_bytes", "/sys/fs/cgroup/memory/a/memory.limit_in_bytes"},
			SocketMemory: Limit{800, 80, "cgroup /a memory.kmem.tcp.limit_in_bytes", "/sys/fs/cgroup/memory/a/memory.kmem.tcp.limit_in_bytes"},
			Tasks:        Limit{10, 3, "cgroup /p pids.max", "/sys/fs/cgroup/pids/p/pids.max"},
		}},
		"version 2 beside 1": {map[string]string{
			"proc/7/cgroup": "4:memory:/\n0::/b\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": unlimited,
			"sys/fs/cgroup/unified/b/memory.max": "6000\n",
		}, Limits{Memory: Limit{6000, 0, "cgroup /b memory.max", "/sys/fs/cgroup/unified/b/memory.max"}}},
		"nothing may be used any more": {map[string]string{
			"proc/7/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "0\n", "sys/fs/cgroup/a/memory.current": "50\n",
		}, Limits{Memory: Limit{0, 50, "cgroup /a memory.max", "/sys/fs/cgroup/a/memory.max"}}},
		"none": {map[string]string{"proc/7/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/pids.max": "max\n"}, Limits{}},
		"rubbish": {map[string]string{
			"proc/7/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "much\n", "sys/fs/cgroup/memory.max": "5\n",
			"sys/fs/cgroup/memory.current": "3\n", "sys/fs/cgroup/memory.stat": "active_file many\n",
		}, Limits{Memory: Limit{5, 3, "cgroup / memory.max", "/sys/fs/cgroup/memory.max"}}},
	} {
		if got, err := readLimits(writeTree(t, c.files), "7"); err != nil || got != c.want {
			t.Errorf("%s: got %+v, %v; want %+v", name, got, err, c.want)
		}
	}
	if got, err := readLimits(t.TempDir(), "7"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such process: got %+v, %v", got, err)
	}
}

// TestMemoryLimit reads the limit of this process.
func TestMemoryLimit(t *testing.T) {
	before := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(before)
	limit, from := SmallestKnownMemoryLimit()
	if runtime.GOOS == "linux" {
		if limit < 1<<20 || limit == math.MaxInt64 || from == "GOMEMLIMIT" {
			t.Errorf("got %d, %q; want at most the machine's memory", limit, from)
		}
	} else if limit != math.MaxInt64 || from != "none known" {
		t.Errorf("got %d, %q; want none", limit, from)
	}
	debug.SetMemoryLimit(1 << 20)
	if limit, from := SmallestKnownMemoryLimit(); limit != 1<<20 || from != "GOMEMLIMIT" {
		t.Errorf("with GOMEMLIMIT 1 MiB: got %d, %q", limit, from)
	}
}

func FuzzParseGroups(f *testing.F) {
	f.Add([]byte("4:cpu,memory:/a/b\n0::/c\n"))
	f.Add([]byte("0::/../a/./b//"))
	f.Fuzz(func(t *testing.T, b []byte) {
		g := parseCgroupPaths(b)
		for _, group := range []string{g.memory, g.pids, g.unified} {
			if group == "" {
				continue
			}
			if group != path.Clean(group) || !path.IsAbs(group) {
				t.Errorf("%q: the group %q is not a clean path from the root: the way up might not end", b, group)
			}
		}
	})
}
