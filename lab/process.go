package lab

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// termGrace is how long a process may take to end after SIGTERM before
	// it is killed.
	termGrace = 3 * time.Second
	// pipeGrace is how long the output of an ended process may be held open
	// by its own children before it is closed.
	pipeGrace = time.Second
	// streamGrace is the same for a program whose output is acted on: that of
	// a million connections was not read within a second of its end, on a busy machine.
	streamGrace = 30 * time.Second
	// groupBound is how long the kernel may take to end what an ended process has left of
	// its group. The sockets of 68 processes, a million, took some seconds, and the next run
	// began meanwhile.
	groupBound = time.Minute
	// tailSize is how much of a process's last output is kept, in bytes.
	tailSize = 4096
)

// launcher starts processes, all from one thread that does nothing else and
// lives until close. That gives three things on Linux. A child begins with the
// CPU affinity of the thread that starts it, so that it is pinned before its
// first instruction, and a Go child sees the right GOMAXPROCS. No other
// goroutine ever runs on the narrowed thread, nor does the runtime clone a new
// thread from a locked one, so the lab itself stays unpinned. And the kernel
// kills a child (Pdeathsig) when the thread that started it ends, not the
// process: as the thread outlives the children, that happens only when the
// whole lab was killed. What the children have started is the guard's.
type launcher struct {
	grace    time.Duration // termGrace, or as long as somebody needs
	words    time.Duration // streamGrace
	guard    *guard        // whose mark everything gets, nil for none
	requests chan launch
	ended    chan struct{}

	mu   sync.Mutex
	left error // processes that did not end within groupBound
}

// launch is a process to start.
type launch struct {
	cmd   *exec.Cmd
	cpus  []int
	reply chan error
}

func newLauncher() *launcher {
	l := &launcher{grace: termGrace, words: streamGrace, requests: make(chan launch), ended: make(chan struct{})}
	go l.run()
	return l
}

func (l *launcher) run() {
	defer close(l.ended)
	runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
	for q := range l.requests {
		q.reply <- startOn(q.cmd, q.cpus)
	}
}

// close ends the launcher's thread. Every process has to have ended before.
func (l *launcher) close() {
	close(l.requests)
	<-l.ended
}

// sweep kills what is left between two runs. It fails when something was left, also of what
// has ended since the last sweep.
func (l *launcher) sweep() error {
	err := l.guard.sweep()
	l.mu.Lock()
	defer l.mu.Unlock()
	err = errors.Join(err, l.left)
	l.left = nil
	return err
}

// endGroup kills what an ended process has left of its group, and waits until it has ended.
func (l *launcher) endGroup(pid int) {
	killGroup(pid)
	if err := awaitGroup(pid, groupBound); err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.left = err
	}
}

// awaitGroup waits until no process of a group is left, at most for bound: then it fails.
func awaitGroup(pid int, bound time.Duration) error {
	for end := time.Now().Add(bound); groupLives(pid); time.Sleep(poll) {
		if time.Now().After(end) {
			return fmt.Errorf("processes that the server or the load generator had started are left %v after they were killed", bound)
		}
	}
	return nil
}

// process is a child process. Its standard error goes to tail.
type process struct {
	cmd   *exec.Cmd
	grace time.Duration
	tail  *tail
	done  chan struct{} // closed when the process has ended and its output has been read
	err   error         // of the process, valid when done is closed
}

// start starts a program on the given CPUs, or anywhere when there are none.
// Its standard output goes to out, which is closed when the process has ended,
// or to tail when out is nil. The caller has to call end.
func (l *launcher) start(command []string, cpus []int, out io.WriteCloser) (*process, error) {
	p := &process{
		cmd:   exec.Command(command[0], command[1:]...),
		grace: l.grace,
		tail:  &tail{},
		done:  make(chan struct{}),
	}
	p.cmd.Env = l.guard.env()
	p.cmd.WaitDelay = pipeGrace
	p.cmd.Stderr = p.tail
	if out != nil {
		p.cmd.Stdout, p.cmd.WaitDelay = out, l.words
	} else {
		p.cmd.Stdout = p.tail
	}
	reply := make(chan error)
	l.requests <- launch{cmd: p.cmd, cpus: cpus, reply: reply}
	if err := <-reply; err != nil {
		if out != nil {
			out.Close()
		}
		return nil, fmt.Errorf("cannot start %s: %w", command[0], err)
	}
	go func() { // waited for by end
		defer close(p.done)
		p.err = p.cmd.Wait()
		l.endGroup(p.pid())
		if out != nil {
			out.Close()
		}
	}()
	return p, nil
}

// pid is also the number of the process group on Linux.
func (p *process) pid() int { return p.cmd.Process.Pid }

// end ends the process, first politely, and waits for it and for what it left
// of its group. It may be called again and from several goroutines.
func (p *process) end() {
	select {
	case <-p.done:
	default:
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err == nil {
			p.await(p.grace)
		}
		p.cmd.Process.Kill() // an error says that it has ended
	}
	<-p.done
}

// await waits for the process to end, for a time.
func (p *process) await(bound time.Duration) {
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
	}
}

// failure describes how the process ended by itself: its status and its last
// words. It is called when done is closed.
func (p *process) failure(name string) error {
	status := "exit status 0"
	switch {
	case errors.Is(p.err, exec.ErrWaitDelay):
		status = fmt.Sprintf("%v later its output had not come to its end", p.cmd.WaitDelay)
	case p.err != nil:
		status = p.err.Error()
	}
	return fmt.Errorf("%s ended: %s%s", name, status, p.said())
}

// said are the last words of the process, behind a colon, "" if it said nothing.
func (p *process) said() string {
	if words := p.tail.String(); words != "" {
		return ": " + words
	}
	return ""
}

// tail is an io.Writer that keeps the last tailSize bytes. It is safe for
// concurrent use.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b[max(0, len(b)-tailSize):]...)
	if over := len(t.buf) - tailSize; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(string(t.buf), "?"))
}
