package testkit

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// recorder is a test whose failure is looked at.
type recorder struct {
	testing.TB
	said    string
	cleanup func()
}

func (r *recorder) Helper() {}
func (r *recorder) Fatalf(format string, args ...any) {
	r.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		WaitFor(t, "a second passes", func() bool { return time.Since(begun) >= time.Second })
		if got := Receive(t, time.After(time.Second), "a time"); got.Sub(begun) != 2*time.Second {
			t.Errorf("received %v after the begin", got.Sub(begun))
		}
		for _, wait := range []func(r *recorder){
			func(r *recorder) { WaitFor(r, "never", func() bool { return false }) },
			func(r *recorder) { Receive(r, make(chan int), "never") },
		} {
			r := &recorder{TB: t}
			done := make(chan struct{})
			go func() { defer close(done); wait(r) }()
			if <-done; r.said != "waited 2m0s: never" {
				t.Errorf("it says %q", r.said)
			}
		}
	})
}
