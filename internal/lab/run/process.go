package run

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// stopGrace is how long a process may take to end after SIGTERM before it is killed, and
	// how long its children may hold its output open after it has ended; heldGrace is for one
	// that may have a million connections to close, outputGrace for one whose output is read.
	stopGrace   = 3 * time.Second
	outputGrace = 30 * time.Second
	heldGrace   = time.Minute
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
	starts chan func()
	ended  chan struct{}

	mu   sync.Mutex
	left error // processes that did not end within groupBound
}

func newLauncher() *launcher {
	l := &launcher{starts: make(chan func()), ended: make(chan struct{})}
	go func() {
		defer close(l.ended)
		runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
		for start := range l.starts {
			start()
		}
	}()
	return l
}

// close ends the launcher's thread. Every process has to have ended before.
func (l *launcher) close() {
	close(l.starts)
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

// command is a program to start.
type command struct {
	args  []string
	in    io.Reader     // its standard input; nil for none
	cpus  []int         // where it runs; nil for where the launcher does
	grace time.Duration // between SIGTERM and SIGKILL
}

// process is a child process. It is asked to end by SIGTERM when the context ends with which
// it was started. Its standard error goes to tail.
type process struct {
	cmd  *exec.Cmd
	stop context.CancelFunc
	tail tail
	done chan struct{} // closed when the process has ended and its output has been read
	err  error         // of the process, valid when done is closed
}

// start starts a program. Its output goes to out, which is closed when the process has ended,
// or to tail when out is nil. The caller has to call end.
func (l *launcher) start(ctx context.Context, c command, out io.WriteCloser) (*process, error) {
	ctx, stop := context.WithCancel(ctx)
	p := &process{cmd: exec.CommandContext(ctx, c.args[0], c.args[1:]...), stop: stop, done: make(chan struct{})}
	p.cmd.Cancel = func() error {
		if p.cmd.Process.Signal(syscall.SIGTERM) != nil {
			_ = p.cmd.Process.Kill() // it has ended, or this system has no signals
		}
		return os.ErrProcessDone // that it was asked to end is no error
	}
	p.cmd.WaitDelay = c.grace
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = c.in, &p.tail, &p.tail
	if out != nil {
		p.cmd.Stdout = out
	}
	started := make(chan error)
	l.starts <- func() { started <- startOn(p.cmd, c.cpus) }
	if err := <-started; err != nil {
		stop()
		return nil, fmt.Errorf("cannot start %s: %w", c.args[0], err)
	}
	go func() { // waited for by end
		defer close(p.done)
		p.err = p.cmd.Wait()
		stop()
		l.endGroup(p.pid())
		if out != nil {
			out.Close()
		}
	}()
	return p, nil
}

// pid is also the number of the process group on Linux.
func (p *process) pid() int { return p.cmd.Process.Pid }

// end ends the process and waits for it and for what it left of its group. It may be called
// again and from several goroutines.
func (p *process) end() {
	p.stop()
	<-p.done
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

// lines runs a program and calls each with each line of its standard output, to its end.
// started, which may be nil, is told of the process before the first. When ctx ends or each
// returns an error the program is ended, and the cause or that error is returned. The program
// has ended in any case when lines returns. A nil process was not started.
func (l *launcher) lines(ctx context.Context, c command, started func(*process), each func(line []byte) error) (*process, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	output, out := io.Pipe()
	p, err := l.start(ctx, c, out)
	if err != nil {
		return nil, err
	}
	if started != nil {
		started(p)
	}
	defer context.AfterFunc(ctx, func() { output.CloseWithError(io.ErrClosedPipe) })()
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, maxLine)
	for lines.Scan() && err == nil {
		err = each(lines.Bytes())
	}
	if err == nil && lines.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("the output of %s: %w", c.args[0], lines.Err())
	}
	if err != nil {
		cancel(err)
	}
	<-p.done
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
