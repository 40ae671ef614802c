package run

import (
	"bufio"
	"context"
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
	// termGrace is how long a process may take to end after SIGTERM before it is killed: it
	// may have a million connections to close.
	termGrace = 3 * time.Second
	heldGrace = time.Minute
	// pipeGrace is how long the output of an ended process may be held open by its own
	// children before it is closed, outputGrace the same where the output is acted on.
	pipeGrace   = time.Second
	outputGrace = 30 * time.Second
	// groupBound is how long the kernel may take to end what a killed process has left of
	// its group: the sockets of 68 processes, a million, took some seconds.
	groupBound = time.Minute
	// tailSize is how much of a process's last output is kept, in bytes, and maxLine the
	// longest line of its output.
	tailSize = 4096
	maxLine  = 1 << 20
	// poll is the time between two looks at something that is awaited.
	poll = 20 * time.Millisecond
)

// launcher starts processes, all from one thread that does nothing else and lives until
// close. That gives three things on Linux. A child begins with the CPU affinity of the thread
// that starts it, so that it is pinned before its first instruction, and a Go child sees the
// right GOMAXPROCS. No other goroutine ever runs on the narrowed thread, so the lab itself
// stays unpinned. And the kernel kills a child (Pdeathsig) when that thread ends: as it
// outlives the children, that happens only when the whole lab was killed. Each child has a
// process group of its own, and what it has left of that when it ends is killed.
type launcher struct {
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
	l := &launcher{requests: make(chan launch), ended: make(chan struct{})}
	go func() {
		defer close(l.ended)
		runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
		for q := range l.requests {
			q.reply <- startOn(q.cmd, q.cpus)
		}
	}()
	return l
}

// close ends the launcher's thread. Every process has to have ended before.
func (l *launcher) close() {
	close(l.requests)
	<-l.ended
}

// leftover fails when something of a group was left since the last call.
func (l *launcher) leftover() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.left
	l.left = nil
	return err
}

// endGroup kills what an ended process has left of its group, and waits until it has ended.
func (l *launcher) endGroup(pid int) {
	killGroup(pid)
	for end := time.Now().Add(groupBound); groupLives(pid); time.Sleep(poll) {
		if time.Now().After(end) {
			l.mu.Lock()
			l.left = fmt.Errorf("processes that the server or the load generator had started are left %v after they were killed", groupBound)
			l.mu.Unlock()
			return
		}
	}
}

// process is a child process. Its standard error goes to tail.
type process struct {
	cmd   *exec.Cmd
	grace time.Duration
	tail  tail
	done  chan struct{} // closed when the process has ended and its output has been read
	err   error         // of the process, valid when done is closed
}

// start starts a program on the given CPUs, or anywhere when there are none. Its standard
// input is in, or nothing, and its output goes to out, which is closed when the process has ended, or to tail when out is nil.
// The caller has to call end.
func (l *launcher) start(command []string, in io.Reader, cpus []int, out io.WriteCloser) (*process, error) {
	p := &process{cmd: exec.Command(command[0], command[1:]...), grace: termGrace, done: make(chan struct{})}
	p.cmd.WaitDelay = pipeGrace
	p.cmd.Stdin = in
	p.cmd.Stderr = &p.tail
	p.cmd.Stdout = &p.tail
	if out != nil {
		p.cmd.Stdout, p.cmd.WaitDelay = out, outputGrace
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

// end ends the process, first by SIGTERM, and waits for it and for what it left of its group.
// It may be called again and from several goroutines.
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

// failure describes how the process ended by itself: its status and its last words. It is
// called when done is closed.
func (p *process) failure(name string) error {
	status := "exit status 0"
	switch {
	case errors.Is(p.err, exec.ErrWaitDelay):
		status = fmt.Sprintf("%v later its output had not come to its end", p.cmd.WaitDelay)
	case p.err != nil:
		status = p.err.Error()
	}
	return fmt.Errorf("%s ended: %s%s", name, status, p.words())
}

// words are the last words of the process, behind a colon, "" if it said nothing.
func (p *process) words() string {
	if words := p.tail.String(); words != "" {
		return ": " + words
	}
	return ""
}

// lines runs a program, as start does, and calls at with each line of its standard output,
// to its end. started, which may be nil, is told of the process before the first. When ctx
// ends or at returns an error the program is ended, and the cause or that error is returned.
// The program has ended in any case when lines returns. A nil process was not started.
func (l *launcher) lines(ctx context.Context, command []string, in io.Reader, cpus []int, started func(*process), at func(line []byte) error) (*process, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	output, out := io.Pipe()
	p, err := l.start(command, in, cpus, out)
	if err != nil {
		return nil, err
	}
	if started != nil {
		started(p)
	}
	var wait sync.WaitGroup
	wait.Go(func() {
		select {
		case <-ctx.Done():
			output.CloseWithError(io.ErrClosedPipe)
		case <-p.done:
		}
		p.end()
	})
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, maxLine)
	for lines.Scan() && err == nil {
		err = at(lines.Bytes())
	}
	if err == nil && lines.Err() != nil {
		err = fmt.Errorf("the output of %s: %w", command[0], lines.Err())
	}
	if err != nil {
		cancel(err)
	}
	wait.Wait()
	return p, context.Cause(ctx)
}

// tail is an io.Writer that keeps the last tailSize bytes. It is safe for concurrent use.
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

// pause waits for d or until ctx ends, whose cause it returns.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
