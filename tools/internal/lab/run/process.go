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
	// stopKillDelay is the time between SIGTERM and SIGKILL.
	stopKillDelay   = 3 * time.Second
	outputKillDelay = 30 * time.Second // for a process whose output is read
	heldKillDelay   = time.Minute      // for a process with up to a million connections
	// groupExitTimeout limits the wait for the end of the processes in a killed process group.
	groupExitTimeout = time.Minute
	// maxTailBytes limits how much of a process's last output is stored. maxLineBytes limits an output line.
	maxTailBytes = 4096
	maxLineBytes = 1 << 20
	pollInterval = 20 * time.Millisecond
)

// launcher starts processes on given CPUs. Each process gets its own process group. The launcher starts all processes
// from one OS thread that lives as long as the launcher. This is necessary because the processes use Pdeathsig: Linux
// kills a process when the thread that started it ends.
type launcher struct {
	starts      chan func()
	done        chan struct{}
	allowedCPUs []int // CPUs that this process may use

	mu          sync.Mutex
	leftoverErr error // error about processes that did not end within groupExitTimeout
}

func newLauncher() *launcher {
	l := &launcher{starts: make(chan func()), done: make(chan struct{})}
	l.allowedCPUs, _ = readAllowedCPUs() // on error nothing is pinned
	go func() {
		defer close(l.done)
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		for start := range l.starts {
			start()
		}
	}()
	return l
}

// close ends the launcher's thread. Before the call, all started processes must have ended.
func (l *launcher) close() {
	close(l.starts)
	<-l.done
}

func (l *launcher) takeLeftoverGroupError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.leftoverErr
	l.leftoverErr = nil
	return err
}

// killGroupOrStoreError kills the remaining processes of a group and waits for their end. If they still run after
// groupExitTimeout, it stores an error in leftoverErr.
func (l *launcher) killGroupOrStoreError(pid int) {
	killGroup(pid)
	for end := time.Now().Add(groupExitTimeout); isGroupAlive(pid); time.Sleep(pollInterval) {
		if time.Now().After(end) {
			l.mu.Lock()
			l.leftoverErr = fmt.Errorf("processes started by the server or the load generator still run %v after they were killed", groupExitTimeout)
			l.mu.Unlock()
			return
		}
	}
}

type command struct {
	args      []string
	in        io.Reader     // standard input; nil for none
	cpus      []int         // CPUs to run on; nil for all allowed CPUs
	killDelay time.Duration // time between SIGTERM and SIGKILL
}

// process is a child process. When the context of a process ends, the process receives SIGTERM.
type process struct {
	cmd  *exec.Cmd
	stop context.CancelFunc
	tail lastOutputBuffer
	done chan struct{} // closed when the process has ended and its output has been read
	err  error         // exit error of the process; valid after done is closed
}

