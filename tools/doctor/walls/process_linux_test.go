package walls

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/load"
)

// process is a process of a namespace. Its methods are for the test's goroutine. Output has its standard output.
type process struct {
	*testkit.Process
	w      *testNamespace
	in     io.WriteCloser // its standard input
	stderr *testkit.Buffer
}

// startScript starts a shell that finds the command myriad, with the limit and the groups that processes of the
// namespace begin with. words are its arguments $1 and so on, and environment has more variables. It is killed when
// the test ends, in whatever way.
func (w *testNamespace) startScript(script string, words []string, environment ...string) *process {
	w.t.Helper()
	if w.nofile > 0 {
		script = fmt.Sprintf("ulimit -n %d\n%s", w.nofile, script)
	}
	if w.group != "" {
		script = fmt.Sprintf("echo $$ > %s/cgroup.procs\n%s", w.group, script)
	}
	cmd := exec.Command("/bin/sh", append([]string{"-e", "-c", script, "sh"}, words...)...)
	path := "PATH=" + filepath.Dir(myriad) + ":" + os.Getenv("PATH") + ":/usr/sbin:/sbin"
	// The race detector would hold up each exit by a second.
	cmd.Env = append(append(os.Environ(), "GORACE=atexit_sleep_ms=0", path), environment...)
	// Its parent is the thread of the namespace, which ends with the test.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := &process{w: w, stderr: new(testkit.Buffer)}
	cmd.Stderr = p.stderr
	var err error
	p.in, err = cmd.StdinPipe()
	testkit.RequireNoError(w.t, err)
	w.callInNamespace(func() error { p.Process = testkit.Start(w.t, cmd); return nil })
	return p
}

func (w *testNamespace) startCommand(words ...string) *process {
	w.t.Helper()
	return w.startScript(`exec "$@"`, words)
}

// startRole starts the test's program in a role.
func (w *testNamespace) startRole(role string) *process {
	w.t.Helper()
	return w.startScript(`exec "$@"`, []string{os.Args[0]}, envRole+"="+role)
}

// startDeaf starts a server that never reads, and waits until it serves.
func (w *testNamespace) startDeaf() *process {
	w.t.Helper()
	p := w.startRole("deaf")
	p.WaitForOutput("serving")
	return p
}

// startServe starts the command serve, with its metrics, and waits until it serves.
func (w *testNamespace) startServe(args ...string) *process {
	w.t.Helper()
	p := w.startCommand(append([]string{"myriad", "serve", "--addr", target, "--admin", admin}, args...)...)
	p.WaitForOutput("serving echo on")
	return p
}

// runHold holds connections as the arguments say, and returns what the command has said at its end.
func (w *testNamespace) runHold(args ...string) *load.Result {
	w.t.Helper()
	p := w.startCommand(append([]string{"myriad", "hold", "--json"}, args...)...)
	p.WaitExitCode()
	var last load.Event
	for line := range strings.Lines(p.Output.String()) {
		if err := json.Unmarshal([]byte(line), &last); err != nil {
			w.t.Fatalf("an event of the generator: %v: %s", err, line)
		}
	}
	if last.Result == nil {
		w.t.Fatalf("the generator has no result: %s", p.stderr)
	}
	return last.Result
}

// kill ends it, if it has not ended.
func (p *process) kill() {
	p.Process.Process.Kill()
	p.WaitExitCode()
}
