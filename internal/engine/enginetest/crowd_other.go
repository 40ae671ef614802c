//go:build !linux

package enginetest

import (
	"net"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// DialCrowd opens n connections and holds them until the test's cleanup.
func DialCrowd(t testing.TB, addr string, n int) {
	t.Helper()
	for range n {
		c, err := net.Dial("tcp", addr)
		testkit.RequireNoError(t, err)
		t.Cleanup(func() { c.Close() })
	}
}
