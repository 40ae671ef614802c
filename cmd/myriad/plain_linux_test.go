package main

import "testing"

// TestPlainPrefork has the command start itself.
func TestPlainPrefork(t *testing.T) {
	s := startServer(t, "plain", "--app", "echo", "--design", "prefork")
	if got := invoke(t, "load", "-c", "50", "--messages", "3", s.addr); got.code != 0 {
		t.Errorf("load against prefork: exit code %d, stderr %q", got.code, got.stderr)
	}
}
