// Package await has tests wait for conditions instead of for a time. It is for tests
// alone.
package await

import (
	"testing"
	"time"
)

// Patience is how long a test waits for what is to come before it fails: so long
// that only a fault exceeds it, on a busy machine too.
const Patience = 2 * time.Minute

// True waits until a condition holds, and fails the test with what was expected if
// it does not within Patience. It is called on the test's goroutine.
func True(t testing.TB, what string, ok func() bool) {
	t.Helper()
	TrueOr(t, ok, func() string { return what })
}

// TrueOr is True with a text that is made when the test fails.
func TrueOr(t testing.TB, ok func() bool, what func() string) {
	t.Helper()
	for end := time.Now().Add(Patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v: %s", Patience, what())
		}
	}
}

// Receive waits for a value.
func Receive[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case v := <-ch:
		return v
	case <-timer.C:
		t.Fatalf("waited %v: %s", Patience, what)
		panic("not reached")
	}
}
