package load

import (
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// endsWithThread has a process killed when the thread that starts it ends, as when a test
// that takes too long is ended by a panic: no server is left behind.
func endsWithThread(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// startUnix starts a server on a unix socket.
func startUnix(t *testing.T, path string, args func(socket string) []string) *foreign {
	t.Helper()
	f := &foreign{network: "unix", addr: filepath.Join(t.TempDir(), "s")}
	if !f.begin(t, path, args(f.addr)) {
		t.Fatalf("%s has ended by itself; it says: %s", path, f.said.String())
	}
	return f
}
