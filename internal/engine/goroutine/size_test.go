package goroutine

import (
	"testing"
	"unsafe"
)

// A conn fits the allocator's class of 192 bytes; the next is 208.
func TestConnSize(t *testing.T) {
	if got := unsafe.Sizeof(conn{}); got > 192 {
		t.Errorf("a connection's driver entry is %d bytes, want at most 192", got)
	}
}
