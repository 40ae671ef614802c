package run

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/tools/internal/lab/app"
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
	all    []int // CPUs that this process may use

	mu   sync.Mutex
	left error // processes that did not end within groupBound
}

func newLauncher() *launcher {
	l := &launcher{starts: make(chan func()), ended: make(chan struct{})}
	l.all, _ = allowedCPUs() // or nothing is pinned
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
	cpus  []int         // where it runs; nil for wherever this process may
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
	cpus := c.cpus
	if cpus == nil {
		cpus = l.all // or those of the process before it would stay the thread's
	}
	started := make(chan error)
	l.starts <- func() { started <- startOn(p.cmd, cpus) }
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
// started, which may be nil, is called with the process before the first. When ctx ends or each
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

const (
	// readyBound is how long a server may take to answer its first connection. One that
	// followed a run of a million connections, on a busy machine, took more than 10 s.
	readyBound = 30 * time.Second
	// attemptBound is how long one attempt to reach it may take.
	attemptBound = time.Second
)

// server is a subject that runs.
type server struct {
	*process
	addr string
}

// port is where the server listens.
func (s *server) port() uint16 { return netip.MustParseAddrPort(s.addr).Port() }

// watch returns a context that ends, with the reason as its cause, when the server ends by
// itself. The returned function releases it and waits.
func (s *server) watch(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var wait sync.WaitGroup
	wait.Go(func() {
		select {
		case <-ctx.Done():
		case <-s.done:
			cancel(s.failure("the server"))
		}
	})
	return ctx, func() {
		cancel(nil)
		wait.Wait()
	}
}

// awaitReady waits until the server answers, and returns the connection over which it did.
func (s *server) awaitReady(ctx context.Context, name string, trust *tls.Config) (net.Conn, error) {
	bound, cancel := context.WithTimeout(ctx, readyBound)
	defer cancel()
	var last error
	for {
		conn, err := dialAndAsk(bound, s.addr, name, trust)
		if err == nil {
			return conn, nil
		}
		if bound.Err() == nil || last == nil {
			last = err // and not that there was no more time
		}
		if pause(bound, poll) != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, fmt.Errorf("the server was not ready within %v: %w%s", readyBound, last, s.words())
		}
	}
}

// dialAndAsk connects and has the app answer once. So the connection has been accepted, not
// only queued.
func dialAndAsk(ctx context.Context, addr, name string, trust *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptBound)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	raw := conn
	if trust != nil {
		conn = tls.Client(conn, trust)
	}
	err = conn.SetDeadline(time.Now().Add(attemptBound))
	if err == nil {
		err = app.Ask(conn, name)
	}
	if err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}

// dialTraceless connects so that nothing is left of the connection when it is closed: no
// TIME_WAIT.
func dialTraceless(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: broadcastBound}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		err = tcp.SetLinger(0)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// freeAddr returns a loopback address that nobody listens on. It looks below the range that
// systems take client ports from, so that none of the many connections of a load takes the
// port first.
func freeAddr() (string, error) {
	const from, to, tries = 20000, 30000, 100
	var last error
	for range tries {
		addr := fmt.Sprintf("127.0.0.1:%d", from+rand.IntN(to-from))
		ln, err := net.Listen("tcp", addr)
		if err == nil {
			return addr, ln.Close()
		}
		last = err
	}
	return "", fmt.Errorf("no free port found in %d tries: %w", tries, last)
}
