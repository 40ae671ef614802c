package tune

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// group is the directory of a control group with a memory limit, and its path as
// /proc/PID/cgroup has it.
type group struct{ dir, path string }

// newGroup makes a group with a memory limit in bytes, which is removed when the test
// ends. That takes root, and cgroups that may be written: otherwise it skips the test.
func newGroup(t *testing.T, limit int64) *group {
	t.Helper()
	var failed error
	for mount, file := range map[string]string{"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"} {
		path := "/myriad-" + strconv.Itoa(os.Getpid())
		g := &group{dir: filepath.Join(mount, path), path: path}
		err := os.Mkdir(g.dir, 0o755)
		if err == nil {
			if err = g.write(file, limit); err == nil {
				t.Cleanup(func() {
					if err := os.Remove(g.dir); err != nil {
						t.Error(err)
					}
				})
				return g
			}
			os.Remove(g.dir)
		}
		failed = errors.Join(failed, err)
	}
	t.Skip("no control group with a memory limit can be made: ", failed)
	return nil
}

// write writes a number to one of the group's files, which the kernel has made.
func (g *group) write(file string, n int64) error {
	f, err := os.OpenFile(filepath.Join(g.dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.FormatInt(n, 10))
	return errors.Join(err, f.Close())
}
