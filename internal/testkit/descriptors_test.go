package testkit

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
)

// Skipf notes why a test is skipped, and ends it.
func (r *fakeTB) Skipf(format string, args ...any) {
	r.message = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *fakeTB) Cleanup(f func()) { r.cleanup = f }

// A test that needs more descriptors than there are left waits for another's end; one that needs
// more than the limit is skipped.
func TestDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 100 + spareDescriptors
		first, second := &fakeTB{TB: t}, &fakeTB{TB: t}
		reserveUnderLimit(first, 60, limit)
		has := false
		go func() {
			reserveUnderLimit(second, 41, limit)
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
		go func() { reserveUnderLimit(large, 101, limit) }()
		synctest.Wait()
		if want := "needs 165 descriptors: ulimit -n is 164"; large.message != want {
			t.Errorf("it says %q, want %q", large.message, want)
		}
	})
}
