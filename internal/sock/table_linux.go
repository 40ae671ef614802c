package sock

import (
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

// This file gives a thread a descriptor table of its own. The limit of
// descriptors holds for each table, so that several threads of one process can
// have more open than the limit says.
//
// A table begins as a copy of the process's. Of that copy stay the standard
// streams, files, and what belongs to no file: among these are the descriptors
// of Go's poller, without which the runtime can't go on on that thread, and
// eventfds. Sockets and pipes are closed: a copy would keep them open when their
// owner closes them.
//
// Code that runs on such a thread by mistake with a descriptor of the process's
// table is not to hit a connection. So connections are numbered from Guard, and
// the free numbers below it are taken by something that can neither be read nor
// written.

// tables says which threads have a table of their own, and for Eventfd.Ring what
// is in it.
var tables struct {
	private  atomic.Int32 // how many
	eventfds atomic.Uint64

	mu sync.RWMutex
	of map[int]uint64 // by thread: eventfds made up to then are in it
}

// OwnThread runs f on a thread that ends with it, and returns when f has.
func OwnThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and not unlocked: so the thread ends
		if unix.Gettid() == unix.Getpid() {
			// The main thread can't end. Held here, it is not chosen again.
			OwnThread(f)
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
}

var startPoller sync.Once

// PrivateTable gives this thread, which must be one of OwnThread, a descriptor
// table of its own. It keeps the sockets given. The table goes with the thread;
// release is called before.
func PrivateTable(keep map[int32]bool) (release func(), err error) {
	startPoller.Do(func() {
		if r, w, err := os.Pipe(); err == nil { // which Go's poller watches
			r.Close()
			w.Close()
		}
	})
	eventfds := tables.eventfds.Load()
	if err := unshareFiles(); err != nil {
		return nil, err
	}
	if err := closeInherited(keep); err != nil {
		return nil, err
	}
	if err := guard(); err != nil {
		return nil, err
	}
	thread := unix.Gettid()
	tables.mu.Lock()
	defer tables.mu.Unlock()
	if tables.of == nil {
		tables.of = make(map[int]uint64)
	}
	tables.of[thread] = eventfds
	tables.private.Add(1)
	return func() {
		tables.mu.Lock()
		defer tables.mu.Unlock()
		delete(tables.of, thread)
		tables.private.Add(-1)
	}, nil
}

// PrivateTables says why threads can't have descriptor tables of their own here, nil
// if they can. It is tried once, on a thread that ends.
var PrivateTables = sync.OnceValue(func() (err error) {
	OwnThread(func() { err = unshareFiles() })
	return err
})

// unshareFiles copies the table. Containers often forbid unshare, whatever it is
// to copy, so the other call that can comes first.
func unshareFiles() error {
	const beyondAll = 1 << 30
	err := unix.CloseRange(beyondAll, math.MaxUint32, unix.CLOSE_RANGE_UNSHARE)
	if err != nil {
		err = unix.Unshare(unix.CLONE_FILES)
	}
	if err != nil {
		return fmt.Errorf("a descriptor table for each loop: %w; a seccomp filter may forbid it: "+
			"use worker processes instead, or fewer connections", err)
	}
	return nil
}

// closeInherited closes the copies of sockets and pipes.
func closeInherited(keep map[int32]bool) error {
	entries, err := os.ReadDir("/proc/thread-self/fd")
	if err != nil {
		return fmt.Errorf("a descriptor table for each loop needs /proc: %w", err)
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= 2 || keep[int32(fd)] {
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil {
			continue // the directory's own, closed by now
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFSOCK, unix.S_IFIFO:
			unix.Close(fd)
		}
	}
	return nil
}

// guard takes the free numbers below Guard.
func guard() error {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	for err == nil && fd < Guard {
		fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	}
	if err != nil {
		return fmt.Errorf("a descriptor table for each loop: %w", err)
	}
	return unix.Close(fd)
}

// reaches says whether the calling thread's table has the eventfd.
func (e Eventfd) reaches() bool {
	if tables.private.Load() == 0 {
		return true
	}
	tables.mu.RLock()
	defer tables.mu.RUnlock()
	eventfds, private := tables.of[unix.Gettid()]
	return !private || e.number <= eventfds
}

// DescriptorLimit is how many descriptors this process may open now (soft) and
// how far it may raise that by itself (hard). ok is false where there is no
// such limit to read.
func DescriptorLimit() (soft, hard uint64, ok bool) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, 0, false
	}
	return r.Cur, r.Max, true
}

// SharpTimers has the waits of the calling thread, to which the goroutine must be
// locked, end within a microsecond of their time, not within the 50 that the kernel
// takes to end several at once; undo takes it back.
func SharpTimers() (undo func()) {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // an error means that they are as they were
	return func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }
}

// ThreadWork is what a thread has done.
type ThreadWork struct {
	// CPU is the processor time that it has used.
	CPU time.Duration
	// Sleeps is how often it has given up its processor to wait for
	// something; when it was taken from it does not count.
	Sleeps int64
}

// Worked is what the calling thread, to which the goroutine must be locked, has
// done so far.
func Worked() ThreadWork {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &u) // a valid call does not fail
	return ThreadWork{CPU: time.Duration(u.Utime.Nano() + u.Stime.Nano()), Sleeps: int64(u.Nvcsw)}
}

// Since is what it has done since an earlier time.
func (w ThreadWork) Since(earlier ThreadWork) ThreadWork {
	return ThreadWork{CPU: w.CPU - earlier.CPU, Sleeps: w.Sleeps - earlier.Sleeps}
}
