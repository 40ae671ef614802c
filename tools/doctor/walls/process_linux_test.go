package walls

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/load"
)

// process is a process of a world. Its methods are for the test's goroutine.
type process struct {
	*testkit.Process
	w      *testNamespace
	in     io.WriteCloser  // its standard input
	stdout *testkit.Buffer // Output has its standard error
}

// startStage starts what the stage says, with the limit and groups that the world's processes begin with. It is
// killed when the test ends, in whatever way.
func (w *testNamespace) startStage(s stage) *process {
	w.t.Helper()
	s.Nofile, s.Groups = w.stage.Nofile, w.stage.Groups
	text, err := json.Marshal(s)
	testkit.RequireNoError(w.t, err)
	cmd := exec.Command("/proc/self/exe")
	// The race detector would hold up each exit by a second.
	cmd.Env = append(os.Environ(), envStage+"="+string(text), "GORACE=atexit_sleep_ms=0")
	// Its parent is the thread of the namespace, which ends with the test.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := &process{w: w, stdout: new(testkit.Buffer)}
	cmd.Stdout = p.stdout
	if p.in, err = cmd.StdinPipe(); err != nil {
		w.t.Fatal(err)
	}
	w.callInNamespace(func() error { p.Process = testkit.Start(w.t, cmd); return nil })
	return p
}

// kill ends it, if it has not ended.
func (p *process) kill() {
	p.Process.Process.Kill()
	p.ExitCode()
}

func (p *process) waitForOutput(text string) {
	p.w.t.Helper()
	testkit.WaitFor(p.w.t, "the output "+text, func() bool {
		if strings.Contains(p.stdout.String(), text) {
			return true
		}
		if p.hasEnded() {
			p.w.t.Fatalf("it has ended without saying %q: %s", text, p.Output)
		}
		return false
	})
}

// hasEnded reports whether the process has ended: it is a zombie, or gone.
func (p *process) hasEnded() bool { return p.Process.Process.Signal(syscall.Signal(0)) != nil }

// result is what a generator with --json has said at its end.
func (p *process) result() *load.Result {
	p.w.t.Helper()
	var last load.Event
	for line := range strings.Lines(p.stdout.String()) {
		if err := json.Unmarshal([]byte(line), &last); err != nil {
			p.w.t.Fatalf("an event of the generator: %v: %s", err, line)
		}
	}
	if last.Result == nil {
		p.w.t.Fatalf("the generator has no result: %s", p.Output)
	}
	return last.Result
}
