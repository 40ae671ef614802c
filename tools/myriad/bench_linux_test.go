package main

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// Each kind of phase runs, and the report has what it saw. Built-in scenarios run beside a
// file, with subjects of the user's own.
func TestBench(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	got := invokeCommand(t, "bench", "testdata/mine.toml", "--scale", "small", "--out", out)
	got.checkOutcome(t, "bench", 0, "\necho\n", "  net  ", "  goroutine  ", "  auto  ",
		"held has 1,500 connections instead of 2,000 (scale small).", "ratio to net", "first to last quarter", "report in "+out)
	if wrong := regexp.MustCompile("FAILED|mismatch|NOT MET").FindString(got.stdout); wrong != "" {
		t.Errorf("the report says %q:\n%s", wrong, got.stdout)
	}
	report := readReport(t, out).Reports[0]
	for i := range report.Runs {
		r := &report.Runs[i]
		switch r.Workload {
		case "held":
			if calls := r.LastLoadResult().Verifications; len(calls) != 2 || calls[0].InFlight != 100 || calls[1].Checked != 1500 {
				t.Errorf("verifications %+v, want two of 1,500 connections", calls)
			}
			for _, phase := range r.Phases[:6] {
				s := r.FindSample(phase.Name)
				if s == nil || s.Counts.Open != 1500 || s.Load.Processes != 1 || s.Server.Anonymous == 0 ||
					s.Server.Processes < max(runtime.NumCPU(), 2)+1 { // more where each may open few descriptors
					t.Errorf("phase %s: got %+v, want 1,500 connections, and what both sides take", phase.Name, s)
				}
			}
		case "idle":
			if idle := r.FindSample("idle"); idle == nil || idle.Counts == nil || idle.Counts.Open != 100 {
				t.Errorf("%s/%s: got %+v, want 100 connections by the server's count", r.Workload, r.Subject, idle)
			}
		}
	}
}

// A subject that joins by its command line is run as the others are, and one that fails
// makes the command fail.
func TestBenchSubjects(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	invokeCommand(t, "bench", "quick", "--rounds", "1", "--duration", "100ms", "--only", "^echo-100/(mine|broken)$",
		"--out", filepath.Join(t.TempDir(), "r"),
		"--subject", "mine={self} plain --addr {addr} --app {app}", "--subject", "broken={self} plain --addr {addr} --app none").
		checkOutcome(t, "bench", 1, "1 of 2 runs failed", "  mine  ", `broken, round 1: FAILED: `, `"none"`)
}

// Publish/subscribe is measured, and the memory that subscriptions take.
func TestBenchHub(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	out := filepath.Join(t.TempDir(), "r")
	line := "bench hub --scale small -n 200 --rounds 1 --duration 500ms --only ^(own-topics|memory-one-topic)/hub$ --out " + out
	invokeLine(t, line).checkOutcome(t, line, 0)
	runs := readReport(t, out).Reports[0].Runs
	for _, r := range runs {
		_, memory := r.Figures["bytes-subscribed"]
		if r.Figures["deliveries"] == 0 || r.Figures["delivery-cpu"] == 0 || memory != (r.Workload == "memory-one-topic") || len(runs) != 2 {
			t.Errorf("%s/%s of %d runs: %v", r.Workload, r.Subject, len(runs), r.Figures)
		}
		if r.HasCaveat("unanswered") || r.HasCaveat("count") || r.HasCaveat("lost") {
			t.Errorf("%s/%s: %+v", r.Workload, r.Subject, r.Caveats)
		}
	}
}

// startBench starts a bench whose temporary files, and those of its processes, are in the directory tmp.
func startBench(t *testing.T, args ...string) (b *testkit.Process, tmp string) {
	t.Helper()
	tmp = t.TempDir()
	cmd := newCommandProcess(t, append([]string{"bench"}, args...)...)
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
	return testkit.Start(t, cmd), tmp
}

// commandLinesWithTemp returns the command lines of the processes whose temporary files are in a directory.
func commandLinesWithTemp(t *testing.T, tmp string) (lines []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	testkit.RequireNoError(t, err)
	for _, path := range all {
		env, _ := os.ReadFile(path) // none when it has ended
		if slices.Contains(strings.Split(string(env), "\x00"), "TMPDIR="+tmp) {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
			lines = append(lines, string(line))
		}
	}
	return lines
}

// checkNothingLeft waits until no process of a bench is left, and wants no temporary file left.
func checkNothingLeft(t *testing.T, tmp string) {
	t.Helper()
	testkit.WaitFor(t, "no process is left", func() bool { return len(commandLinesWithTemp(t, tmp)) == 0 })
	if files, err := os.ReadDir(tmp); err != nil || len(files) > 0 {
		t.Errorf("temporary files are left: %v, %v", files, err)
	}
}

// What kills a bench leaves no process, and no file but in the report's directory.
func TestBenchKilled(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	for side, args := range map[string][]string{ // by the command of a process under way
		"\x00load\x00": {"models", "--only", "^compute-100/prefork-2$", "--duration", "1h"},
		"\x00hold\x00": {"million", "--only", "prefork", "-n", "1000"},
	} {
		b, tmp := startBench(t, append(args, "--out", filepath.Join(t.TempDir(), "out"))...)
		testkit.WaitFor(t, side+" is under way", func() bool {
			return strings.Contains(strings.Join(commandLinesWithTemp(t, tmp), "\n"), side)
		})
		b.Signal(os.Kill)
		b.WaitExitCode()
		checkNothingLeft(t, tmp)
	}
}

// A bench that is interrupted prints and writes the report of the runs that it has made, and fails.
func TestBenchInterrupted(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	b, tmp := startBench(t, "quick", "--rounds", "1", "--duration", "2s", "--connections-max", "500",
		"--only", "^echo-(100|1000)/net$", "--out", out)
	b.WaitForOutput("echo-1000: run 2 of 2")                         // the first has ended
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Interrupt} { // as timeout(1) sends two: they count as one
		b.Signal(sig)
	}
	outcome{b.WaitExitCode(), b.Output.String(), ""}.checkOutcome(t, "interrupted", 1,
		"\necho-100\n", "  net  ", "Interrupted in run 2 of 2.", "report in "+out, "interrupted in run 2 of 2")
	if r := readReport(t, out).Reports[0]; len(r.Runs) != 1 || r.Runs[0].Workload != "echo-100" || !r.Runs[0].IsValid() {
		t.Errorf("the report has %+v, want the run that has ended", r.Runs)
	}
	checkNothingLeft(t, tmp)
}
