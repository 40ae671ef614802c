package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// Sides are run for a moment each, and the report says what became of the jobs.
func TestBenchOverload(t *testing.T) {
	got := invoke(t, "bench", "overload", "--rounds", "1", "--duration", "100ms", "--warmup", "50ms", "--queue", "64",
		"--only", "^cpu-(1x|10x)/(naive|channel|ours)$", "--out", filepath.Join(t.TempDir(), "r"))
	if got.code != 0 {
		t.Fatalf("bench overload: exit code %d, stderr %s\n%s", got.code, got.stderr, got.stdout)
	}
	for _, word := range []string{
		"cpu: goodput at 10x at least 95 % of that at 1x: ", "  naive  ", "  channel  ", "  ours  ", "go build -C peers",
		"memory 2.15 GB, deadline 200ms,",
	} {
		if !strings.Contains(got.stdout, word) {
			t.Errorf("the report does not say %q:\n%s", word, got.stdout)
		}
	}
	for _, wrong := range []string{"FAILED:", "books:", "watchdog:"} {
		if strings.Contains(got.stdout, wrong) {
			t.Errorf("the report says %q:\n%s", wrong, got.stdout)
		}
	}
}

// A side that joins by its command line is run as the others are, and one that fails
// makes the command fail.
func TestBenchOverloadSubject(t *testing.T) {
	got := invoke(t, "bench", "overload", "--rounds", "1", "--duration", "100ms", "--warmup", "50ms", "--queue", "64", "--only", "^cpu-1x/(mine|broken)$", "--out", filepath.Join(t.TempDir(), "r"),
		"--subject", "mine={self} offer --pool channel", "--subject", "broken={self} offer --pool none")
	if got.code != 1 || !strings.Contains(got.stderr, "1 of 2 runs failed") {
		t.Errorf("exit code %d, stderr %q, want that a run has failed", got.code, got.stderr)
	}
	for _, word := range []string{"  mine  ", `broken, round 1: FAILED: the side ended: exit status 2: myriad: --pool is "none"`} {
		if !strings.Contains(got.stdout, word) {
			t.Errorf("the report does not say %q:\n%s", word, got.stdout)
		}
	}
}

func TestBenchOverloadWrongUse(t *testing.T) {
	for _, c := range []struct{ flag, value, says string }{
		{"--rounds", "0", "--rounds is 0"},
		{"--duration", "0", "--duration is 0s"},
		{"--memory", "1000", "a memory of 1000 bytes; expected at least"},
		{"--deadline", "-1s", "a deadline of -1s; expected 1ms to"},
		{"--queue", "-1", "a queue of -1; expected 1 to"},
		{"--only", "(", "--only is \"(\""},
		{"--only", "cpu-10x/none", "matches no run; expected to match a WORKLOAD/SUBJECT such as \"published-unloaded/naive\""},
		{"--peers", "/no/such/file", "go build -C peers"},
		{"--subject", "mine", "--subject: subject \"mine\" has no name"},
		{"--subject", "ours=x", "two subjects are named \"ours\""},
		{"--with", "networks", "\"networks\" matches no workload and no subject; expected to match some of those that are optional: ants, "},
		{"--with", "ants", "subject ants: {peers} in its command stands for nothing; expected \"bench overload --peers FILE\""},
		{"--only", "cpu-1x/ants", "matches only what is optional; expected that to be asked for, as by --with"},
		{"--subject", "mine=x {port}", "an address in its command; expected none, where jobs are offered"},
		{"--out", "r.json", "expected a directory"},
	} {
		if got := invoke(t, "bench", "overload", c.flag, c.value); got.code != 2 || !strings.Contains(got.stderr, c.says) {
			t.Errorf("%s %s: exit code %d, stderr %q, want 2 and %q", c.flag, c.value, got.code, got.stderr, c.says)
		}
	}
	got := invoke(t, "bench", "overload", "--help")
	for _, word := range []string{"It takes about ", "--with ours", "SHAPE-LOAD/SIDE"} {
		if got.code != 0 || !strings.Contains(got.stdout, word) {
			t.Errorf("--help: exit code %d, does not say %q:\n%s", got.code, word, got.stdout)
		}
	}
}
