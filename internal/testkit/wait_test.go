package testkit

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

type fakeTB struct {
	testing.TB
	message string
	cleanup func()
}

func (r *fakeTB) Helper() {}
func (r *fakeTB) Fatalf(format string, args ...any) {
	r.message = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestWaitFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		WaitFor(t, "a second passes", func() bool { return time.Since(begun) >= time.Second })
		if got := Receive(t, time.After(time.Second), "a time"); got.Sub(begun) != 2*time.Second {
			t.Errorf("received %v after the begin", got.Sub(begun))
		}
		for _, wait := range []func(r *fakeTB){
			func(r *fakeTB) { WaitFor(r, "never", func() bool { return false }) },
			func(r *fakeTB) { Receive(r, make(chan int), "never") },
		} {
			r := &fakeTB{TB: t}
			done := make(chan struct{})
			go func() { defer close(done); wait(r) }()
			if <-done; r.message != "waited 2m0s: never" {
				t.Errorf("it says %q", r.message)
			}
		}
	})
}
