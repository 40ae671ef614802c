package load

import (
	"os/exec"
	"syscall"
)

// endsWithThread has a process killed when the thread that starts it ends, as when a test
// that takes too long is ended by a panic: no server is left behind.
func endsWithThread(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
