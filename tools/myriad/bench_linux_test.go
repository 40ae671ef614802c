package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/sample"
)

// Each kind of phase runs, and the report has what it saw. Built-in scenarios run beside a
// file, with subjects of the user's own.
func TestBench(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	got := invokeCommand(t, "bench", "testdata/mine.toml", "--scale", "small", "--out", out)
	if got.code != 0 {
		t.Fatalf("exit code %d: %s", got.code, got.output())
	}
	for _, word := range []string{
		"\necho\n", "  net  ", "  goroutine  ", "  auto  ", "held has 1,500 connections instead of 2,000 (scale small).",
		"ratio to net", "first to last quarter", "report in " + out,
	} {
		if !strings.Contains(got.stdout, word) {
			t.Errorf("the report does not say %q:\n%s", word, got.stdout)
		}
	}
	for _, wrong := range []string{"FAILED", "mismatch", "NOT MET"} {
		if strings.Contains(got.stdout, wrong) {
			t.Errorf("the report says %q:\n%s", wrong, got.stdout)
		}
	}
	report := readReport(t, out).Reports[0]
	for i := range report.Runs {
		r := &report.Runs[i]
		switch {
		case r.Workload == "held":
			if calls := r.LastLoadResult().Verifications; len(calls) != 2 || calls[0].InFlight != 100 || calls[1].Checked != 1500 {
				t.Errorf("verifications %+v, want two of 1,500 connections", calls)
			}
			for _, phase := range r.Phases[:6] {
				if s := r.FindSample(phase.Name); s == nil || s.Counts.Open != 1500 || s.Server.Processes < max(runtime.NumCPU(), 2)+1 || // more where each may open few descriptors
					s.Load.Processes != 1 || s.Server.Anonymous == 0 {
					t.Errorf("phase %s: got %+v, want 1,500 connections, and what both sides take", phase.Name, s)
				}
			}
		case r.Workload == "idle":
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
	got := invokeCommand(t, "bench", "quick", "--rounds", "1", "--duration", "100ms", "--only", "^echo-100/(mine|broken)$", "--out", filepath.Join(t.TempDir(), "r"),
		"--subject", "mine={self} plain --addr {addr} --app {app}", "--subject", "broken={self} plain --addr {addr} --app none")
	if got.code != 1 || !strings.Contains(got.stderr, "1 of 2 runs failed") {
		t.Errorf("exit code %d, stderr %q, want that a run has failed", got.code, got.stderr)
	}
	for _, word := range []string{"  mine  ", `broken, round 1: FAILED: `, `"none"`} {
		if !strings.Contains(got.stdout, word) {
			t.Errorf("the report does not say %q:\n%s", word, got.stdout)
		}
	}
}

// Publish/subscribe is measured, and the memory that subscriptions take.
func TestBenchHub(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	out := filepath.Join(t.TempDir(), "r")
	got := invokeCommand(t, "bench", "hub", "--scale", "small", "-n", "200", "--rounds", "1", "--duration", "500ms", "--only", "^(own-topics|memory-one-topic)/hub$", "--out", out)
	if got.code != 0 {
		t.Fatalf("exit code %d: %s", got.code, got.output())
	}
	runs := readReport(t, out).Reports[0].Runs
	for _, r := range runs {
		_, memory := r.Figures["bytes-subscribed"]
		if r.Figures["deliveries"] == 0 || r.Figures["delivery-cpu"] == 0 || memory != (r.Workload == "memory-one-topic") || r.HasCaveat("unanswered") || r.HasCaveat("count") || r.HasCaveat("lost") {
			t.Errorf("%s/%s: %v, %+v", r.Workload, r.Subject, r.Figures, r.Caveats)
		}
	}
	if len(runs) != 2 {
		t.Errorf("%d runs, want two", len(runs))
	}
}

// benchProcess is a bench under way, whose temporary files are in a directory of its own.
type benchProcess struct {
	*testkit.Process
	out, tmp string
}

func startBench(t *testing.T, args ...string) *benchProcess {
	t.Helper()
	out, tmp := filepath.Join(t.TempDir(), "out"), t.TempDir()
	cmd := newCommandProcess(t, append(append([]string{"bench"}, args...), "--out", out)...)
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
	return &benchProcess{testkit.Start(t, cmd), out, tmp}
}

// descendantPIDs returns the processes that the bench has started, directly or indirectly.
func (b *benchProcess) descendantPIDs(t *testing.T) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	testkit.RequireNoError(t, err)
	for _, path := range all {
		env, _ := os.ReadFile(path) // none when it has ended
		if slices.Contains(strings.Split(string(env), "\x00"), "TMPDIR="+b.tmp) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			testkit.RequireNoError(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// isProcessBusy reports whether a process with word in its command line uses CPU.
func (b *benchProcess) isProcessBusy(t *testing.T, word string) bool {
	for _, pid := range b.descendantPIDs(t) {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // none when it has ended
		taken, err := sample.TakeSample(sample.CPU, pid)
		if bytes.Contains(line, []byte("\x00"+word+"\x00")) && err == nil && taken.Processes[0].CPU().Milliseconds() >= 50 {
			return true
		}
	}
	return false
}

// waitUntilGone waits until none of its processes is left.
func (b *benchProcess) waitUntilGone(t *testing.T) {
	t.Helper()
	testkit.WaitFor(t, "no process is left", func() bool { return len(b.descendantPIDs(t)) == 0 })
	if files, err := os.ReadDir(b.tmp); err != nil || len(files) > 0 {
		t.Errorf("temporary files are left: %v, %v", files, err)
	}
}

// What kills a bench leaves no process, and no file but in the report's directory.
func TestBenchKilled(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	for word, args := range map[string][]string{ // by what is in the command line of a process at work
		"serve": {"models", "--only", "^compute-100/prefork-2$", "--duration", "1h"},
		"hold":  {"million", "--only", "prefork", "-n", "1000"},
	} {
		b := startBench(t, args...)
		testkit.WaitFor(t, word+" is at work", func() bool { return b.isProcessBusy(t, word) })
		b.Signal(os.Kill)
		b.ExitCode()
		b.waitUntilGone(t)
	}
}

// A bench that is interrupted prints and writes the report of the runs that it has made, and fails.
func TestBenchInterrupted(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	b := startBench(t, "quick", "--rounds", "1", "--duration", "2s", "--connections-max", "500", "--only", "^echo-(100|1000)/net$")
	b.WaitForOutput("echo-1000: run 2 of 2")                         // the first has ended
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Interrupt} { // as timeout(1) sends two: they count as one
		b.Signal(sig)
	}
	if code := b.ExitCode(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	for _, word := range []string{"\necho-100\n", "  net  ", "Interrupted in run 2 of 2.", "report in " + b.out, "interrupted in run 2 of 2"} {
		if !strings.Contains(b.Output.String(), word) {
			t.Errorf("it does not say %q: %s", word, b.Output)
		}
	}
	if r := readReport(t, b.out).Reports[0]; len(r.Runs) != 1 || r.Runs[0].Workload != "echo-100" || !r.Runs[0].IsValid() {
		t.Errorf("the report has %+v, want the run that has ended", r.Runs)
	}
	b.waitUntilGone(t)
}
