package lab

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/procfs"
)

// TestGuard ends processes that the launcher does not know of, one of which minds no
// SIGTERM, and removes what is temporary.
func TestGuard(t *testing.T) {
	self := children(t).Self
	t.Setenv("TMPDIR", t.TempDir())
	more := filepath.Join(t.TempDir(), ours+"more")
	if err := os.MkdirAll(filepath.Join(more, "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	g, err := startGuard(self, more)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "stubborn")
	cmd.Env = g.env()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil { // it ignores the signal from now on
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(g.dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := g.end(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("the process: got %v, want it killed", err)
	}
	checkEmpty(t)
	if _, err := os.Stat(more); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: got %v, want it removed", more, err)
	}
}

// TestGuardRefuses is told what a lab does not say, and removes nothing.
func TestGuardRefuses(t *testing.T) {
	mark := strings.Repeat("0f", 16)
	theirs := filepath.Join(t.TempDir(), "theirs")
	if err := os.Mkdir(theirs, 0o700); err != nil {
		t.Fatal(err)
	}
	for told, want := range map[string]string{
		"":                                      "",
		mark + "\n":                             "",
		"hello\n":                               "expected a mark",
		mark + "\n" + theirs:                    "expected an absolute path",
		mark + "\nmyriad-relative":              "expected an absolute path",
		strings.Repeat(mark+"\n", maxGuarded+1): "more than 16 lines",
		strings.Repeat("x", 1<<17):              "too long",
	} {
		err := Guard(strings.NewReader(told))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.50q: got %v, want %q", told, err, want)
		}
	}
	if _, err := os.Stat(theirs); err != nil {
		t.Error(err)
	}
}

// TestGuardMissing has no guard to start, and one that ends at once.
func TestGuardMissing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	if _, err := startGuard("/does/not/exist"); err == nil || !strings.Contains(err.Error(), "cannot start the guard") {
		t.Errorf("got %v", err)
	}
	no, err := exec.LookPath("false")
	if err != nil {
		t.Skip("needs a program that fails")
	}
	g, err := startGuard(no)
	if err == nil {
		err = g.end()
	}
	if err == nil {
		t.Error("a guard that fails passes")
	}
	t.Setenv(markName, "guard")
	var wrong ScenarioError
	if g, err := startGuard(no); g != nil || !errors.As(err, &wrong) {
		t.Errorf("a lab in a lab: got %v", err)
	}
	checkEmpty(t)
}

// TestRunLeavesNoDaemon has a server start a daemon: it does not live into the next run.
func TestRunLeavesNoDaemon(t *testing.T) {
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip("needs setsid")
	}
	o := children(t)
	s := testScenario()
	s.Rounds, s.Workloads = 1, s.Workloads[:1]
	note := filepath.Join(t.TempDir(), "note")
	t.Setenv("NOTE", note)
	s.Subjects = []Subject{
		{Name: "daemon", Command: []string{"sh", "-c", "setsid sleep 1000 & echo $! >$NOTE; env | grep ^MYRIAD_LAB= >>$NOTE; exec {self} plain {addr} {app}"}},
		{Name: "next", Command: []string{"sh", "-c", "tail -n 1 $NOTE; cat /proc/$(head -n 1 $NOTE)/cmdline >&2; exit 3 # {addr}"}},
	}
	report, err := Run(t.Context(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	if r := report.Runs[0]; r.Error != "" {
		t.Fatal(r.Error)
	}
	text, err := os.ReadFile(note)
	if err != nil || !strings.Contains(string(text), markName+"=") {
		t.Fatalf("got %q, %v, want the number of a daemon and the mark", text, err)
	}
	if said := report.Runs[1].Error; strings.Contains(said, "sleep") || !strings.Contains(said, "exit status 3") {
		t.Errorf("the next server saw %q, want no daemon", said)
	}
	entry := strings.Fields(string(text))[1]
	if left, err := procfs.WithEnv(entry); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestEndMarkedGrace is polite as long as grace lasts.
func TestEndMarkedGrace(t *testing.T) {
	const entry = "MYRIAD_LAB=test-of-grace"
	cmd := exec.Command("sleep", "1000")
	cmd.Env = append(os.Environ(), entry)
	if err := cmd.Start(); err != nil {
		t.Skipf("no sleep to be started: %v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := endMarked(entry, time.Minute); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil || err.Error() != "signal: terminated" {
		t.Errorf("got %v, want it asked to end", err)
	}
}
