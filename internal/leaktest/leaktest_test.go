package leaktest

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestCheck(t *testing.T) {
	release := make(chan struct{})
	started := make(chan struct{})
	before := Running()
	go func() {
		close(started)
		<-release
	}()
	<-started
	if err := Check(Running()); err != nil {
		t.Errorf("a goroutine that is ignored is reported: %v", err)
	}
	time.AfterFunc(50*time.Millisecond, func() { close(release) })
	if err := Check(before); err != nil {
		t.Errorf("a goroutine that ends during the wait is reported: %v", err)
	}
}

func TestCheckReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // its clock makes the wait immediate
		before := Running()
		release := make(chan struct{})
		go func() { <-release }()
		err := Check(before)
		close(release)
		if err == nil || !strings.Contains(err.Error(), "goroutines still running: 1") || !strings.Contains(err.Error(), "TestCheckReports") {
			t.Errorf("got %v, want the stack of the goroutine", err)
		}
	})
}
