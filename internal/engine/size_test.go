package engine

import (
	"testing"
	"unsafe"
)

func TestConnSize(t *testing.T) {
	if got := unsafe.Sizeof(Conn{}); got > 104 {
		t.Errorf("a connection's slab entry is %d bytes, want at most 104", got)
	}
}
