package testkit

import (
	"fmt"
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
		if text := fmt.Sprint(err); !strings.Contains(text, "running: 1") || !strings.Contains(text, "TestWaitGoroutinesEnd") {
			t.Errorf("got %v, want the stack of the goroutine", err)
		}
		time.AfterFunc(leakTimeout/2, func() { close(release) })
		ExpectNoError(t, WaitGoroutinesEnd(before))
	})
}
