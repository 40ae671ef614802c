package uring

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/testkit"
)

func countResidentPages(t *testing.T, memory []byte) (n int) {
	t.Helper()
	pages := make([]byte, len(memory)/unix.Getpagesize())
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&memory[0])), uintptr(len(memory)), uintptr(unsafe.Pointer(&pages[0]))); errno != 0 {
		t.Fatal(errno)
	}
	for _, p := range pages {
		n += int(p & 1)
	}
	return n
}

// The memory of used buffers is released once.
func TestReleasePages(t *testing.T) {
	memory, err := unix.Mmap(-1, 0, maxBuffers*bufferSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	testkit.RequireNoError(t, err)
	defer unix.Munmap(memory)
	p := &bufferRing{memory: memory}
	copy(p.receivedBytes(cqe{res: 5, flags: 3 << bufferBits}), "hello")
	if n := countResidentPages(t, memory); n == 0 {
		t.Fatal("no page is there after a byte was written")
	}
	p.returnPagesToOS()
	if n := countResidentPages(t, memory); n != 0 || p.used {
		t.Errorf("%d pages are there after the release", n)
	}
	memory[0] = 1 // nothing was used, so there is nothing to release
	if p.returnPagesToOS(); countResidentPages(t, memory) == 0 {
		t.Error("released again though nothing was used")
	}
}
