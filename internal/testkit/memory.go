package testkit

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// LimitMemory sets Go's memory limit to maxBytes until the test ends.
//
// The function restoreAndFill can be called during the test. It restores the previous limit and then allocates maxBytes
// bytes, which stay live until the test ends. The live heap is then larger than maxBytes.
func LimitMemory(t testing.TB, maxBytes int64) (restoreAndFill func()) {
	before := debug.SetMemoryLimit(maxBytes)
	var ballast []byte
	t.Cleanup(func() {
		debug.SetMemoryLimit(before)
		runtime.KeepAlive(ballast)
	})
	return func() {
		debug.SetMemoryLimit(before)
		ballast = make([]byte, maxBytes)
		runtime.GC()
	}
}

// LiveHeapBytes returns the size of the live heap in bytes. It first runs the garbage collector twice, so that objects
// with finalizers are freed, too.
func LiveHeapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
