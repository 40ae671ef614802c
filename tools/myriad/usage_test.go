package main

import (
	"os"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// TestWrongUse has the wrong command lines of testdata/usage.txt end with 2 and say what was expected. For a flag that
// is none it is the one that was meant: the nearest, or the one that does what a short flag of wrk, hey or ab does.
func TestWrongUse(t *testing.T) {
	table, err := os.ReadFile("testdata/usage.txt")
	testkit.RequireNoError(t, err)
	dir := t.TempDir()
	x := dir + "/x"
	testkit.RequireNoError(t, os.WriteFile(x, []byte("nothing\n"), 0o600))
	fill := strings.NewReplacer("{x}", x, "{no}", dir+"/none/none", "{d}", t.TempDir(), "{t}", "127.0.0.1:1")
	for text := range strings.Lines(fill.Replace(string(table))) {
		line, says, found := strings.Cut(strings.TrimSpace(text), " = ")
		if !found {
			continue
		}
		got := invokeLine(t, line)
		got.checkOutcome(t, "myriad "+line, 2, says)
		if !strings.HasPrefix(got.stderr, "myriad: ") || strings.Contains(got.output(), "report in ") {
			t.Errorf("myriad %s: it says %s", line, got.output())
		}
	}
	many := invokeCommand(t, append([]string{"report"}, make([]string, maxReportFiles+1)...)...)
	many.checkOutcome(t, "too many files", 2, "65 files are given; expected at most 64")
}

// What fails without being called wrongly ends with 1.
func TestFailures(t *testing.T) {
	s := serveLine(t, "serve --app lines")
	for line, says := range map[string]string{
		"load -c 1 127.0.0.1:1":                                "connection refused",
		"hold -n 1 127.0.0.1:1":                                "connection refused",
		"load -c 1 http://127.0.0.1:1/":                        "connection refused",
		"serve --addr systemd":                                 "LISTEN_FDS",
		"serve --addr " + s.addr:                               "stop the program, or choose another address with --addr",
		"load -c 1 --messages 1 --expect answered>1 " + s.addr: "1 of 1 expectations were not met",
	} {
		invokeLine(t, line).checkOutcome(t, "myriad "+line, 1, says)
	}
}

func TestHelp(t *testing.T) {
	for line, says := range map[string][]string{
		"--help":           {"agent", "bench", "doctor", "offer", "park", "serve"},
		"agent --help":     {"Examples:", "\nCoordinator:\n", "--nats URL", "--secret FILE", "\nWork:\n", "--allow ADDRESS"},
		"hub --help-all":   {"--max-message", "(default 1048576)", "--write-timeout", "(default 1m0s)"},
		"serve --help-all": {"Applications:\n  echo", "--model"},
		"help bench":       {"bench list", "--scale"},
		"--version":        {"go1."},
		"version":          {"go1."},
		"bench list":       {"quick            2 minutes"},
		"bench show idle":  {`name = "idle"`},
		"load --help-all":  {"Usage:\n  myriad load", "\nConnections:\n", "\ntcpkali:\n", "--ssl for --tls"},
	} {
		invokeLine(t, line).checkOutcome(t, "myriad "+line, 0, says...)
	}
	for name := range commandHelp {
		help := invokeCommand(t, name, "--help").output()
		if lines := strings.Count(help, "\n"); !strings.HasPrefix(help, "Examples:\n  ") || lines > 40 {
			t.Errorf("myriad %s --help has %d lines; want at most 40, with examples first:\n%s", name, lines, help)
		}
	}
}
