package upgrade

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file is for a first process that has to stay, because whoever has started it ends
// everything with it: an init that is the server itself, in a container.
//
// It makes a pipe, whose writing end goes from each process to the one that takes its place. Who
// takes over writes its number there, and who goes on after all writes its own again. The first
// process reads who serves when it needs to know that: for a signal that it passes on, and when a
// process has ended. It adopts and reaps what others leave behind (PR_SET_CHILD_SUBREAPER). A process
// writes the number of the one that took its place, and how it ended, before it reaps it.

// line is the pipe, as far as this process has it. Nobody waits at it.
type line struct {
	first bool // this is the process that stays, and has read
	read  int
	write *os.File
}

// own is that of this process, nil for none.
var own atomic.Pointer[line]

// Stays makes this process stay, when another one takes its place, unless there is one already
// that does.
func Stays() error {
	if own.Load() != nil {
		return nil
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return fmt.Errorf("a pipe: %w", err)
	}
	own.Store(&line{first: true, read: fds[0], write: os.NewFile(uintptr(fds[1]), "line")})
	return nil
}

// Serves tells the first process, if there is one that stays, that this one serves.
func Serves() {
	if l := own.Load(); l != nil {
		_, _ = unix.Write(int(l.write.Fd()), fmt.Appendln(nil, os.Getpid())) // it fails when that has gone
	}
}

// reportEnd waits until a child has ended, and tells the first process how, if there is one that stays. The
// child is still to be reaped: where this process ends before it has reported, the first one reaps it.
func reportEnd(pid int) {
	l := own.Load()
	if l == nil || l.first {
		return
	}
	// This is siginfo_t of SIGCHLD, with room for what else it may have.
	var info struct {
		signal, errno, code int32
		_                   [0]uintptr
		pid, user, status   int32
		_                   [128]byte
	}
	err := error(unix.EINTR)
	for err == unix.EINTR {
		err = unix.Waitid(unix.P_PID, pid, (*unix.Siginfo)(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOWAIT, nil)
	}
	if err != nil {
		return // reported tells that it is not known
	}
	status := unix.WaitStatus(info.status) // the number of a signal
	if info.code == exited {
		status <<= 8
	}
	_, _ = unix.Write(int(l.write.Fd()), fmt.Appendln(nil, pid, howEnded(status))) // it fails when that has gone
}

const (
	exitedZero = "exit status 0"
	exited     = 1 // CLD_EXITED
	// reportWait is how long the first process waits for the report of an end.
	reportWait = time.Second
)

// passedOn are the signals that whoever serves gets. A terminal sends the others itself.
func passedOn() []os.Signal {
	signals := []os.Signal{unix.SIGHUP, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2}
	terminal, err := os.Open("/dev/tty")
	if err != nil {
		return append(signals, unix.SIGINT, unix.SIGQUIT)
	}
	terminal.Close()
	return signals
}

// Keeper is this process when it stays.
type Keeper struct {
	line    *line
	first   *Successor
	signals chan os.Signal
	passing sync.WaitGroup

	mu      sync.Mutex
	current int
	ended   map[int]string // how a process has ended, as far as its parent has reported: the last one
}

// Keep begins to pass signals on, if this process is one that stays; otherwise it returns nil.
func (s *Successor) Keep() *Keeper {
	l := own.Load()
	if l == nil || !l.first {
		return nil
	}
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // which process 1 is anyway
	k := &Keeper{line: l, first: s, signals: make(chan os.Signal, 16), current: s.PID()}
	signal.Notify(k.signals, passedOn()...)
	k.passing.Go(func() {
		for sig := range k.signals {
			_ = unix.Kill(k.serves(), sig.(unix.Signal)) // it may have ended
		}
	})
	return k
}

// serves is the process that serves.
func (k *Keeper) serves() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	for p := make([]byte, 4096); ; {
		n, err := unix.Read(k.line.read, p)
		if err != nil || n <= 0 {
			return k.current
		}
		for text := range strings.Lines(string(p[:n])) {
			number, how, reported := strings.Cut(strings.TrimSuffix(text, "\n"), " ")
			switch pid, err := strconv.Atoi(number); {
			case err != nil:
			case reported:
				k.ended = map[int]string{pid: how}
			default:
				k.current = pid
			}
		}
	}
}

// reported waits for how a process has ended that its parent has reaped.
func (k *Keeper) reported(pid int) error {
	for end := time.Now().Add(reportWait); ; {
		k.serves()
		k.mu.Lock()
		how, ok := k.ended[pid]
		k.mu.Unlock()
		left := time.Until(end)
		switch {
		case ok:
			return ended(pid, how)
		case left <= 0:
			return fmt.Errorf("process %d, which served, has ended", pid)
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(k.line.read), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
	}
}

// Wait waits until whoever serves has ended, and says how if it was no good end. Meanwhile it
// reaps all children: this process has no others by then.
func (k *Keeper) Wait() error {
	defer k.passing.Wait()
	defer close(k.signals)
	defer signal.Stop(k.signals)
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, unix.SIGCHLD)
	defer signal.Stop(ends)
	for exited := k.first.exited; ; {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		serves := k.serves()
		switch {
		case err == unix.EINTR:
			continue
		case pid > 0 && pid == serves:
			return ended(serves, howEnded(status))
		case pid > 0:
			continue
		case exited == nil && serves != k.first.PID() && unix.Kill(serves, 0) == unix.ESRCH:
			return k.reported(serves)
		}
		select {
		case <-ends:
		case <-exited:
			if exited = nil; serves == k.first.PID() && k.serves() == serves {
				if k.first.state == nil {
					return nil
				}
				return fmt.Errorf("process %d, which served, has ended: %w", serves, k.first.state)
			}
		}
	}
}

// howEnded describes a status as package os does.
func howEnded(status unix.WaitStatus) string {
	if status.Signaled() {
		return "signal: " + status.Signal().String()
	}
	return fmt.Sprintf("exit status %d", status.ExitStatus())
}

// ended returns how the process that served has ended, nil for an exit code of 0.
func ended(pid int, how string) error {
	if how == exitedZero {
		return nil
	}
	return fmt.Errorf("process %d, which served, has ended: %s", pid, how)
}
