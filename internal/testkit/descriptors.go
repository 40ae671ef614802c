package testkit

import (
	"sync"
	"testing"
)

// spareDescriptors is the number of descriptors that ReserveDescriptors leaves free for other tests.
const spareDescriptors = 256

// reserved is the number of descriptors that running tests have reserved. reservationEnded.L guards reserved.
var reserved int

var reservationEnded = sync.NewCond(new(sync.Mutex))

// ReserveDescriptors reserves n file descriptors until the end of the test. It waits until other tests have released
// enough, or skips the test if n exceeds the process's limit. Call it once per test, before any file or connection is
// open.
func ReserveDescriptors(t testing.TB, n int) {
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
