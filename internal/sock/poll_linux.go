package sock

import (
	"fmt"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Poll is an epoll instance, for one goroutine.
type Poll struct {
	fd     int32
	coarse bool // the kernel has no epoll_pwait2
	events []unix.EpollEvent
}

// What a Poll can watch a descriptor for, and what it reports.
const (
	In    uint32 = unix.EPOLLIN
	Out   uint32 = unix.EPOLLOUT
	Error uint32 = unix.EPOLLERR
	Hup   uint32 = unix.EPOLLHUP
)

// NewPoll makes an epoll instance that reports at most batch events at once.
func NewPoll(batch int) (*Poll, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	return &Poll{fd: int32(fd), events: make([]unix.EpollEvent, batch)}, nil
}

// FD is the instance's own descriptor, which can be watched in turn.
func (p *Poll) FD() int32 { return p.fd }

// Add watches fd, level-triggered; token comes back with its events.
func (p *Poll) Add(fd, token int32, events uint32) syscall.Errno {
	return p.control(unix.EPOLL_CTL_ADD, fd, token, events)
}

// Modify changes what fd is watched for.
func (p *Poll) Modify(fd, token int32, events uint32) syscall.Errno {
	return p.control(unix.EPOLL_CTL_MOD, fd, token, events)
}

// Remove stops watching fd. Closing the last descriptor of a socket does, too.
func (p *Poll) Remove(fd int32) syscall.Errno {
	return p.control(unix.EPOLL_CTL_DEL, fd, 0, 0)
}

func (p *Poll) control(op int, fd, token int32, events uint32) syscall.Errno {
	e := unix.EpollEvent{Events: events, Fd: token}
	_, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(p.fd), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(&e)), 0, 0)
	return errno
}

// Look returns the number of events that are there now. It does not block and
// does not tell the scheduler.
func (p *Poll) Look() int {
	n, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])), uintptr(len(p.events)), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// Wait blocks until there are events or the time is over; a negative time is
// forever. Where the kernel has no epoll_pwait2 (before Linux 5.11, or kept from
// us), the time is rounded up to whole milliseconds. It tells the scheduler, so
// that garbage collection and other goroutines go on meanwhile.
func (p *Poll) Wait(most time.Duration) int {
	if most < 0 || p.coarse {
		return p.waitCoarse(most)
	}
	n, errno := p.waitFine(most)
	if errno == unix.ENOSYS || errno == unix.EPERM {
		p.coarse = true
		return p.waitCoarse(most)
	}
	return n
}

// kernelTime is struct __kernel_timespec, which is the same on all machines.
type kernelTime struct{ sec, nsec int64 }

func (p *Poll) waitFine(most time.Duration) (int, syscall.Errno) {
	at := kernelTime{int64(most / time.Second), int64(most % time.Second)}
	n, _, errno := syscall.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])), uintptr(len(p.events)), uintptr(unsafe.Pointer(&at)), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

func (p *Poll) waitCoarse(most time.Duration) int {
	ms := -1
	if most >= 0 {
		ms = int((most + time.Millisecond - 1) / time.Millisecond)
	}
	n, _, errno := syscall.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])), uintptr(len(p.events)), uintptr(ms), 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// Event is the i-th of the events that Look or Wait counted.
func (p *Poll) Event(i int) (token int32, events uint32) {
	e := &p.events[i]
	return e.Fd, e.Events
}

// Close closes the instance.
func (p *Poll) Close() { Close(p.fd) }

// Eventfd wakes a loop from any goroutine: it is watched like a socket and becomes
// readable when signalled.
type Eventfd struct {
	FD     int32
	number uint64 // eventfds are counted, so that one knows which tables have it
}

// NewEventfd makes one, in the process's descriptor table.
func NewEventfd() (Eventfd, error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return Eventfd{}, fmt.Errorf("eventfd: %w", err)
	}
	return Eventfd{FD: int32(fd), number: tables.eventfds.Add(1)}, nil
}

// Signal makes the eventfd readable. On a thread whose own descriptor table does not
// have the eventfd, another thread does it.
func (e Eventfd) Signal() {
	if e.reaches() {
		e.signal()
		return
	}
	signalled := make(chan struct{})
	go func() {
		e.signal()
		close(signalled)
	}()
	<-signalled
}

func (e Eventfd) signal() {
	one := uint64(1)
	_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, uintptr(e.FD), uintptr(unsafe.Pointer(&one)), 8)
}

// Clear makes it unreadable again.
func (e Eventfd) Clear() {
	var n uint64
	_, _, _ = syscall.RawSyscall(unix.SYS_READ, uintptr(e.FD), uintptr(unsafe.Pointer(&n)), 8)
}

// Close closes it. Nobody may signal it any more.
func (e Eventfd) Close() { Close(e.FD) }

// Sleep pauses for about d, or less when a signal comes. It is for short times:
// those of package time end up to a millisecond late in a program that has nothing
// else to do.
func Sleep(d time.Duration) {
	ts := unix.NsecToTimespec(d.Nanoseconds())
	_ = unix.Nanosleep(&ts, nil)
}
