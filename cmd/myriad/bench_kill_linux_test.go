package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/await"
	"github.com/myriad-go/myriad/internal/procfs"
	"github.com/myriad-go/myriad/lab"
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

// processes are those that it has started, and those have, by the mark of the lab.
func (b *benching) processes(t *testing.T) []int {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(b.tmp, "myriad-lab-*"))
	if err != nil || len(dirs) == 0 {
		return nil
	}
	pids, err := procfs.WithEnv("MYRIAD_LAB=" + strings.TrimPrefix(filepath.Base(dirs[0]), "myriad-lab-"))
	if err != nil {
		t.Fatal(err)
	}
	return pids
}

// find returns those whose command line has all words.
func (b *benching) find(t *testing.T, words ...string) (found []int) {
	t.Helper()
next:
	for _, pid := range b.processes(t) {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // none when it has ended
		for _, word := range words {
			if !bytes.Contains(line, []byte("\x00"+word+"\x00")) {
				continue next
			}
		}
		found = append(found, pid)
	}
	return found
}

// loading says whether a load generator is at work in its window.
func (b *benching) loading(t *testing.T) bool { return b.busy(t, "load", "--duration") }

// busy says whether a process whose command line has all words is at work.
func (b *benching) busy(t *testing.T, words ...string) bool {
	for _, pid := range b.find(t, words...) {
		if s, err := procfs.ReadStat(pid); err == nil && s.CPU().Milliseconds() >= 50 {
			return true
		}
	}
	return false
}

