package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/await"
	"github.com/myriad-go/myriad/internal/lab/report"
	"github.com/myriad-go/myriad/internal/lab/result"
	"github.com/myriad-go/myriad/internal/lab/run"
	"github.com/myriad-go/myriad/internal/procfs"
)

// benching is a bench under way, whose temporary files are in a directory of its own.
type benching struct {
	*exec.Cmd
	out, tmp string
	printed  *lockedBuffer
}

// startBench starts a bench whose report goes to a directory.
func startBench(t *testing.T, args ...string) *benching {
	t.Helper()
	b := &benching{out: filepath.Join(t.TempDir(), "out"), tmp: t.TempDir(), printed: &lockedBuffer{}}
	b.Cmd = command(t, append(append([]string{"bench"}, args...), "--out", b.out)...)
	b.Env = append(b.Env, "TMPDIR="+b.tmp)
	b.Stdout, b.Stderr = b.printed, b.printed
	if err := b.Start(); err != nil {
		t.Fatal(err)
	}
	return b
}

// processes are those that it has started, and what those have.
func (b *benching) processes(t *testing.T) []int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, path := range all {
		env, _ := os.ReadFile(path) // none when it has ended
		if slices.Contains(strings.Split(string(env), "\x00"), "TMPDIR="+b.tmp) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// busy says whether a process with a word in its command line is at work.
func (b *benching) busy(t *testing.T, word string) bool {
	for _, pid := range b.processes(t) {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // none when it has ended
		s, err := procfs.ReadStat(pid)
		if bytes.Contains(line, []byte("\x00"+word+"\x00")) && err == nil && s.CPU().Milliseconds() >= 50 {
			return true
		}
	}
	return false
}

// records counts the runs in the journal.
func (b *benching) records() int {
	text, _ := os.ReadFile(filepath.Join(b.out, "journal.jsonl")) // none at the begin
	return bytes.Count(text, []byte(`"run":`))
}

// gone waits until none of its processes is left.
func (b *benching) gone(t *testing.T) {
	t.Helper()
	await.True(t, "no process is left", func() bool { return len(b.processes(t)) == 0 })
	if files, err := os.ReadDir(b.tmp); err != nil || len(files) > 0 {
		t.Errorf("temporary files are left: %v, %v", files, err)
	}
}

// What kills a bench leaves no process, and no file but in the report's directory.
func TestBenchKilled(t *testing.T) {
	const long = "1h"
	for name, c := range map[string]struct {
		args []string
		word string // in the command line of a process that is at work then
	}{
		"throughput": {[]string{"quick", "--only", "^echo-100/net$", "--duration", long}, "load"},
		"tls":        {[]string{"tls", "--only", "^echo-100/net$", "--duration", long}, "load"},
		"prefork":    {[]string{"models", "--only", "^compute-100/prefork-2$", "--duration", long}, "serve"},
		"jobs":       {[]string{"overload", "--only", "^cpu-1x/ours$", "--duration", "5m"}, "offer"},
		"held":       {[]string{"million", "--subjects", "prefork", "-n", "1000", "--hold", long}, "hold"},
	} {
		t.Run(name, func(t *testing.T) {
			b := startBench(t, c.args...)
			defer func() {
				if t.Failed() {
					t.Logf("it printed %s", b.printed)
				}
			}()
			await.True(t, "the moment has come", func() bool { return b.busy(t, c.word) })
			if err := b.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = b.Wait() // it was killed
			b.gone(t)
		})
	}
}

// What was interrupted is reported as far as it is, and resumed: in the end every step is
// there once.
func TestBenchResumed(t *testing.T) {
	other := map[os.Signal]os.Signal{os.Interrupt: syscall.SIGTERM, syscall.SIGTERM: os.Interrupt}
	for name, sig := range map[string]os.Signal{"interrupted": os.Interrupt, "terminated": syscall.SIGTERM, "killed": os.Kill} {
		t.Run(name, func(t *testing.T) {
			b := startBench(t, "quick", "--rounds", "2", "--duration", "100ms", "--only", "^echo-100/(net|goroutine)$")
			await.True(t, "a run has ended", func() bool { return b.records() > 0 })
			if err := b.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if sig != os.Kill {
				_ = b.Process.Signal(other[sig]) // as timeout(1) sends two: they count as one
			}
			_ = b.Wait() // the exit code says what it returned
			made := b.records()
			if sig != os.Kill {
				says := "myriad bench --resume " + b.out + " finishes the rest"
				if code := b.ProcessState.ExitCode(); code != 1 || !strings.Contains(b.printed.String(), says) {
					t.Errorf("exit code %d, want 1, and %q: %s", code, says, b.printed)
				}
				if files, err := os.ReadDir(b.tmp); err != nil || len(files) > 0 {
					t.Errorf("left when it ended: %v, %v", files, err)
				}
				if set := readReport(t, b.out); set.Runs() != made {
					t.Errorf("the report has %d runs, want the %d of the journal", set.Runs(), made)
				}
			}
			b.gone(t)
			finish(t, b, made)
		})
	}
}

// readReport reads the report of a directory.
func readReport(t *testing.T, dir string) *result.Set {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	set, err := result.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// finish resumes a bench of which so many runs were made.
func finish(t *testing.T, b *benching, made int) {
	t.Helper()
	resumed := time.Now()
	t.Setenv(asMyriad, "1")
	t.Setenv("TMPDIR", b.tmp)
	var said strings.Builder
	o := run.Options{Self: os.Args[0], Progress: &said, Write: report.Write, Judge: report.Judge}
	set, err := run.Resume(t.Context(), b.out, o)
	if err != nil {
		t.Fatal(err)
	}
	again := readReport(t, b.out)
	if failed, _ := set.Failed(); again.Runs() != set.Runs() || failed > 0 || b.records() != set.Runs() {
		t.Errorf("%d runs, %d written, %d in the journal, %d failed", set.Runs(), again.Runs(), b.records(), failed)
	}
	steps := make(map[string]int)
	for i, r := range set.Reports[0].Runs {
		steps[fmt.Sprint(r.Subject, r.Round)]++
		if i < made && r.Started.After(resumed) {
			t.Errorf("run %d was made again", i)
		}
	}
	for _, step := range []string{"net1", "goroutine1", "net2", "goroutine2"} {
		if steps[step] != 1 || len(steps) != 4 {
			t.Errorf("got %v, want every step once", steps)
		}
	}
	said.Reset()
	if set, err := run.Resume(t.Context(), b.out, o); err != nil || set.Runs() != again.Runs() || !strings.Contains(said.String(), "nothing is left to do") {
		t.Errorf("resumed twice: %v, it said %q", err, said.String())
	}
}
