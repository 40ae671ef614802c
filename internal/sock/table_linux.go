package sock

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// This file gives a thread a private descriptor table. The descriptor limit applies to each table, so several threads
// of a process can together open more descriptors than the limit.
//
// A table starts as a copy of the process's table. The standard streams, files and anonymous descriptors remain. Go's
// poller, for example, has anonymous descriptors, without which the runtime cannot continue on that thread. Sockets and
// pipes are closed, because a copy would keep them open after their owner closes them.
//
// If code on such a thread uses a descriptor of the process's table by mistake, it must not access a connection.
// Connections are therefore numbered from FirstPrivateFD, and the free numbers below it are filled with a descriptor
// that can neither be read nor written.

// privateTables records which threads have a private descriptor table, and which eventfds each table contains.
var privateTables struct {
	count    atomic.Int32  // number of tables
	eventfds atomic.Uint64 // number of eventfds created

	mu               sync.RWMutex
	eventfdsByThread map[int]uint64 // by thread: sequence number of the last eventfd in the thread's table
}

// RunOnNewThread calls f on a new thread and waits until f has returned. The thread then exits.
func RunOnNewThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked, so the thread exits
		if unix.Gettid() == unix.Getpid() {
			// The main thread cannot exit. It is locked here, so that the nested call gets another thread.
			RunOnNewThread(f)
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
}

var startRuntimePoller sync.Once

// UnshareDescriptorTable gives the calling thread a private descriptor table, which starts as a copy of the process's
// table. All sockets and pipes except keepFDs are closed in the private table. They stay open in the process's table.
//
// Call UnshareDescriptorTable only in a function that RunOnNewThread runs. Call unregisterThread before that function
// returns.
func UnshareDescriptorTable(keepFDs map[int32]bool) (unregisterThread func(), err error) {
	startRuntimePoller.Do(func() {
		if r, w, err := os.Pipe(); err == nil { // starts Go's poller
			r.Close()
			w.Close()
		}
	})
	eventfds := privateTables.eventfds.Load()
	if err := unshareThreadDescriptorTable(); err != nil {
		return nil, err
	}
	if err := closeInheritedSocketsAndPipes(keepFDs); err != nil {
		return nil, err
	}
	if err := fillFDsBelowFirstPrivate(); err != nil {
		return nil, err
	}
	thread := unix.Gettid()
	privateTables.mu.Lock()
	defer privateTables.mu.Unlock()
	if privateTables.eventfdsByThread == nil {
		privateTables.eventfdsByThread = make(map[int]uint64)
	}
	privateTables.eventfdsByThread[thread] = eventfds
	privateTables.count.Add(1)
	return func() {
		privateTables.mu.Lock()
		defer privateTables.mu.Unlock()
		delete(privateTables.eventfdsByThread, thread)
		privateTables.count.Add(-1)
	}, nil
}

// CheckPrivateTables returns an error if threads cannot have private descriptor tables on this machine.
var CheckPrivateTables = sync.OnceValue(func() (err error) {
	RunOnNewThread(func() { err = unshareThreadDescriptorTable() })
	return err
})

func unshareThreadDescriptorTable() error {
	const beyondAll = 1 << 30
	err := unix.CloseRange(beyondAll, math.MaxUint32, unix.CLOSE_RANGE_UNSHARE)
	if err != nil {
		err = unix.Unshare(unix.CLONE_FILES)
	}
	if err != nil {
		return fmt.Errorf("cannot give each loop a descriptor table: %w; a seccomp filter may be the cause: "+
			"use worker processes instead, or fewer connections", err)
	}
	return nil
}

func closeInheritedSocketsAndPipes(keepFDs map[int32]bool) error {
	entries, err := os.ReadDir("/proc/thread-self/fd")
	if err != nil {
		return fmt.Errorf("cannot give each loop a descriptor table: /proc is required: %w", err)
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= 2 || keepFDs[int32(fd)] {
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil {
			continue // the descriptor of the directory itself, closed by now
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFSOCK, unix.S_IFIFO:
			unix.Close(fd)
		}
	}
	return nil
}

func fillFDsBelowFirstPrivate() error {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	for err == nil && fd < FirstPrivateFD {
		fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	}
	if err != nil {
		return fmt.Errorf("cannot give each loop a descriptor table: %w", err)
	}
	return unix.Close(fd)
}

func (e Eventfd) isUsableByCallingThread() bool {
	if privateTables.count.Load() == 0 {
		return true
	}
	privateTables.mu.RLock()
	defer privateTables.mu.RUnlock()
	eventfds, private := privateTables.eventfdsByThread[unix.Gettid()]
	return !private || e.seq <= eventfds
}

// DescriptorLimit returns the limit of open descriptors of this process. soft is the current limit. hard is the maximum
// to which the process may raise its limit. If the limit cannot be read, known is false.
func DescriptorLimit() (soft, hard uint64, known bool) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, 0, false
	}
	return r.Cur, r.Max, true
}

// SetThreadPreciseTimers makes the kernel wake the calling thread as punctually as possible, until restore is called.
// It sets the timer slack of the thread, which is how late the kernel may wake the thread, to 1 ns. The goroutine must
// be locked to the thread.
func SetThreadPreciseTimers() (restore func()) {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // on failure timers stay as they were
	return func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }
}

type ThreadUsage struct {
	CPU time.Duration
	// Sleeps is how often the thread has stopped running to wait (voluntary context switches).
	Sleeps int64
}

// CurrentThreadUsage returns the usage of the calling thread. The goroutine must be locked to the thread.
func CurrentThreadUsage() ThreadUsage {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &u)                                               // a valid call does not fail
	return ThreadUsage{CPU: readClock(unix.CLOCK_THREAD_CPUTIME_ID), Sleeps: int64(u.Nvcsw)} // u's times advance by ticks
}

// ProcessCPU returns the CPU time of the process.
func ProcessCPU() time.Duration { return readClock(unix.CLOCK_PROCESS_CPUTIME_ID) }

// readClock returns the time of a kernel clock, or 0 if the clock does not exist.
func readClock(id int32) time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(id, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// ThreadCPU returns the CPU time of a thread of this process, or 0 if the thread has ended.
func ThreadCPU(tid int) time.Duration {
	const perThread, scheduled = 4, 2 // CPUCLOCK_PERTHREAD_MASK and CPUCLOCK_SCHED of Linux
	return readClock(int32(^tid<<3 | perThread | scheduled))
}

// ThreadIsRunnable reports whether a thread of this process is running or waiting for a CPU.
func ThreadIsRunnable(tid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/stat", tid))
	i := bytes.LastIndexByte(stat, ')') // after the name, which may contain anything
	return err == nil && i >= 0 && bytes.HasPrefix(stat[i:], []byte(") R"))
}

func (w ThreadUsage) Since(earlier ThreadUsage) ThreadUsage {
	return ThreadUsage{CPU: w.CPU - earlier.CPU, Sleeps: w.Sleeps - earlier.Sleeps}
}
