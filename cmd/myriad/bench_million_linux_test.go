package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/internal/await"
	"github.com/myriad-go/myriad/internal/sample"
)

// millionModels are the servers of bench million that can run here, but for prefork.
func millionModels() []string { return myriad.Models()[1:] }

// Every server holds its connections, checks, heartbeats and a broadcast, and ends.
func TestBenchMillion(t *testing.T) {
	if len(millionModels()) == 0 {
		t.Skip("no model here has loops")
	}
	subjects := append(millionModels(), "prefork")
	got := invoke(t, "bench", "million", "-n", "2000", "--hold", "1s", "--heartbeat", "1s", "--keep-free", "1m",
		"--subjects", strings.Join(subjects, ","), "--out", "r")
	if got.code != 0 {
		t.Fatalf("exit code %d, stderr %s\n%s", got.code, got.stderr, got.stdout)
	}
	for _, subject := range subjects {
		for _, claim := range []string{
			"refuses none but for want of memory", "every connection answered with the right content, twice", "no heartbeat lost",
			"no broadcast lost, and none twice", "a clean end",
		} {
			if !strings.Contains(got.stdout, claim+": met: million/"+subject) {
				t.Errorf("%s: the report does not say that %q is met:\n%s", subject, claim, got.stdout)
			}
		}
	}
	for _, phase := range []string{"connect", "verify", "hold", "broadcast", "heartbeats", "verify again", "close"} {
		if !strings.Contains(got.stdout, "\n  "+phase+" ") || !strings.Contains(got.stderr, "prefork: "+phase+": ") {
			t.Errorf("no phase %q in the report, or while it went on:\n%s%s", phase, got.stdout, got.stderr)
		}
	}
}

// What the report says is in the file, and can be worked out from it.
func TestBenchMillionFile(t *testing.T) {
	if len(millionModels()) == 0 {
		t.Skip("no model here has loops")
	}
	dir := filepath.Join(t.TempDir(), "r")
	if got := invoke(t, "bench", "million", "-n", "300", "--hold", "500ms", "--heartbeat", "300ms", "--keep-free", "1m",
		"--only", "^million/epoll$", "--loops", "2", "--load-loops", "2", "--check-inflight", "10", "--out", dir); got.code != 0 {
		t.Fatalf("exit code %d, stderr %s\n%s", got.code, got.stderr, got.stdout)
	}
	set := readReport(t, dir)
	if len(set.Reports) != 1 || len(set.Reports[0].Runs) != 1 || len(set.Reports[0].Runs[0].Phases) != 7 {
		t.Fatalf("got %d reports, %+v, want a run of seven phases", len(set.Reports), set.Reports[0].Runs)
	}
	run := &set.Reports[0].Runs[0]
	for i := range run.Phases[:6] {
		s := run.Sample(run.Phases[i].Name)
		if s == nil || s.Counts.Open != 300 || s.Server.Processes != 1 || s.Load.Processes != 1 || s.Server.Anonymous == 0 || s.Slab == 0 {
			t.Errorf("phase %d, %s: got %+v, want 300 connections, and what both sides take", i, run.Phases[i].Name, s)
		}
	}
	if calls := run.Result().Verifications; len(calls) != 2 || calls[0].InFlight != 10 || calls[1].Checked != 300 {
		t.Errorf("verifications %+v, want two of 300 connections with 10 lines in flight", calls)
	}
	if !slices.Contains(run.Command, "--loops") {
		t.Errorf("%q, want loops", run.Command)
	}
}

// Ctrl-C ends both processes in every phase, and what there is is printed.
func TestBenchMillionInterrupted(t *testing.T) {
	if len(millionModels()) == 0 {
		t.Skip("no model here has loops")
	}
	for subject, phases := range map[string][]string{"epoll": {"", "connect", "verify", "hold", "broadcast", "heartbeats"}, "prefork": {"", "connect"}} {
		for i, after := range phases {
			cmd := command(t, "bench", "million", "-n", "500", "--hold", "600ms", "--heartbeat", "300ms", "--keep-free", "1m", "--subjects", subject, "--out", fmt.Sprintf("r-%s-%d", subject, i))
			out := &lockedBuffer{}
			cmd.Stdout, cmd.Stderr = out, out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			await.True(t, "the phase "+after+" is over", func() bool {
				return after == "" && strings.Contains(out.String(), "run 1 of 1") || after != "" && strings.Contains(out.String(), subject+": "+after+": ")
			})
			started := childrenOf(t, cmd.Process.Pid)
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // the exit code says what it returned
			text := out.String()
			if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(text, "interrupted in run 1 of 1") ||
				!strings.Contains(text, subject+", round 1: ") || after != "" && !strings.Contains(text, "\n  "+after+" ") {
				t.Errorf("%s, after %q: exit code %d, want 1 and what there was: %s", subject, after, code, text)
			}
			for _, pid := range started {
				if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
					t.Errorf("%s, after %q: process %d is there still: %v", subject, after, pid, err)
				}
			}
		}
	}
}

