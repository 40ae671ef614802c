package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/doctor"
	"github.com/myriad-go/myriad/internal/await"
	"github.com/myriad-go/myriad/internal/faults"
)

const portsFile = "/proc/sys/net/ipv4/ip_local_port_range"

// few is a plan which a network of a hundred ports can't hold. It needs nothing of
// the machine's own settings.
var few = []string{"doctor", "-n", "1000", "--side", "client", "--src", "127.0.0.1"}

// narrow is a network with a hundred ports.
func narrow(t *testing.T) *faults.Namespace {
	t.Helper()
	ns, err := faults.NewNamespace()
	if errors.Is(err, os.ErrPermission) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	if err := ns.Do(func() error { return os.WriteFile(portsFile, []byte("50000 50099"), 0) }); err != nil {
		t.Fatal(err)
	}
	return ns
}

// ports says what the network's range of ports is.
func ports(t *testing.T, ns *faults.Namespace) string {
	t.Helper()
	var text string
	err := ns.Do(func() error {
		b, err := os.ReadFile(portsFile)
		text = strings.Join(strings.Fields(string(b)), " ")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// within runs a command in a network, with something on its standard input.
func within(t *testing.T, ns *faults.Namespace, cmd *exec.Cmd, stdin string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := ns.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	cmd.Wait() // its exit code is looked at
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

func TestDoctor(t *testing.T) {
	ns := narrow(t)
	got := within(t, ns, command(t, few...), "")
	if first, _, _ := strings.Cut(got.stdout, "\n"); got.code != 1 || !strings.Contains(first, "100 connections") || !strings.Contains(first, "ports") {
		t.Errorf("%+v; expected 1, and the first wall, ports, in the first line", got)
	}
	if want := "myriad: this machine holds 100 of 1000 connections: the first wall is ports\n"; got.stderr != want {
		t.Errorf("stderr is %q, expected %q", got.stderr, want)
	}
	if got := within(t, ns, command(t, append(few, "-n", "100")...), ""); got.code != 0 || got.stderr != "" {
		t.Errorf("%+v; expected 0: as many as there are ports", got)
	}
	if got := within(t, ns, command(t, "doctor", "--side", "client", "--src", "127.0.0.1"), ""); got.code != 0 || !strings.Contains(got.stdout, "(wanted: 1,000,000;") {
		t.Errorf("%+v; expected 0 where nobody says how many", got)
	}
}

func TestDoctorJSON(t *testing.T) {
	got := within(t, narrow(t), command(t, append(few, "--json")...), "")
	var r doctor.Report
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil {
		t.Fatal(err)
	}
	if got.code != 1 || r.Holds != 100 || r.First != "ports" || r.Plan.Connections != 1000 || len(r.Facts.Sysctls) == 0 {
		t.Errorf("%d: %+v", got.code, r)
	}
	if strings.Contains(got.stdout, "9223372036854775807") {
		t.Errorf("no limit is written as a number: %s", got.stdout)
	}
}

// It changes what it says, the machine then holds what is wanted, and what it
// prints takes that back.
func TestDoctorFix(t *testing.T) {
	for _, c := range []struct{ flag, stdin string }{{"--yes", ""}, {"", "y\n"}, {"", "YES"}} {
		ns := narrow(t)
		args := append(few, "--fix")
		if c.flag != "" {
			args = append(args, c.flag)
		}
		got := within(t, ns, command(t, args...), c.stdin)
		now := ports(t, ns)
		if got.code != 0 || now == "50000 50099" {
			t.Errorf("%v: ports are %s, %+v; expected 0 and more ports", c, now, got)
		}
		if asked := strings.Contains(got.stdout, "Apply this change? [y/N]"); asked == (c.flag == "--yes") {
			t.Errorf("%v: it asked: %v", c, asked)
		}
		if !strings.Contains(got.stdout, "\nChanged:\n  net.ipv4.ip_local_port_range: 50000 50099 -> "+now+"\n") {
			t.Errorf("%v: it does not say what was changed: %s", c, got.stdout)
		}
		_, rest, _ := strings.Cut(got.stdout, "To undo:\n")
		undo, last, _ := strings.Cut(rest, "\n\n")
		if !strings.Contains(last, "can hold 1,000 connections now") {
			t.Errorf("%v: it ends with %q, expected what it holds now", c, last)
		}
		if got := within(t, ns, exec.Command("sh", "-ec", undo), ""); got.code != 0 || ports(t, ns) != "50000 50099" {
			t.Errorf("%v: after %q ports are %s: %+v", c, undo, ports(t, ns), got)
		}
	}
}

func TestDoctorFixRefused(t *testing.T) {
	ns := narrow(t)
	for _, c := range []struct {
		stdin, stdout, stderr string
		code                  int
	}{
		{"n\n", "Nothing was changed.\n", "this machine holds 100 of 1000", 1},
		{"\n", "Nothing was changed.\n", "this machine holds 100 of 1000", 1},
		{strings.Repeat("y", 1000), "Nothing was changed.\n", "this machine holds 100 of 1000", 1},
		{"", "[y/N] \n", "--fix asks, and nobody answers (EOF); expected y or n on standard input, or --yes", 2},
	} {
		got := within(t, ns, command(t, append(few, "--fix")...), c.stdin)
		if got.code != c.code || !strings.HasSuffix(got.stdout, c.stdout) || !strings.HasPrefix(got.stderr, "myriad: "+c.stderr) {
			t.Errorf("%q: %+v; expected %+v", c.stdin, got, c)
		}
		if now := ports(t, ns); now != "50000 50099" {
			t.Errorf("%q: ports are %s", c.stdin, now)
		}
	}
}

// Ctrl-C is an answer too.
func TestDoctorFixInterrupted(t *testing.T) {
	ns := narrow(t)
	cmd := command(t, append(few, "--fix")...)
	var stdout, stderr lockedBuffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	stdin, err := cmd.StdinPipe() // on which nothing comes
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	if err := ns.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the question", func() bool { return strings.Contains(stdout.String(), "[y/N]") })
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	cmd.Wait() // its exit code is looked at
	if code := cmd.ProcessState.ExitCode(); code != 1 || stderr.String() != "myriad: interrupted; nothing was changed\n" {
		t.Errorf("%d, %s", code, &stderr)
	}
	if now := ports(t, ns); now != "50000 50099" {
		t.Errorf("ports are %s", now)
	}
}

// What is printed for sysctl does what --fix does.
func TestDoctorPrint(t *testing.T) {
	ns := narrow(t)
	got := within(t, ns, command(t, append(few, "--print", "sysctl")...), "")
	file := filepath.Join(t.TempDir(), "90-myriad.conf")
	if err := os.WriteFile(file, []byte(got.stdout), 0o644); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(got.stdout) {
		if !strings.HasPrefix(line, "#") && strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "net.ipv4.ip_local_port_range = ") {
			t.Fatalf("a plan that needs ports only changes the machine's settings: %s", line)
		}
	}
	if done := within(t, ns, exec.Command("sysctl", "-p", file), ""); done.code != 0 {
		t.Errorf("sysctl -p: %+v", done)
	}
	if after := within(t, ns, command(t, few...), ""); after.code != 0 {
		t.Errorf("after sysctl -p: %+v", after)
	}
}

// What is printed is the same when the machine has it.
func TestDoctorPrintAfterFix(t *testing.T) {
	ns := narrow(t)
	if err := ns.Do(func() error { return os.WriteFile(portsFile, []byte("32768 60999"), 0) }); err != nil {
		t.Fatal(err)
	}
	more := []string{"doctor", "-n", "30000", "--side", "client", "--src", "127.0.0.1"}
	printed := func() (all []outcome) {
		for _, format := range doctor.Formats {
			all = append(all, within(t, ns, command(t, append(more, "--print", format)...), ""))
		}
		return all
	}
	before := printed()
	if got := within(t, ns, command(t, append(more, "--fix", "--yes")...), ""); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	for i, after := range printed() {
		if before[i] != after || after.code != 0 || !strings.Contains(after.stdout, "30000 connections") {
			t.Errorf("%s: it printed %+v and then %+v", doctor.Formats[i], before[i], after)
		}
	}
	if !strings.Contains(before[0].stdout, "\nnet.ipv4.ip_local_port_range = ") {
		t.Errorf("there is no range of ports in %s", before[0].stdout)
	}
}
