//go:build !linux

package enginetest

import (
	"net"
	"testing"
)

// DialCrowd opens n connections and holds them until the test's cleanup.
func DialCrowd(t testing.TB, addr string, n int) {
	t.Helper()
	for range n {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
}
