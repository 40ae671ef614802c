package testkit

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
)

// Skipf records the message and ends the test.
func (r *fakeTB) Skipf(format string, args ...any) {
	r.message = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *fakeTB) Cleanup(f func()) { r.cleanup = f }

// TestDescriptors checks that a test waits for descriptors that another one has reserved, and is skipped if
// it needs more than the limit.
func TestDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 100 + spareDescriptors
		first, second := &fakeTB{TB: t}, &fakeTB{TB: t}
		waitAndReserveOrSkip(first, 60, limit)
		has := false
		go func() {
			waitAndReserveOrSkip(second, 41, limit)
			has = true
		}()
		if synctest.Wait(); has {
			t.Error("41 descriptors were reserved where 60 of 100 already are")
		}
		first.cleanup()
		if synctest.Wait(); !has {
			t.Fatal("the second test waits for nothing")
		}
		second.cleanup()

		large := &fakeTB{TB: t}
		go func() { waitAndReserveOrSkip(large, 101, limit) }()
		synctest.Wait()
		if want := fmt.Sprintf("needs %d descriptors: ulimit -n is %d", 101+spareDescriptors, limit); large.message != want {
			t.Errorf("it says %q, want %q", large.message, want)
		}
	})
}
