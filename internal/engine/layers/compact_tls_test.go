package layers

import (
	"testing"
	"unsafe"
)

// Each idle TLS connection has a compactTLSLayer. Go allocates 128 bytes for up to 128, and 144 for more.
func TestCompactTLSLayerSize(t *testing.T) {
	if got := unsafe.Sizeof(compactTLSLayer{}); got > 128 {
		t.Errorf("a compactTLSLayer has %d bytes, want at most 128", got)
	}
}
