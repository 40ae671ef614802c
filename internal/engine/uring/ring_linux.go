package uring

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Constants of <linux/io_uring.h> that golang.org/x/sys does not define.
const (
	setupCQSize       = 1 << 3
	setupClamp        = 1 << 4
	setupSubmitAll    = 1 << 7
	setupTaskrunFlag  = 1 << 9
	setupSingleIssuer = 1 << 12
	setupDeferTaskrun = 1 << 13
	setupNoSQArray    = 1 << 16

	enterGetEvents  = 1 << 0
	enterExtArg     = 1 << 3
	enterRegistered = 1 << 4

	registerRingFDs   = 20
	unregisterRingFDs = 21
	registerBufRing   = 22

	offSQRing = 0
	offSQEs   = 0x10000000

	opNop         = 0
	opPollAdd     = 6
	opAsyncCancel = 14
	opSend        = 26
	opRecv        = 27

	sqeBufferSelect = 1 << 5
	sqeSkipSuccess  = 1 << 6 // complete only on failure
	recvMultishot   = 1 << 1
	pollMultishot   = 1 << 0

	cqeBuffer  = 1 << 0 // the upper half of the flags is a buffer's number
	cqeMore    = 1 << 1 // more completions of the same request will follow
	cqeBufMore = 1 << 4 // the kernel will continue to fill the buffer
	bufferBits = 16

	bufRingIncremental = 1 << 1

	sqOverflow = 1 << 1 // the kernel keeps completions that did not fit
	sqTaskrun  = 1 << 2 // deferred work waits for an enter with enterGetEvents
)

type ringOffsets struct {
	head, tail, mask, entries, a, b, c, d uint32
	user                                  uint64
}

// setupParams is the kernel's struct io_uring_params.
type setupParams struct {
	sqEntries, cqEntries, flags, cpu, idle, features, wq uint32
	reserved                                             [3]uint32
	sq, cq                                               ringOffsets // sq.a is flags, and cq.b is cqes
}

// sqe is the kernel's struct io_uring_sqe, an entry of the submission queue.
type sqe struct {
	op, flags uint8
	ioprio    uint16
	fd        int32
	off, addr uint64
	len       uint32
	opFlags   uint32
	user      uint64
	group     uint16
	_         uint16
	file      uint32
	_         [2]uint64
}

// cqe is the kernel's struct io_uring_cqe, an entry of the completion queue.
type cqe struct {
	user  uint64
	res   int32
	flags uint32
}

// ring is an io_uring instance. Only the thread that created it may use it.
type ring struct {
	fd      uintptr // for enter: the ring's registered number if flags is set, or its descriptor
	flags   uintptr // for enter: enterRegistered if fd is a registered number
	file    int     // the descriptor
	queues  []byte
	entries []byte

	sqHead, sqTail, sqFlags, cqHead, cqTail *uint32
	sqMask, cqMask                          uint32
	sqes                                    []sqe
	cqes                                    []cqe
	tail, submitted                         uint32        // numbers of submissions filled and given to the kernel
	broken                                  syscall.Errno // why the ring can no longer be used; 0 if it works
	scratch                                 sqe           // returned by nextFreeSubmission when the ring is broken

	arg  waitArg
	time kernelTime
}

// kernelTime is the kernel's struct __kernel_timespec.
type kernelTime struct{ sec, nsec int64 }

// waitArg is the kernel's struct io_uring_getevents_arg.
type waitArg struct {
	sigmask       uint64
	size, minWait uint32
	ts            uint64
}

func newRing() (*ring, error) {
	p := setupParams{cqEntries: cqEntries}
	p.flags = setupCQSize | setupClamp | setupSubmitAll | setupTaskrunFlag | setupSingleIssuer | setupDeferTaskrun | setupNoSQArray
	var fd uintptr
	if errno := retryWhileNoMemory(func() (errno syscall.Errno) {
		fd, _, errno = syscall.Syscall(unix.SYS_IO_URING_SETUP, sqEntries, uintptr(unsafe.Pointer(&p)), 0)
		return errno
	}); errno != 0 {
		return nil, describeSetupError(errno)
	}
	r := &ring{file: int(fd), fd: fd}
	if err := r.mapQueueMemory(&p); err != nil {
		unix.Close(r.file)
		return nil, fmt.Errorf("io_uring: mapping the queues: %w", err)
	}
	r.registerRingFD()
	return r, nil
}

func describeSetupError(errno syscall.Errno) error {
	switch errno {
	case unix.ENOSYS:
		return fmt.Errorf("the kernel does not support io_uring, or a seccomp filter hides io_uring: %w", errno)
	case unix.EPERM:
		return fmt.Errorf("io_uring is forbidden by sysctl kernel.io_uring_disabled or by a seccomp filter: %w", errno)
	case unix.EINVAL:
		return fmt.Errorf("the kernel's io_uring is too old; expected Linux 6.6 or later: %w", errno)
	case unix.ENOMEM:
		return fmt.Errorf("%s: %w", lockedMemoryAdvice(), errno)
	}
	return fmt.Errorf("io_uring_setup: %w", errno)
}

func lockedMemoryAdvice() string {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil || limit.Cur == unix.RLIM_INFINITY {
		return "not enough memory for an io_uring"
	}
	return fmt.Sprintf("not enough memory for an io_uring, or the locked-memory limit is exceeded: ulimit -l %d is enough for %d loops "+
		"across all processes of a user; run fewer loops, raise the limit (LimitMEMLOCK), or use the model epoll",
		limit.Cur>>10, limit.Cur/uint64(LockedMemoryPerLoop(int64(unix.Getpagesize()))))
}

