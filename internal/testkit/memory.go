package testkit

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// LimitMemory sets Go's memory limit to maxBytes until the end of the test or a call of fill. Servers that start
// meanwhile use this limit. fill makes the live heap exceed the limit.
func LimitMemory(t testing.TB, maxBytes int64) (fill func()) {
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
