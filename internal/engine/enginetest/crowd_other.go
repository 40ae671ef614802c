//go:build !linux

package enginetest

import (
	"net"
	"testing"
)

// Crowd opens n connections to an address and holds them until the test's cleanup.
func Crowd(t testing.TB, addr string, n int) {
	t.Helper()
	for range n {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
}
