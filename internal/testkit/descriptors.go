package testkit

import (
	"sync"
	"testing"
)

// spareDescriptors is the number of descriptors that AcquireDescriptorsOrSkip leaves free for other tests.
const spareDescriptors = 256

// reserved is the number of descriptors that running tests have reserved. reservationEnded.L guards reserved.
var reserved int

var reservationEnded = sync.NewCond(new(sync.Mutex))

// AcquireDescriptorsOrSkip reserves n file descriptors until the end of the test. If other tests have reserved too many
// descriptors, it waits until enough of these tests have ended. If n is too high for the process's limit, it skips the
// test. Call it once per test, before the test opens files or connections.
func AcquireDescriptorsOrSkip(t testing.TB, n int) {
	t.Helper()
	limit := descriptorLimit() - spareDescriptors
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
