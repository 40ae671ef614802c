package testkit

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestWaitGoroutinesEnd checks that a goroutine is reported if it is not ignored and does not end in time.
func TestWaitGoroutinesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // its clock makes the wait immediate
		before := GoroutineIDs()
		release := make(chan struct{})
		go func() { <-release }()
		ExpectNoError(t, WaitGoroutinesEnd(GoroutineIDs()))
		err := WaitGoroutinesEnd(before)
		if err == nil || !strings.Contains(err.Error(), "goroutines still running: 1") || !strings.Contains(err.Error(), "TestWaitGoroutinesEnd") {
			t.Errorf("got %v, want the stack of the goroutine", err)
		}
		time.AfterFunc(leakTimeout/2, func() { close(release) })
		ExpectNoError(t, WaitGoroutinesEnd(before))
	})
}
