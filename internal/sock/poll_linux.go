package sock

import (
	"fmt"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Poll is an epoll instance. It is not safe for concurrent use.
type Poll struct {
	fd       int32
	noPwait2 bool // the kernel has no epoll_pwait2
	events   []unix.EpollEvent
}

// Events that a Poll watches for and reports.
const (
	In    uint32 = unix.EPOLLIN
	Out   uint32 = unix.EPOLLOUT
	Error uint32 = unix.EPOLLERR
	Hup   uint32 = unix.EPOLLHUP
)

// NewEpoll creates an epoll instance that reports at most batch events per call.
func NewEpoll(batch int) (*Poll, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	return &Poll{fd: int32(fd), events: make([]unix.EpollEvent, batch)}, nil
}

// LimitBatch limits the number of events that a call of TryWait or Wait reports. The limit is n, but at least 1 and at
// most the batch given to NewEpoll.
func (p *Poll) LimitBatch(n int) { p.events = p.events[:max(min(n, cap(p.events)), 1)] }

// FD returns the epoll descriptor, which another Poll can watch.
func (p *Poll) FD() int32 { return p.fd }

// Add starts to watch fd for events. While an event lasts, every TryWait and Wait reports it (level-triggered). Event
// returns token together with the events of fd.
func (p *Poll) Add(fd, token int32, events uint32) syscall.Errno {
	return p.epollCtl(unix.EPOLL_CTL_ADD, fd, token, events)
}

func (p *Poll) Modify(fd, token int32, events uint32) syscall.Errno {
	return p.epollCtl(unix.EPOLL_CTL_MOD, fd, token, events)
}

func (p *Poll) Remove(fd int32) syscall.Errno {
	return p.epollCtl(unix.EPOLL_CTL_DEL, fd, 0, 0)
}

func (p *Poll) epollCtl(op int, fd, token int32, events uint32) syscall.Errno {
	e := unix.EpollEvent{Events: events, Fd: token}
	_, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(p.fd), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(&e)), 0, 0)
	return errno
}

// TryWait fetches the pending events and returns their number. It does not block, and calls the kernel without
// notifying the Go scheduler.
func (p *Poll) TryWait() (ready int) {
	n, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])), uintptr(len(p.events)), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// Wait blocks until events are pending or the timeout has passed, and returns the number of events. If timeout is
// negative, Wait has no time limit. Other goroutines continue to run.
func (p *Poll) Wait(timeout time.Duration) (ready int) {
	if timeout < 0 || p.noPwait2 {
		return p.epollWaitMilliseconds(timeout)
	}
	n, errno := p.epollWaitNanoseconds(timeout)
	if errno == unix.ENOSYS || errno == unix.EPERM {
		p.noPwait2 = true
		return p.epollWaitMilliseconds(timeout)
	}
	return n
}

// kernelTimespec is struct __kernel_timespec, which is the same on all architectures.
type kernelTimespec struct{ sec, nsec int64 }

func (p *Poll) epollWaitNanoseconds(timeout time.Duration) (ready int, _ syscall.Errno) {
	at := kernelTimespec{int64(timeout / time.Second), int64(timeout % time.Second)}
	n, _, errno := syscall.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])), uintptr(len(p.events)), uintptr(unsafe.Pointer(&at)), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

func (p *Poll) epollWaitMilliseconds(timeout time.Duration) (ready int) {
	ms := -1
	if timeout >= 0 {
		ms = int((timeout + time.Millisecond - 1) / time.Millisecond)
	}
	n, _, errno := syscall.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])), uintptr(len(p.events)), uintptr(ms), 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// Event returns event i of those that the last TryWait or Wait has fetched. The first event has index 0.
func (p *Poll) Event(i int) (token int32, events uint32) {
	e := &p.events[i]
	return e.Fd, e.Events
}

func (p *Poll) Close() { Close(p.fd) }

// Eventfd is an eventfd(2) that wakes an event loop. The loop watches the descriptor FD. Any goroutine may call Signal.
type Eventfd struct {
	FD  int32
	seq uint64 // sequence number of its creation; see privateTables
}

func NewEventfd() (Eventfd, error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return Eventfd{}, fmt.Errorf("eventfd: %w", err)
	}
	return Eventfd{FD: int32(fd), seq: privateTables.eventfds.Add(1)}, nil
}

// Signal makes the eventfd readable.
func (e Eventfd) Signal() {
	if e.isUsableByCallingThread() {
		e.writeOne()
		return
	}
	// A new goroutine runs on another thread, whose descriptor table contains the eventfd.
	signalled := make(chan struct{})
	go func() {
		e.writeOne()
		close(signalled)
	}()
	<-signalled
}

func (e Eventfd) writeOne() {
	one := uint64(1)
	_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, uintptr(e.FD), uintptr(unsafe.Pointer(&one)), 8)
}

func (e Eventfd) Clear() {
	var n uint64
	_, _, _ = syscall.RawSyscall(unix.SYS_READ, uintptr(e.FD), uintptr(unsafe.Pointer(&n)), 8)
}

// Close closes the eventfd. Signal must not be called after Close.
func (e Eventfd) Close() { Close(e.FD) }

// Sleep blocks the calling thread for about d. A signal ends the sleep early. For short times, Sleep is more precise
// than time.Sleep.
func Sleep(d time.Duration) {
	ts := unix.NsecToTimespec(d.Nanoseconds())
	_ = unix.Nanosleep(&ts, nil)
}