// startPinnedProcess starts a program on the CPUs in c.cpus. If stdout is not nil, the program's standard output goes
// to stdout, and stdout is closed after the program has ended. If stdout is nil, the end of the output is stored in the
// field tail of the process. After a successful start, the caller must call terminateAndWait, or wait until the channel
// done of the process is closed.
func (l *launcher) startPinnedProcess(ctx context.Context, c command, stdout io.WriteCloser) (*process, error) {
	ctx, stop := context.WithCancel(ctx)
	p := &process{cmd: exec.CommandContext(ctx, c.args[0], c.args[1:]...), stop: stop, done: make(chan struct{})}
	p.cmd.Cancel = func() error {
		if p.cmd.Process.Signal(syscall.SIGTERM) != nil {
			_ = p.cmd.Process.Kill() // fails if the process has ended or the system lacks signals
		}
		return os.ErrProcessDone // termination by request is not an error
	}
	p.cmd.WaitDelay = c.killDelay
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = c.in, &p.tail, &p.tail
	if stdout != nil {
		p.cmd.Stdout = stdout
	}
	cpus := c.cpus
	if cpus == nil {
		cpus = l.allowedCPUs // otherwise the thread would keep the CPUs of the previous process
	}
	started := make(chan error)
	l.starts <- func() { started <- startOnCPUsAndPinThread(p.cmd, cpus) }
	if err := <-started; err != nil {
		stop()
		return nil, fmt.Errorf("cannot start %s: %w", c.args[0], err)
	}
	go func() { // terminateAndWait waits for this goroutine
		defer close(p.done)
		p.err = p.cmd.Wait()
		stop()
		l.killGroupOrStoreError(p.pid())
		if stdout != nil {
			stdout.Close()
		}
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// terminateAndWait terminates the process group and waits for its end. It may be called repeatedly and concurrently.
func (p *process) terminateAndWait() {
	p.stop()
	<-p.done
}

// newUnexpectedExitError returns an error for a process that ended although it was not told to end. The error describes
// how the process ended. The caller must first wait until the channel done is closed.
func (p *process) newUnexpectedExitError(processName string) error {
	status := "exit status 0"
	switch {
	case errors.Is(p.err, exec.ErrWaitDelay):
		status = fmt.Sprintf("%v later its output had not come to its end", p.cmd.WaitDelay)
	case p.err != nil:
		status = p.err.Error()
	}
	return fmt.Errorf("%s ended: %s%s", processName, status, p.lastOutputWithColonPrefix())
}

func (p *process) lastOutputWithColonPrefix() (suffixOrEmpty string) {
	if words := p.tail.String(); words != "" {
		return ": " + words
	}
	return ""
}

// runAndReadLines runs a program, and calls onLine for each line of the program's standard output. It returns when the
// program has ended. If ctx ends or onLine returns an error, runAndReadLines terminates the program and returns the
// cause or the error.
//
// If the program itself fails, for example with a non-zero exit status, runAndReadLines does not return an error. The
// field err of the returned process contains this error. If the program cannot be started, the returned process is nil.
// If onStart is not nil, it is called after the start.
func (l *launcher) runAndReadLines(ctx context.Context, c command, onStart func(*process), onLine func(line []byte) error) (*process, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	output, out := io.Pipe()
	p, err := l.startPinnedProcess(ctx, c, out)
	if err != nil {
		return nil, err
	}
	if onStart != nil {
		onStart(p)
	}
	defer context.AfterFunc(ctx, func() { output.CloseWithError(io.ErrClosedPipe) })()
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, maxLineBytes)
	for lines.Scan() && err == nil {
		err = onLine(lines.Bytes())
	}
	if err == nil && lines.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("cannot read the output of %s: %w", c.args[0], lines.Err())
	}
	if err != nil {
		cancel(err)
	}
	<-p.done
	return p, context.Cause(ctx)
}

type lastOutputBuffer struct {
	mu  sync.Mutex
	buf []byte
}

func (t *lastOutputBuffer) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b[max(0, len(b)-maxTailBytes):]...)
	if over := len(t.buf) - maxTailBytes; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(b), nil
}

func (t *lastOutputBuffer) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(string(t.buf), "?"))
}

// sleepContext waits for d, or returns the cause of ctx if ctx ends first.
func sleepContext(ctx context.Context, d time.Duration) error {
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
	// readyTimeout limits the time until a server answers its first connection.
	readyTimeout   = 30 * time.Second // took more than 10 s after a run with a million connections
	attemptTimeout = time.Second
)

type serverProcess struct {
	*process
	addr string
}

func (s *serverProcess) port() uint16 { return netip.MustParseAddrPort(s.addr).Port() }

// contextUntilServerExits returns a context that is canceled when the server exits. The cause of the context then
// describes the exit. The caller must call the returned function to release resources.
func (s *serverProcess) contextUntilServerExits(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var wait sync.WaitGroup
	wait.Go(func() {
		select {
		case <-ctx.Done():
		case <-s.done:
			cancel(s.newUnexpectedExitError("the server"))
		}
	})
	return ctx, func() {
		cancel(nil)
		wait.Wait()
	}
}

// waitUntilAppAnswers connects to the server repeatedly, for up to readyTimeout, until the server answers as the app
// requires. It returns the connection on which the server has answered.
func (s *serverProcess) waitUntilAppAnswers(ctx context.Context, appName string, trust *tls.Config) (net.Conn, error) {
	bound, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	var last error
	for {
		conn, err := dialAndCheckApp(bound, s.addr, appName, trust)
		if err == nil {
			return conn, nil
		}
		if bound.Err() == nil || last == nil {
			last = err // not the error of the expired deadline
		}
		if sleepContext(bound, pollInterval) != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, fmt.Errorf("the server was not ready within %v: %w%s", readyTimeout, last, s.lastOutputWithColonPrefix())
		}
	}
}

func dialAndCheckApp(ctx context.Context, addr, appName string, trust *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	raw := conn
	if trust != nil {
		conn = tls.Client(conn, trust)
	}
	err = conn.SetDeadline(time.Now().Add(attemptTimeout))
	if err == nil {
		err = app.CheckServerSpeaksApp(conn, appName)
	}
	if err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}

// dialWithoutTimeWait connects to addr so that no socket remains in TIME_WAIT after the close.
func dialWithoutTimeWait(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: broadcastTimeout}).DialContext(ctx, network, addr)
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

// freeAddrBelowEphemeralPorts returns a loopback address whose port is free and not an ephemeral port.
func freeAddrBelowEphemeralPorts() (string, error) {
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
