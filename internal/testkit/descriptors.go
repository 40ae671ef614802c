package testkit

import (
	"sync"
	"testing"
)

// spareDescriptors remain for what a test binary opens that no test reserves.
const spareDescriptors = 64

// reserved is how many descriptors tests have reserved.
var reserved int

// released is signalled when a test returns what it has reserved. Its lock guards reserved.
var released = sync.NewCond(new(sync.Mutex))

// ReserveDescriptors reserves n descriptors for a test until its cleanup. It waits while other
// tests have reserved too many for the process's limit (ulimit -n), and skips a test that needs
// more than that. A test calls it once, before it opens anything.
func ReserveDescriptors(t testing.TB, n int) {
	t.Helper()
	reserveUnderLimit(t, n, descriptorLimit())
}

func reserveUnderLimit(t testing.TB, n, limit int) {
	t.Helper()
	limit -= spareDescriptors
	if n > limit {
		t.Skipf("needs %d descriptors: ulimit -n is %d", n+spareDescriptors, limit+spareDescriptors)
	}
	released.L.Lock()
	defer released.L.Unlock()
	for reserved+n > limit {
		released.Wait()
	}
	reserved += n
	t.Cleanup(func() {
		released.L.Lock()
		defer released.L.Unlock()
		reserved -= n
		released.Broadcast()
	})
}