// holding says whether a process with a word in its command line has so many sockets.
func (b *benching) holding(t *testing.T, word string, sockets int) bool {
	for _, pid := range b.find(t, word) {
		if d, err := procfs.ReadDescriptors(pid); err == nil && d.Sockets >= sockets {
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

// gone waits until nothing is left but what the report is made of. pids were there
// before, the guard's among them.
func (b *benching) gone(t *testing.T, mark string, pids []int) {
	t.Helper()
	var why string
	defer func() {
		if t.Failed() {
			t.Logf("last: %s; it printed %s", why, b.printed)
		}
	}()
	await.True(t, "nothing is left", func() bool {
		left, err := procfs.WithEnv("MYRIAD_LAB=" + mark)
		if err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(b.tmp)
		if err != nil {
			t.Fatal(err)
		}
		_, unfinished := os.Stat(filepath.Join(b.out, "myriad-unfinished"))
		var alive []int
		for _, pid := range pids {
			// One that has ended, and whose parent has not asked how, has no command line.
			if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && len(line) > 0 {
				alive = append(alive, pid)
			}
		}
		why = fmt.Sprint("marked ", left, ", alive ", alive, ", temporary ", files, ", unfinished: ", unfinished)
		return len(left) == 0 && len(alive) == 0 && len(files) == 0 && os.IsNotExist(unfinished)
	})
}

// mark is the lab's.
func (b *benching) mark(t *testing.T) string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(b.tmp, "myriad-lab-*"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("got %v, %v, want a directory for temporary files", dirs, err)
	}
	return strings.TrimPrefix(filepath.Base(dirs[0]), "myriad-lab-")
}

// What kills a bench, at any moment, leaves no process and no file.
func TestBenchKilled(t *testing.T) {
	const long = "1h"
	daemon := []string{"quick", "--only", "^echo-100/mine$", "--duration", long, "--subject",
		"mine=sh -c 'setsid sleep 1000 & exec {self} plain --addr {addr} --app {app}'"}
	for name, c := range map[string]struct {
		args []string
		when func(b *benching) bool
	}{
		"the first process": {[]string{"quick", "--duration", long}, func(b *benching) bool { return len(b.processes(t)) > 0 }},
		"throughput":        {[]string{"quick", "--only", "^echo-100/net$", "--duration", long}, func(b *benching) bool { return b.loading(t) }},
		"tls":               {[]string{"tls", "--only", "^echo-100/net$", "--duration", long}, func(b *benching) bool { return b.loading(t) }},
		"prefork": {[]string{"models", "--only", "^compute-100/prefork-2$", "--duration", long}, func(b *benching) bool {
			return b.loading(t) && len(b.find(t, "serve")) == 3
		}},
		"idle": {[]string{"quick", "--only", "^idle-10000/net$"}, func(b *benching) bool { return b.holding(t, "plain", 1000) }},
		// The kinds that have a way of their own.
		"flood": {[]string{"tenk", "--only", "^unbuffered-10k/net$", "--duration", long, "--connections-max", "100"},
			func(b *benching) bool { return b.loading(t) }},
		"overload": {[]string{"overload", "--only", "^cpu-1x/ours$", "--duration", "5m"},
			func(b *benching) bool { return b.busy(t, "offer") }},
		"overload of a server": {[]string{"overload", "--with", "network", "--only", "^network-1x/serve-fixed$", "--duration", "5m"},
			func(b *benching) bool { return b.busy(t, "work") }},
		"million": {[]string{"million", "--subjects", "prefork", "-n", "1000", "--hold", long}, func(b *benching) bool {
			return len(b.find(t, "serve")) == 3 && b.holding(t, "hold", 1000)
		}},
		"soak":     {[]string{"soak", "--model", "epoll", "--duration", long}, func(b *benching) bool { return b.holding(t, "serve", 100) }},
		"a daemon": {daemon, func(b *benching) bool { return b.loading(t) && len(b.find(t, "1000")) > 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "a daemon" {
				if _, err := exec.LookPath("setsid"); err != nil {
					t.Skip("needs setsid, to have a server start a daemon")
				}
			}
			b := startBench(t, c.args...)
			defer func() {
				if t.Failed() {
					t.Logf("it printed %s", b.printed)
				}
			}()
			await.True(t, "the moment has come", func() bool { return c.when(b) })
			mark := b.mark(t)
			pids := append(b.processes(t), childrenOf(t, b.Process.Pid)...)
			if err := b.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = b.Wait() // it was killed
			b.gone(t, mark, pids)
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
			mark := b.mark(t)
			pids := append(b.processes(t), childrenOf(t, b.Process.Pid)...)
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
				if book := readReport(t, b.out); book.Runs() != made {
					t.Errorf("the report has %d runs, want the %d of the journal", book.Runs(), made)
				}
			}
			b.gone(t, mark, pids)
			finish(t, b, made)
		})
	}
}

// readReport reads the report of a directory.
func readReport(t *testing.T, dir string) *lab.Book {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	book := new(lab.Book)
	if err := json.Unmarshal(text, book); err != nil {
		t.Fatal(err)
	}
	return book
}

// finish resumes a bench of which so many runs were made.
func finish(t *testing.T, b *benching, made int) {
	t.Helper()
	resumed := time.Now()
	t.Setenv(asMyriad, "1")
	t.Setenv("TMPDIR", b.tmp)
	var said strings.Builder
	o := lab.Options{Self: os.Args[0], Progress: &said}
	book, err := lab.Resume(t.Context(), b.out, o)
	if err != nil {
		t.Fatal(err)
	}
	again := readReport(t, b.out)
	if again.Runs() != book.Runs() || book.Failed() > 0 || b.records() != book.Runs() {
		t.Errorf("%d runs, %d written, %d in the journal, %d failed", book.Runs(), again.Runs(), b.records(), book.Failed())
	}
	steps := make(map[string]int)
	for i, r := range book.Reports[0].Runs {
		if !r.Superseded {
			steps[fmt.Sprint(r.Subject, r.Round)]++
		}
		if i < made && r.Started.After(resumed) {
			t.Errorf("run %d was made again", i)
		}
	}
	for _, step := range []string{"net1", "goroutine1", "net2", "goroutine2"} {
		if steps[step] != 1 || len(steps) != 4 {
			t.Errorf("got %v, want every step once", steps)
		}
	}
	if files, err := os.ReadDir(b.tmp); err != nil || len(files) > 0 {
		t.Errorf("left when it had ended: %v, %v", files, err)
	}
	said.Reset()
	if book, err := lab.Resume(t.Context(), b.out, o); err != nil || book.Runs() != again.Runs() || !strings.Contains(said.String(), "nothing is left to do") {
		t.Errorf("resumed twice: %v, it said %q", err, said.String())
	}
}
