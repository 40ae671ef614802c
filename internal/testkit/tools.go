package testkit

import "testing"

// Must returns a function that returns v and fails the test at once if err is not nil. It takes the results of a call:
//
//	file := testkit.Must(os.Open(name))(t)
func Must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		RequireNoError(t, err)
		return v
	}
}
