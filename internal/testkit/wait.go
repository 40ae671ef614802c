// Package testkit contains helpers for tests: waiting for conditions, clients, child processes, checks for leaks.
package testkit

import (
	"testing"
	"time"
)

// Timeout is the time for which a test waits for a condition before it fails. It is long enough that only a fault
// exceeds it, even on a busy machine.
const Timeout = 2 * time.Minute

// WaitFor waits until ok is true. After Timeout the test fails with the message what. Call it on the test's goroutine.
func WaitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	WaitForFunc(t, ok, func() string { return what })
}

// WaitForFunc is like WaitFor. If the test fails, it calls the function what to get the message.
func WaitForFunc(t testing.TB, ok func() bool, what func() string) {
	t.Helper()
	for end := time.Now().Add(Timeout); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v: %s", Timeout, what())
		}
	}
}

// Receive receives a value from ch. After Timeout the test fails with the message what.
func Receive[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	timer := time.NewTimer(Timeout)
	defer timer.Stop()
	select {
	case v := <-ch:
		return v
	case <-timer.C:
		t.Fatalf("waited %v: %s", Timeout, what)
		panic("not reached")
	}
}
