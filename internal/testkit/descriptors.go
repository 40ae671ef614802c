package testkit

import (
	"sync"
	"testing"
)

// spareDescriptors is the number of descriptors that remain free for tests that do not call ReserveDescriptors.
const spareDescriptors = 256

// reserved is the number of descriptors that running tests have reserved. The lock of reservationEnded guards it.
var reserved int

// reservationEnded wakes the tests that wait for descriptors. It is signalled when a test with a reservation ends.
var reservationEnded = sync.NewCond(new(sync.Mutex))

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
	reservationEnded.L.Lock()
	defer reservationEnded.L.Unlock()
	for reserved+n > limit {
		reservationEnded.Wait()
	}
	reserved += n
	t.Cleanup(func() {
		reservationEnded.L.Lock()
		defer reservationEnded.L.Unlock()
		reserved -= n
		reservationEnded.Broadcast()
	})
}
