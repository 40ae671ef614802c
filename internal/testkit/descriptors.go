package testkit

import (
	"sync"
	"testing"
)

// spareDescriptors is the number of descriptors that remain free for tests that do not call ReserveDescriptors.
const spareDescriptors = 256

var reserved int

// released is signalled when a test releases descriptors. Its lock guards the variable reserved.
var released = sync.NewCond(new(sync.Mutex))

// ReserveDescriptors reserves n descriptors until the test's cleanup. It waits while other tests have reserved too many
// for the process's limit (ulimit -n), and skips the test if n exceeds the limit. A test must call it only once, before
// opening anything.
func ReserveDescriptors(t testing.TB, n int) {
	t.Helper()
	waitAndReserveOrSkip(t, n, descriptorLimit())
}

func waitAndReserveOrSkip(t testing.TB, n, limit int) {
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
