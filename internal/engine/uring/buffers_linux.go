package uring

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Size in bytes and initial number of the buffers for received bytes.
const (
	bufferSize     = 64 << 10
	initialBuffers = 8
)

// bufferEntry is the kernel's struct io_uring_buf, an entry of a buffer ring. The field tail is used only in the first
// entry, where it is the tail of the whole ring.
type bufferEntry struct {
	addr uint64
	len  uint32
	id   uint16
	tail uint16
}

// bufferRing is a ring of buffers that the kernel fills with received bytes.
type bufferRing struct {
	ring        []byte
	memory      []byte
	consumed    [maxBuffers]int // number of bytes of each buffer that were released
	provided    int             // number of buffers in the ring
	tail        uint16
	incremental bool // the kernel appends many receives to one buffer (since Linux 6.12)
	used        bool // the memory was used since returnPagesToOS last released it
}

// bufferRegistration is the kernel's struct io_uring_buf_reg.
type bufferRegistration struct {
	addr         uint64
	entries      uint32
	group, flags uint16
	reserved     [3]uint64
}

func newBufferRing(r *ring) (*bufferRing, error) {
	p := &bufferRing{}
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANON
	var err error
	if p.ring, err = unix.Mmap(-1, 0, maxBuffers*int(unsafe.Sizeof(bufferEntry{})), prot, flags); err != nil {
		return nil, fmt.Errorf("io_uring: allocating the buffer ring: %w", err)
	}
	if p.memory, err = unix.Mmap(-1, 0, maxBuffers*bufferSize, prot, flags); err != nil {
		_ = unix.Munmap(p.ring)
		return nil, fmt.Errorf("io_uring: allocating buffers: %w", err)
	}
	if err := p.registerWith(r); err != nil {
		p.close()
		return nil, err
	}
	p.provideMoreBuffers()
	return p, nil
}

func (p *bufferRing) registerWith(r *ring) error {
	for _, flags := range []uint16{bufRingIncremental, 0} {
		reg := bufferRegistration{addr: uint64(uintptr(unsafe.Pointer(&p.ring[0]))), entries: maxBuffers, flags: flags}
		errno := retryWhileNoMemory(func() syscall.Errno {
			_, _, errno := syscall.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.file), registerBufRing, uintptr(unsafe.Pointer(&reg)), 1, 0, 0)
			return errno
		})
		switch {
		case errno == 0:
			p.incremental = flags != 0
			return nil
		case errno == unix.ENOMEM:
			return describeSetupError(errno)
		case errno != unix.EINVAL:
			return fmt.Errorf("io_uring: registering buffers: %w", errno)
		}
	}
	return fmt.Errorf("the kernel's io_uring is too old: it needs buffer rings (Linux 5.19): %w", unix.EINVAL)
}

// close frees the memory of the buffers. The io_uring that uses the buffers must be closed first.
func (p *bufferRing) close() {
	_ = unix.Munmap(p.ring)
	_ = unix.Munmap(p.memory)
}

// provideMoreBuffers doubles the number of buffers in the ring. The first call provides initialBuffers buffers. If the
// ring already contains maxBuffers buffers, provideMoreBuffers returns false.
func (p *bufferRing) provideMoreBuffers() (more bool) {
	more = p.provided < maxBuffers
	for limit := min(max(initialBuffers, 2*p.provided), maxBuffers); p.provided < limit; p.provided++ {
		p.addBuffer(uint16(p.provided))
	}
	p.publishTail()
	return more
}

func (p *bufferRing) addBuffer(id uint16) {
	p.consumed[id] = 0
	e := (*bufferEntry)(unsafe.Pointer(&p.ring[uintptr(p.tail%maxBuffers)*unsafe.Sizeof(bufferEntry{})]))
	e.addr = uint64(uintptr(unsafe.Pointer(&p.memory[int(id)*bufferSize])))
	e.len, e.id = bufferSize, id
	p.tail++
}

// publishTail makes the provided buffers visible to the kernel.
func (p *bufferRing) publishTail() {
	word := (*uint32)(unsafe.Pointer(&p.ring[unsafe.Offsetof(bufferEntry{}.id)]))
	atomic.StoreUint32(word, atomic.LoadUint32(word)&0xffff|uint32(p.tail)<<16)
}

func (p *bufferRing) receivedBytes(completion cqe) []byte {
	p.used = true
	id := int(completion.flags >> bufferBits)
	start := id*bufferSize + p.consumed[id]
	return p.memory[start : start+int(completion.res)]
}

func (p *bufferRing) completionFilledBuffer(completion cqe) bool {
	if p.incremental {
		return completion.flags&cqeBufMore == 0
	}
	return completion.res == bufferSize
}

// releaseReceived marks the received bytes of a completion as consumed. If the kernel will append further bytes to the
// same buffer, the kernel keeps the buffer. Otherwise, releaseReceived provides the buffer to the kernel again.
func (p *bufferRing) releaseReceived(completion cqe) {
	id := uint16(completion.flags >> bufferBits)
	if p.incremental && completion.flags&cqeBufMore != 0 {
		p.consumed[id] += int(completion.res)
		return
	}
	p.addBuffer(id)
	p.publishTail()
}

// returnPagesToOS returns the memory of all buffers to the operating system. The buffers stay usable and get memory
// again when they are used. No receive may be in progress, and all completions must have been handled.
func (p *bufferRing) returnPagesToOS() {
	if !p.used {
		return
	}
	p.used = false
	_ = unix.Madvise(p.memory, unix.MADV_DONTNEED) // cannot fail: the memory consists of whole pages
}
