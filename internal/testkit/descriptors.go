package testkit

import (
	"sync"
	"testing"
)

// spareDescriptors is the number of descriptors that AcquireDescriptorsOrSkip leaves free for other tests.
const spareDescriptors = 256

// reserved is the number of descriptors that running tests have reserved, and reservers contains the names of these
// tests. reservationEnded.L guards both.
var (
	reserved  int
	reservers = map[string]bool{}
)

var reservationEnded = sync.NewCond(new(sync.Mutex))

// AcquireDescriptorsOrSkip reserves n file descriptors until the end of the test. If other tests have reserved too many
// descriptors, it waits until enough of these tests have ended. If n is too high for the process's limit, it skips the
// test. Call it once per test, before the test opens files or connections. A second call could wait forever, so it ends
// the test.
func AcquireDescriptorsOrSkip(t testing.TB, n int) {
	t.Helper()
	limit := descriptorLimit() - spareDescriptors
	if n > limit {
		t.Skipf("needs %d descriptors: ulimit -n is %d", n+spareDescriptors, limit+spareDescriptors)
	}
	reservationEnded.L.Lock()
	defer reservationEnded.L.Unlock()
	if reservers[t.Name()] {
		t.Fatal("the test has already reserved descriptors; reserve all of them in one call")
	}
	for reserved+n > limit {
		reservationEnded.Wait()
	}
	reserved += n
	reservers[t.Name()] = true
	t.Cleanup(func() {
		reservationEnded.L.Lock()
		defer reservationEnded.L.Unlock()
		reserved -= n
		delete(reservers, t.Name())
		reservationEnded.Broadcast()
	})
}
