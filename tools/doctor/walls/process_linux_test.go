package walls

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/load"
)

// process is a process of a world. Its methods are for the test's goroutine.
type process struct {
	*exec.Cmd
	w              *world
	in             io.WriteCloser // its standard input
	stdout, stderr output
	ended          chan struct{} // closed when it has been waited for
}

// start starts what the stage says, with the limit and groups that the world's
// processes begin with. It is killed when the test ends, in whatever way.
func (w *world) start(s stage) *process {
	w.t.Helper()
	s.Nofile, s.Groups = w.stage.Nofile, w.stage.Groups
	text, err := json.Marshal(s)
	if err != nil {
		w.t.Fatal(err)
	}
	p := &process{Cmd: exec.Command("/proc/self/exe"), w: w, ended: make(chan struct{})}
	// The race detector would hold up each exit by a second.
	p.Env = append(os.Environ(), envStage+"="+string(text), "GORACE=atexit_sleep_ms=0")
	p.Stdout, p.Stderr, p.WaitDelay = &p.stdout, &p.stderr, time.Second
	// Its parent is the thread of the namespace, which ends with the test.
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.in, err = p.StdinPipe(); err == nil {
		err = w.do(p.Start)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	go func() {
		p.Wait() // how it has ended is in ProcessState
		close(p.ended)
	}()
	w.t.Cleanup(p.kill)
	return p
}

// run runs what the stage says to its end.
func (w *world) run(s stage) *process {
	w.t.Helper()
	p := w.start(s)
	p.finish()
	return p
}

// kill ends it, if it has not ended.
func (p *process) kill() {
	p.Process.Kill()
	<-p.ended
}

// finish waits for its end.
func (p *process) finish() {
	p.w.t.Helper()
	testkit.WaitFor(p.w.t, strings.Join(p.Args, " ")+" has ended", p.over)
}

func (p *process) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// code is its exit code once it has ended, -1 if a signal ended it.
func (p *process) code() int { return p.ProcessState.ExitCode() }

// await waits for a text on its standard output.
func (p *process) await(text string) {
	p.w.t.Helper()
	testkit.WaitFor(p.w.t, "the output "+text, func() bool {
		if strings.Contains(p.stdout.String(), text) {
			return true
		}
		if p.over() {
			p.w.t.Fatalf("it has ended without saying %q: %s", text, &p.stderr)
		}
		return false
	})
}

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
		p.w.t.Fatalf("the generator has no result: %s", &p.stderr)
	}
	return last.Result
}

// output is what a process has said so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
