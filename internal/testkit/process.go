package testkit

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Process is a child process of a test. It is killed and reaped when the test ends.
type Process struct {
	*exec.Cmd
	Output *Buffer // its standard output and standard error
	t      testing.TB
	ended  chan struct{}
}

// Start starts a command and collects its output in Process.Output. If the test fails, the last 4,000 bytes of the
// output are logged.
func Start(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{Cmd: cmd, Output: new(Buffer), t: t, ended: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = p.Output
	}
	if cmd.Stderr == nil {
		cmd.Stderr = p.Output
	}
	cmd.WaitDelay = 10 * time.Second // for children that keep the output open
	if err := cmd.Start(); err != nil {
		t.Fatalf("%s: %v", strings.Join(cmd.Args, " "), err)
	}
	go func() {
		defer close(p.ended)
		_ = cmd.Wait() // ProcessState contains the result
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have exited
		<-p.ended
		if out := p.Output.String(); t.Failed() && out != "" {
			t.Logf("%s has written:\n%s", cmd.Args[0], out[max(0, len(out)-4000):])
		}
	})
	return p
}

func (p *Process) Signal(s os.Signal) {
	p.t.Helper()
	if err := p.Process.Signal(s); err != nil {
		p.t.Fatalf("signal %v: %v", s, err)
	}
}

// WaitExitCode waits until the process has exited, and returns the exit code. If a signal ended the process, the result
// is
// -1. If the process has not exited after Timeout, the test fails.
func (p *Process) WaitExitCode() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(Timeout):
		p.t.Fatalf("%s has not ended after %v", p.Args[0], Timeout)
	}
	return p.ProcessState.ExitCode()
}

// WaitForOutput waits until the output of the process matches the regular expression expr. It returns the leftmost
// match and its submatches. If the process exits without such output, or if there is none after Timeout, the test
// fails.
func (p *Process) WaitForOutput(expr string) []string {
	p.t.Helper()
	re := regexp.MustCompile(expr)
	var found []string
	WaitForFunc(p.t, func() bool {
		var ended bool
		select {
		case <-p.ended:
			ended = true
		default:
		}
		if found = re.FindStringSubmatch(p.Output.String()); found == nil && ended {
			p.t.Fatalf("%s has ended (%v) without output that matches %q; it has written:\n%s", p.Args[0], p.ProcessState, expr, p.Output)
		}
		return found != nil
	}, func() string { return p.Args[0] + " writes nothing that matches " + expr })
	return found
}
