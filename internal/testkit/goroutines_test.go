package testkit

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestWaitGoroutinesEnd(t *testing.T) {
	release := make(chan struct{})
	started := make(chan struct{})
	before := GoroutineIDs()
	go func() {
		close(started)
		<-release
	}()
	<-started
	if err := WaitGoroutinesEnd(GoroutineIDs()); err != nil {
		t.Errorf("a goroutine that is ignored is reported: %v", err)
	}
	time.AfterFunc(50*time.Millisecond, func() { close(release) })
	if err := WaitGoroutinesEnd(before); err != nil {
		t.Errorf("a goroutine that ends during the wait is reported: %v", err)
	}
}

func TestWaitGoroutinesEndReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // its clock makes the wait immediate
		before := GoroutineIDs()
		release := make(chan struct{})
		go func() { <-release }()
		err := WaitGoroutinesEnd(before)
		close(release)
		if err == nil || !strings.Contains(err.Error(), "goroutines still running: 1") || !strings.Contains(err.Error(), "TestWaitGoroutinesEndReports") {
			t.Errorf("got %v, want the stack of the goroutine", err)
		}
	})
}
