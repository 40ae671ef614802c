package sock

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Bell wakes a loop from any goroutine: it is watched like a socket and becomes
// readable when rung.
type Bell struct {
	FD     int32
	number uint64 // bells are counted, so that one knows which tables have it
}

// NewBell makes one, in the process's descriptor table.
func NewBell() (Bell, error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return Bell{}, fmt.Errorf("eventfd: %w", err)
	}
	return Bell{FD: int32(fd), number: tables.bells.Add(1)}, nil
}

// Ring makes the bell readable. On a thread whose own descriptor table does not
// have the bell, another thread rings it.
func (b Bell) Ring() {
	if b.reaches() {
		b.ring()
		return
	}
	rung := make(chan struct{})
	go func() {
		b.ring()
		close(rung)
	}()
	<-rung
}

func (b Bell) ring() {
	one := uint64(1)
	_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, uintptr(b.FD), uintptr(unsafe.Pointer(&one)), 8)
}

// Hush makes it unreadable again.
func (b Bell) Hush() {
	var n uint64
	_, _, _ = syscall.RawSyscall(unix.SYS_READ, uintptr(b.FD), uintptr(unsafe.Pointer(&n)), 8)
}

// Close closes it. Nobody may ring it any more.
func (b Bell) Close() { Close(b.FD) }