func TestBenchMillionWrongUse(t *testing.T) {
	for _, c := range []struct {
		flag, value, says string
		code              int
	}{
		{"-n", "0", `--connections is "0"; expected a whole number above 0`, 2},
		{"-n", "100m", "100000000 connections; expected 1 to 67108864", 2},
		{"--hold", "0s", `--hold is "0s"`, 2},
		{"--hold", "1ms", "hold for 1ms; expected 100ms to", 2},
		{"--heartbeat", "3m", "a heartbeat each 3m0s; expected 100ms to 2m0s", 2},
		{"--subjects", "net", `subject "net"; expected some of [epoll uring prefork]`, 2},
		{"--only", "(", `--only is "("`, 2},
		{"--only", "million/none", "matches no run; expected to match a WORKLOAD/SUBJECT such as \"million/epoll\"", 2},
		{"--rounds", "0", "--rounds is 0", 2},
		{"--loops", "2000", "--loops is 2000; expected 1 to 1024", 2},
		{"--load-loops", "-1", `--load-loops is "-1"`, 2},
		{"--check-inflight", "2m", "2000000 checks in flight; expected 1 to 1048576", 2},
		{"--keep-free", "much", `--keep-free is "much"`, 2},
		{"--out", "r.json", "expected a directory", 2},
	} {
		if got := invoke(t, "bench", "million", c.flag, c.value); got.code != c.code || !strings.Contains(got.stderr, c.says) {
			t.Errorf("%s %s: exit code %d, stderr %q, want %d and %q", c.flag, c.value, got.code, got.stderr, c.code, c.says)
		}
	}
	got := invoke(t, "bench", "million", "--help")
	for _, word := range []string{"It takes about ", "epoll, uring, prefork", "--keep-free", "says where it stopped"} {
		if got.code != 0 || !strings.Contains(got.stdout, word) {
			t.Errorf("--help: exit code %d, does not say %q:\n%s", got.code, word, got.stdout)
		}
	}
}

// Where memory runs low no more connections are opened, and the run goes on with those that
// there are; where it is as low as half of that, it ends.
func TestBenchMillionGuard(t *testing.T) {
	if len(millionModels()) == 0 {
		t.Skip("no model here has loops")
	}
	got := holdKeeping(t, 1.4)
	for _, want := range []string{"memory: stopped at ", "MB are to stay free", "holds as many connections as asked for: NOT MET: ", "twice: met: ", "no broadcast lost, and none twice: met: ", "a clean end: met"} {
		if got.code != 0 || !strings.Contains(got.stdout, want) {
			t.Errorf("exit code %d, it does not say %q:\n%s%s", got.code, want, got.stdout, got.stderr)
		}
	}
	got = holdKeeping(t, 4)
	if want := "FAILED: memory: only "; got.code != 1 || !strings.Contains(got.stdout, want) {
		t.Errorf("exit code %d, it does not say %q:\n%s%s", got.code, want, got.stdout, got.stderr)
	}
}

// holdKeeping is a bench that is to keep as many times of what memory is free. Where others
// took or gave back a fifth of it meanwhile, it is done again.
func holdKeeping(t *testing.T, times float64) (got outcome) {
	t.Helper()
	for range 5 {
		before := freeMemory(t)
		got = invoke(t, "bench", "million", "-n", "200000", "--hold", "1s", "--heartbeat", "1s", "--subjects", "epoll",
			"--keep-free", strconv.FormatInt(int64(times*before), 10), "--out", filepath.Join(t.TempDir(), "r"))
		if share := freeMemory(t) / before; share > 0.8 && share < 1.2 {
			break
		}
	}
	return got
}

// freeMemory is what a bench takes for free, in bytes.
func freeMemory(t *testing.T) float64 {
	t.Helper()
	now, err := sample.Take(sample.MachineMemory)
	if err != nil {
		t.Fatal(err)
	}
	return float64(now.Machine.Free + now.Machine.FilePages/2)
}
