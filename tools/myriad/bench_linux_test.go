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
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/sample"
)

// Each kind of phase runs, and the report has what it saw. A subject that joins by its command line is run as the
// others are, and one that fails makes the command fail.
func TestBench(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	got := invokeCommand(t, "bench", "testdata/phases.toml", "--scale", "small", "--out", out,
		"--subject", "yours:echo={self} plain --addr {addr} --app {app}")
	got.checkOutcome(t, "bench", 1, "\necho\n", "  net  ", "  goroutine  ", "  auto  ", "  yours  ", "ratio to net", "first to last quarter",
		"report in "+out, "held has 1,500 connections instead of 2,000 (scale small).", `broken, round 1: FAILED: `, `"none"`, "1 of ")
	for _, wrong := range []string{"mismatch", "NOT MET"} {
		if strings.Contains(got.stdout, wrong) {
			t.Errorf("the report says %q:\n%s", wrong, got.stdout)
		}
	}
	report := readReport(t, out).Reports[0]
	for i := range report.Runs {
		r := &report.Runs[i]
		switch r.Workload {
		case "held":
			if calls := r.LastLoadResult().Verifications; len(calls) != 2 || calls[0].InFlight != 100 || calls[1].Checked != 1500 {
				t.Errorf("verifications %+v, want two of 1,500 connections", calls)
			}
			processes := max(runtime.NumCPU(), 2) + 1 // more where each may open few descriptors
			for _, phase := range r.Phases[:6] {
				s := r.FindSample(phase.Name)
				if s == nil || s.Counts.Open != 1500 || s.Server.Processes < processes || s.Load.Processes != 1 || s.Server.Anonymous == 0 {
					t.Errorf("phase %s: got %+v, want 1,500 connections, and what both sides take", phase.Name, s)
				}
			}
		case "idle":
			idle := r.FindSample("idle")
			if r.Subject == "net" && (idle == nil || idle.Counts == nil || idle.Counts.Open != 100) {
				t.Errorf("idle: got %+v, want 100 connections by the server's count", idle)
			}
		case "pubsub":
			_, memory := r.Figures["bytes-subscribed"]
			if r.Figures["deliveries"] == 0 || r.Figures["delivery-cpu"] == 0 || !memory || r.HasCaveat("unanswered") || r.HasCaveat("count") || r.HasCaveat("lost") {
				t.Errorf("pubsub: %v, %+v", r.Figures, r.Caveats)
			}
		}
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
		tmp := t.TempDir()
		cmd := newCommandProcess(t, append([]string{"bench", "--out", filepath.Join(t.TempDir(), "out")}, args...)...)
		cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
		b := testkit.Start(t, cmd)
		descendants := func() (pids []int) { // of all processes those with its directory
			all, err := filepath.Glob("/proc/[0-9]*/environ")
			failOnError(t, err)
			for _, path := range all {
				env, _ := os.ReadFile(path) // none when it has ended
				if slices.Contains(strings.Split(string(env), "\x00"), "TMPDIR="+tmp) {
					pid, err := strconv.Atoi(strings.Split(path, "/")[2])
					failOnError(t, err)
					pids = append(pids, pid)
				}
			}
			return pids
		}
		testkit.WaitFor(t, word+" is at work", func() bool {
			return slices.ContainsFunc(descendants(), func(pid int) bool {
				line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // none when it has ended
				taken, err := sample.TakeSample(sample.CPU, pid)
				return bytes.Contains(line, []byte("\x00"+word+"\x00")) && err == nil && taken.Processes[0].CPU().Milliseconds() >= 50
			})
		})
		b.Signal(os.Kill)
		b.ExitCode()
		testkit.WaitFor(t, "no process is left", func() bool { return len(descendants()) == 0 })
		if files, err := os.ReadDir(tmp); err != nil || len(files) > 0 {
			t.Errorf("temporary files are left: %v, %v", files, err)
		}
	}
}