// Duration and interval of retries after ENOMEM.
const (
	noMemoryTimeout       = 250 * time.Millisecond
	noMemoryRetryInterval = 5 * time.Millisecond
)

func retryWhileNoMemory(call func() syscall.Errno) syscall.Errno {
	// The kernel frees the locked memory of a closed ring with a delay.
	for end := time.Now().Add(noMemoryTimeout); ; time.Sleep(noMemoryRetryInterval) {
		if errno := call(); errno != unix.ENOMEM || time.Now().After(end) {
			return errno
		}
	}
}

func (r *ring) mapQueueMemory(p *setupParams) (err error) {
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	size := int(p.cq.b) + int(p.cqEntries)*int(unsafe.Sizeof(cqe{}))
	if r.queues, err = unix.Mmap(r.file, offSQRing, size, prot, flags); err != nil {
		return err
	}
	size = int(p.sqEntries) * int(unsafe.Sizeof(sqe{}))
	if r.entries, err = unix.Mmap(r.file, offSQEs, size, prot, flags); err != nil {
		_ = unix.Munmap(r.queues)
		return err
	}
	at := func(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.queues[off])) }
	r.sqHead, r.sqTail, r.sqMask, r.sqFlags = at(p.sq.head), at(p.sq.tail), *at(p.sq.mask), at(p.sq.a)
	r.cqHead, r.cqTail, r.cqMask = at(p.cq.head), at(p.cq.tail), *at(p.cq.mask)
	r.sqes = unsafe.Slice((*sqe)(unsafe.Pointer(&r.entries[0])), p.sqEntries)
	r.cqes = unsafe.Slice((*cqe)(unsafe.Pointer(&r.queues[p.cq.b])), p.cqEntries)
	return nil
}

// fdRegistration is the kernel's struct io_uring_rsrc_update, for the ring's own descriptor.
type fdRegistration struct {
	offset, reserved uint32
	data             uint64
}

func (r *ring) registerRingFD() {
	up := fdRegistration{offset: ^uint32(0), data: uint64(r.file)}
	n, _, errno := syscall.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.file), registerRingFDs, uintptr(unsafe.Pointer(&up)), 1, 0, 0)
	if errno == 0 && n == 1 {
		r.fd, r.flags = uintptr(up.offset), enterRegistered
	}
}

// close frees the ring. The kernel cancels operations in progress.
func (r *ring) close() {
	if r.flags != 0 {
		// The thread outlives the ring. A registered descriptor would keep the ring alive.
		up := fdRegistration{offset: uint32(r.fd)}
		_, _, _ = syscall.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.file), unregisterRingFDs, uintptr(unsafe.Pointer(&up)), 1, 0, 0)
	}
	_ = unix.Munmap(r.entries)
	_ = unix.Munmap(r.queues)
	unix.Close(r.file)
}

// maxFullQueueRetries is the maximum number of retries while the submission queue is full.
const maxFullQueueRetries = 1 << 18 // about 0.1 s

func (r *ring) nextFreeSubmission() *sqe {
	for retries := 0; r.tail-atomic.LoadUint32(r.sqHead) > r.sqMask; retries++ {
		if r.enter(0, 0); r.broken == 0 && retries == maxFullQueueRetries {
			r.broken = unix.EBUSY
		}
		if r.broken != 0 {
			return &r.scratch
		}
	}
	s := &r.sqes[r.tail&r.sqMask]
	r.tail++
	*s = sqe{}
	return s
}

// enter passes queued submissions to the kernel and waits for minComplete completions, which may be 0.
func (r *ring) enter(flags uintptr, minComplete uintptr) {
	atomic.StoreUint32(r.sqTail, r.tail)
	n, _, errno := syscall.RawSyscall6(unix.SYS_IO_URING_ENTER, r.fd, uintptr(r.tail-r.submitted), minComplete, r.flags|flags, 0, 0)
	r.handleEnterResult(n, errno)
}

func (r *ring) handleEnterResult(submitted uintptr, errno syscall.Errno) {
	switch errno {
	case 0:
		r.submitted += uint32(submitted)
	case unix.EINTR, unix.EAGAIN, unix.EBUSY, unix.ETIME, unix.ENOMEM:
	default:
		r.broken = errno
	}
}

// enterAndWait passes queued submissions to the kernel and waits for a completion, for at most timeout. A negative
// timeout means no limit.
func (r *ring) enterAndWait(timeout time.Duration) {
	atomic.StoreUint32(r.sqTail, r.tail)
	r.arg = waitArg{}
	if timeout >= 0 {
		r.time = kernelTime{int64(timeout / time.Second), int64(timeout % time.Second)}
		r.arg.ts = uint64(uintptr(unsafe.Pointer(&r.time)))
	}
	// Not RawSyscall6: the Go scheduler must know that the thread blocks.
	n, _, errno := syscall.Syscall6(unix.SYS_IO_URING_ENTER, r.fd, uintptr(r.tail-r.submitted), 1,
		r.flags|enterGetEvents|enterExtArg, uintptr(unsafe.Pointer(&r.arg)), unsafe.Sizeof(r.arg))
	r.handleEnterResult(n, errno)
}

func (r *ring) completionCount() uint32 { return atomic.LoadUint32(r.cqTail) - *r.cqHead }

// hasDeferredWork reports whether the kernel has work that a call of enter with enterGetEvents would run.
func (r *ring) hasDeferredWork() bool {
	return atomic.LoadUint32(r.sqFlags)&(sqTaskrun|sqOverflow) != 0
}

// popCompletion removes the next completion from the queue. The queue must not be empty.
func (r *ring) popCompletion() cqe {
	head := *r.cqHead
	c := r.cqes[head&r.cqMask]
	atomic.StoreUint32(r.cqHead, head+1)
	return c
}
