package procfs

import (
	"os"
	"path/filepath"
	"testing"
)

// TestReadHits finds the count of each kind of limit beside it.
func TestReadHits(t *testing.T) {
	for _, test := range []struct {
		name, limit string
		files       map[string]string
		want        Hits
		ok          bool
	}{
		{"version 1", "memory.limit_in_bytes", map[string]string{
			"memory.failcnt": "17\n", "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"}, Hits{17, 2}, true},
		{"version 1 of an old kernel", "memory.limit_in_bytes", map[string]string{
			"memory.failcnt": "17\n", "memory.oom_control": "under_oom 0\n"}, Hits{Refused: 17}, true},
		{"version 1 without a count", "memory.limit_in_bytes", nil, Hits{}, false},
		{"version 2", "memory.max", map[string]string{"memory.events": "low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\n"}, Hits{3, 5}, true},
		{"version 2, high", "memory.high", map[string]string{"memory.events": "high 2\nmax 0\noom_kill 0\n"}, Hits{}, true},
		{"version 2 at the top", "memory.max", nil, Hits{}, true},
		{"damaged", "memory.max", map[string]string{"memory.events": "max x\n"}, Hits{}, false},
		{"tasks", "pids.max", map[string]string{"pids.events": "max 6\n"}, Hits{Refused: 6}, true},
		{"another limit", "memory.kmem.tcp.limit_in_bytes", nil, Hits{}, true},
	} {
		dir := t.TempDir()
		for name, text := range test.files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := ReadHits(Ceiling{Limit: 1, File: filepath.Join(dir, test.limit)})
		if got != test.want || (err == nil) != test.ok {
			t.Errorf("%s: %+v, %v; want %+v, error %v", test.name, got, err, test.want, !test.ok)
		}
	}
}
