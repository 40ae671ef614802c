package procfs

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
)

func TestHasEntry(t *testing.T) {
	const text = "A=1\x00MARK=abc\x00LONG=xMARK=abcd\x00"
	for entry, want := range map[string]bool{"MARK=abc": true, "A=1": true, "MARK=ab": false, "ARK=abc": false, "MARK=abcd": false} {
		if got := hasEntry([]byte(text), entry); got != want {
			t.Errorf("%q: got %v, want %v", entry, got, want)
		}
	}
	if hasEntry(nil, "A=1") {
		t.Error("a process without an environment has an entry")
	}
}

// TestWithEnv finds a child by its entry, and no longer when it has ended.
func TestWithEnv(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	const entry = "PROCFS_TEST_MARK=c1f3"
	cmd := exec.Command("sleep", "60")
	cmd.Env = append(os.Environ(), entry)
	if err := cmd.Start(); err != nil {
		t.Skipf("no sleep to be started: %v", err)
	}
	pids, err := WithEnv(entry)
	if err != nil || !slices.Equal(pids, []int{cmd.Process.Pid}) {
		t.Errorf("got %v, %v, want %d", pids, err, cmd.Process.Pid)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if has, err := HasEnv(cmd.Process.Pid, entry); has || err != nil {
		t.Errorf("ended: got %v, %v", has, err)
	}
	if pids, err := WithEnv(entry); err != nil || len(pids) != 0 {
		t.Errorf("ended: got %v, %v", pids, err)
	}
}
