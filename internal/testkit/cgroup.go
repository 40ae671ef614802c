package testkit

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// MemoryCgroup is the directory of a control group with a memory limit.
type MemoryCgroup string

// NewMemoryCgroup creates a control group without swap and with a memory limit in bytes. The kernel's memory for
// sockets counts towards the limit. In version 1 of control groups, the contents of the sockets' buffers do not count.
// The control group is removed when the test ends. If control groups cannot be written, the test is skipped.
func NewMemoryCgroup(t testing.TB, limitBytes int64) MemoryCgroup {
	t.Helper()
	parent, file := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if _, err := os.Stat(parent); err != nil {
		parent, file = "/sys/fs/cgroup", "memory.max" // version 2
	}
	dir, err := os.MkdirTemp(parent, "myriad-test-")
	if err == nil {
		t.Cleanup(func() {
			WaitFor(t, "the control group is removed", func() bool { return os.Remove(dir) == nil })
		})
		err = os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(limitBytes, 10)), 0)
	}
	// Whichever exists. Version 1 counts sockets only while a limit for their buffers is set, however large.
	for file, value := range map[string]string{
		"memory.swap.max": "0", "memory.swappiness": "0", "memory.kmem.tcp.limit_in_bytes": strconv.Itoa(1 << 40),
	} {
		_ = os.WriteFile(filepath.Join(dir, file), []byte(value), 0)
	}
	if err != nil {
		t.Skipf("needs control groups that can be written: %v", err)
	}
	return MemoryCgroup(dir)
}

// Command returns the words of a command line that starts the given command in the control group.
func (g MemoryCgroup) Command(command ...string) []string {
	return append([]string{"sh", "-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(string(g), "cgroup.procs")}, command...)
}

var oomKills = regexp.MustCompile(`(?m)^oom_kill (\d+)$`)

// OOMKills returns how many processes of the control group the kernel has killed for lack of memory.
func (g MemoryCgroup) OOMKills(t testing.TB) int {
	t.Helper()
	for _, file := range []string{"memory.events", "memory.oom_control"} { // version 2, version 1
		text, _ := os.ReadFile(filepath.Join(string(g), file))
		if found := oomKills.FindSubmatch(text); found != nil {
			n, _ := strconv.Atoi(string(found[1]))
			return n
		}
	}
	t.Fatalf("%s has no count of killed processes", g)
	return 0
}
