// Package testkit contains helpers for tests: waiting for conditions, clients, child processes, checks for leaks.
package testkit

import (
	"testing"
	"time"
)

// Timeout is the time for which a test waits for a condition before it fails.
const Timeout = 2 * time.Minute

// WaitFor waits until condition returns true. After Timeout, it fails the test; failure is the message. Call it on the
// test's goroutine.
func WaitFor(t testing.TB, failure string, condition func() bool) {
	t.Helper()
	WaitForFunc(t, condition, func() string { return failure })
}

// WaitForFunc is like WaitFor, but obtains the message by calling failure, which happens only if the test fails.
func WaitForFunc(t testing.TB, condition func() bool, failure func() string) {
	t.Helper()
	for end := time.Now().Add(Timeout); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v: %s", Timeout, failure())
		}
	}
}

// Receive receives a value from ch. After Timeout it fails the test; failure is the message.
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

// RequireNoError fails the test at once if err is not nil.
func RequireNoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ExpectNoError fails the test if err is not nil. It may be called on any goroutine.
func ExpectNoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
