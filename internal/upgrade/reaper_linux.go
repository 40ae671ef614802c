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

// This file is for a first process that must not exit, such as the init process of a container. All other processes
// would end with it.
//
// The first process creates a pipe. Every process passes the write end to its successor. A process that takes over
// writes its PID to the pipe; a process that continues after a failed upgrade writes its own PID again. The first
// process reads the PID of the serving process when it relays a signal, and when a process has exited. It adopts and
// reaps orphans. Before a process reaps its successor, it writes the successor's PID and exit status to the pipe.

// statusPipe is a pipe to the first process in a series of upgrades. Through the pipe, the later processes tell the
// first process which process serves and how a process has exited.
type statusPipe struct {
	isFirstProcess bool // this process keeps running and reads the pipe
	read           int
	write          *os.File
}

// ownStatusPipe is the statusPipe of this process. It is nil if the first process exits after an upgrade.
var ownStatusPipe atomic.Pointer[statusPipe]

// EnableKeepRunningIfFirst makes this process keep running after an upgrade. If this process has itself replaced a
// process with this setting, nothing changes.
func EnableKeepRunningIfFirst() error {
	if ownStatusPipe.Load() != nil {
		return nil
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return fmt.Errorf("create the status pipe: %w", err)
	}
	ownStatusPipe.Store(&statusPipe{isFirstProcess: true, read: fds[0], write: os.NewFile(uintptr(fds[1]), "line")})
	return nil
}

// ReportOwnPIDServing tells the first process that this process serves. If the first process does not keep running
// after upgrades, it does nothing.
func ReportOwnPIDServing() {
	if l := ownStatusPipe.Load(); l != nil {
		_, _ = unix.Write(int(l.write.Fd()), fmt.Appendln(nil, os.Getpid())) // fails if the first process has exited
	}
}

// waitAndReportExitToFirst waits until the child process with the given PID has exited, and reports the exit status to
// the first process. It does not reap the child. It does nothing in the first process itself, or if the first process
// does not keep running after upgrades.
func waitAndReportExitToFirst(pid int) {
	l := ownStatusPipe.Load()
	if l == nil || l.isFirstProcess {
		return
	}
	// siginfo_t of SIGCHLD, with space for its other fields.
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
		return // waitReportedExitError handles a missing report
	}
	status := unix.WaitStatus(info.status) // a signal number, unless the process has exited by itself
	if info.code == cldExited {
		status <<= 8
	}
	_, _ = unix.Write(int(l.write.Fd()), fmt.Appendln(nil, pid, formatWaitStatus(status))) // fails if the first process has exited
}

const (
	exitedZero        = "exit status 0"
	cldExited         = 1 // CLD_EXITED
	exitReportTimeout = time.Second
)

func signalsToRelay() []os.Signal {
	signals := []os.Signal{unix.SIGHUP, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2}
	terminal, err := os.Open("/dev/tty")
	if err != nil {
		return append(signals, unix.SIGINT, unix.SIGQUIT)
	}
	terminal.Close()
	// The terminal itself sends SIGINT and SIGQUIT to the serving process.
	return signals
}

// Reaper relays signals to the serving process and reaps child processes. After an upgrade, a first process that keeps
// running uses a Reaper.
type Reaper struct {
	statusPipe *statusPipe
	successor  *Successor
	signals    chan os.Signal
	relaying   sync.WaitGroup

	mu          sync.Mutex
	servingPID  int
	exitReports map[int]string // the last exit report: PID and status
}

// RelaySignalsIfFirstProcess returns a Reaper that relays signals to the new process. If this process is not a first
// process that keeps running, it returns nil.
func (s *Successor) RelaySignalsIfFirstProcess() (reaperOrNil *Reaper) {
	l := ownStatusPipe.Load()
	if l == nil || !l.isFirstProcess {
		return nil
	}
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // process 1 is a reaper anyway
	k := &Reaper{statusPipe: l, successor: s, signals: make(chan os.Signal, 16), servingPID: s.PID()}
	signal.Notify(k.signals, signalsToRelay()...)
	k.relaying.Go(func() {
		for sig := range k.signals {
			_ = unix.Kill(k.readReportsAndServingPID(), sig.(unix.Signal)) // it may have exited
		}
	})
	return k
}

func (k *Reaper) readReportsAndServingPID() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	for p := make([]byte, 4096); ; {
		n, err := unix.Read(k.statusPipe.read, p)
		if err != nil || n <= 0 {
			return k.servingPID
		}
		for text := range strings.Lines(string(p[:n])) {
			number, how, reported := strings.Cut(strings.TrimSuffix(text, "\n"), " ")
			switch pid, err := strconv.Atoi(number); {
			case err != nil:
			case reported:
				k.exitReports = map[int]string{pid: how}
			default:
				k.servingPID = pid
			}
		}
	}
}

// waitReportedExitError waits for the report of the exit status of the process with the given PID. It returns nil if
// the exit status is 0. It returns an error for any other status, or if no report arrives within exitReportTimeout.
func (k *Reaper) waitReportedExitError(pid int) error {
	for end := time.Now().Add(exitReportTimeout); ; {
		k.readReportsAndServingPID()
		k.mu.Lock()
		how, ok := k.exitReports[pid]
		k.mu.Unlock()
		left := time.Until(end)
		switch {
		case ok:
			return serverExitErrorUnlessZero(pid, how)
		case left <= 0:
			return fmt.Errorf("the serving process %d has ended", pid)
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(k.statusPipe.read), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
	}
}

// ReapUntilServerExits reaps child processes until the serving process has exited. It returns an error unless the
// serving process has exited with status 0.
func (k *Reaper) ReapUntilServerExits() error {
	defer k.relaying.Wait()
	defer close(k.signals)
	defer signal.Stop(k.signals)
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, unix.SIGCHLD)
	defer signal.Stop(ends)
	for exited := k.successor.exited; ; {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		serves := k.readReportsAndServingPID()
		switch {
		case err == unix.EINTR:
			continue
		case pid > 0 && pid == serves:
			return serverExitErrorUnlessZero(serves, formatWaitStatus(status))
		case pid > 0:
			continue
		case exited == nil && serves != k.successor.PID() && unix.Kill(serves, 0) == unix.ESRCH:
			return k.waitReportedExitError(serves)
		}
		select {
		case <-ends:
		case <-exited:
			if exited = nil; serves == k.successor.PID() && k.readReportsAndServingPID() == serves {
				if k.successor.exitErr == nil {
					return nil
				}
				return fmt.Errorf("the serving process %d has ended: %w", serves, k.successor.exitErr)
			}
		}
	}
}

func formatWaitStatus(status unix.WaitStatus) string {
	if status.Signaled() {
		return "signal: " + status.Signal().String()
	}
	return fmt.Sprintf("exit status %d", status.ExitStatus())
}

func serverExitErrorUnlessZero(pid int, exitStatus string) error {
	if exitStatus == exitedZero {
		return nil
	}
	return fmt.Errorf("the serving process %d has ended: %s", pid, exitStatus)
}
