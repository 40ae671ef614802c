package lab

import (
	"os"
	"os/exec"
	"syscall"
)

// launch starts the guard at the other end of a pipe.
func (g *guard) launch(self string) error {
	r, w, err := os.Pipe() // both are closed on exec
	if err != nil {
		return err
	}
	defer r.Close()
	cmd := exec.Command(self, "bench-guard")
	cmd.Stdin = r
	cmd.Env = append(os.Environ(), markName+"=guard")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		w.Close()
		return err
	}
	g.pipe, g.cmd = w, cmd
	return nil
}

// terminate asks a process to end. One that has ended needs no asking.
func terminate(p *os.Process) { _ = p.Signal(syscall.SIGTERM) }
