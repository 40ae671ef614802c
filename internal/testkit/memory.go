package testkit

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// LimitMemory sets Go's memory limit to maxBytes until the test ends. A call of restoreAndFill restores the previous
// limit earlier, and allocates maxBytes that stay live, so that the live heap exceeds maxBytes.
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

// LiveHeapBytes returns the size of the heap after garbage collections that include finalizers.
func LiveHeapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
