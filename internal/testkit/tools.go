package testkit

import (
	"strings"
	"testing"
)

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

// ExpectError fails the test if err is nil or the text of err does not contain wantSubstring. The message begins with
// name, which is usually the name of a test case.
func ExpectError(t testing.TB, name any, err error, wantSubstring string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), wantSubstring) {
		t.Errorf("%v: got error %v, want one with %q", name, err, wantSubstring)
	}
}
