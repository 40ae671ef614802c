// Package testkit contains helpers for tests: waiting for conditions, clients, child processes, checks for leaks.
package testkit

import (
	"testing"
	"time"
)

// Timeout is how long a test waits for a condition before the test fails.
const Timeout = 2 * time.Minute

// WaitFor waits until condition returns true. If condition is still false after Timeout, WaitFor fails the test with
// the message failure. Call it on the test's goroutine.
func WaitFor(t testing.TB, failure string, condition func() bool) {
	t.Helper()
	WaitForFunc(t, condition, func() string { return failure })
}

// WaitForFunc is like WaitFor, but the function failure returns the message. It is called only if the test fails.
func WaitForFunc(t testing.TB, condition func() bool, failure func() string) {
	t.Helper()
	for end := time.Now().Add(Timeout); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v: %s", Timeout, failure())
		}
	}
}

// Receive receives a value from ch. If there is none after Timeout, Receive fails the test with the message failure.
func Receive[T any](t testing.TB, ch <-chan T, failure string) T {
	t.Helper()
	timer := time.NewTimer(Timeout)
	defer timer.Stop()
	select {
	case v := <-ch:
		return v
	case <-timer.C:
		t.Fatalf("waited %v: %s", Timeout, failure)
		panic("not reached")
	}
}

// RequireNoError fails the test and stops it if err is not nil.
func RequireNoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ExpectNoError fails the test if err is not nil, but does not stop the test. It may be called on any goroutine.
func ExpectNoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
