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

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/doctor"
	"github.com/myriad-go/myriad/tools/internal/faults"
)

const portsFile = "/proc/sys/net/ipv4/ip_local_port_range"

// few is a plan that exceeds a namespace with a hundred ports, independent of the machine's
// settings.
var few = []string{"doctor", "-n", "1000", "--side", "client", "--src", "127.0.0.1"}

// newNamespaceWithFewPorts returns a network namespace with a hundred ports.
func newNamespaceWithFewPorts(t *testing.T) *faults.Namespace {
	t.Helper()
	ns, err := faults.NewNamespace()
	if errors.Is(err, os.ErrPermission) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	if err := ns.RunInside(func() error { return os.WriteFile(portsFile, []byte("50000 50099"), 0) }); err != nil {
		t.Fatal(err)
	}
	return ns
}

func readPortRange(t *testing.T, ns *faults.Namespace) string {
	t.Helper()
	var text string
	err := ns.RunInside(func() error {
		b, err := os.ReadFile(portsFile)
		text = strings.Join(strings.Fields(string(b)), " ")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func runInNamespace(t *testing.T, ns *faults.Namespace, cmd *exec.Cmd, stdin string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := ns.RunInside(cmd.Start); err != nil {
		t.Fatal(err)
	}
	cmd.Wait() // its exit code is looked at
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// It says the first wall in its first line, and its exit code whether the machine holds what is wanted.
func TestDoctor(t *testing.T) {
	ns := newNamespaceWithFewPorts(t)
	got := runInNamespace(t, ns, newCommandProcess(t, few...), "")
	if first, _, _ := strings.Cut(got.stdout, "\n"); got.code != 1 || !strings.Contains(first, "100 connections") || !strings.Contains(first, "ports") {
		t.Errorf("%+v; expected 1, and the first wall, ports, in the first line", got)
	}
	if want := "myriad: this machine holds 100 of 1000 connections: the first wall is ports\n"; got.stderr != want {
		t.Errorf("stderr is %q, expected %q", got.stderr, want)
	}
	if got := runInNamespace(t, ns, newCommandProcess(t, append(few, "-n", "100")...), ""); got.code != 0 || got.stderr != "" {
		t.Errorf("%+v; expected 0: as many as there are ports", got)
	}
	if got := runInNamespace(t, ns, newCommandProcess(t, "doctor", "--side", "client", "--src", "127.0.0.1"), ""); got.code != 0 || !strings.Contains(got.stdout, "(wanted: 1,000,000;") {
		t.Errorf("%+v; expected 0 where nobody says how many", got)
	}
	got = runInNamespace(t, ns, newCommandProcess(t, append(few, "--json")...), "")
	var r doctor.Report
	failOnError(t, json.Unmarshal([]byte(got.stdout), &r))
	if got.code != 1 || r.Holds != 100 || r.First != "ports" || r.Plan.Connections != 1000 || len(r.Facts.Sysctls) == 0 {
		t.Errorf("%d: %+v", got.code, r)
	}
	// What is printed for sysctl does what --fix does.
	got = runInNamespace(t, ns, newCommandProcess(t, append(few, "--print", "sysctl")...), "")
	file := filepath.Join(t.TempDir(), "90-myriad.conf")
	failOnError(t, os.WriteFile(file, []byte(got.stdout), 0o644))
	if done := runInNamespace(t, ns, exec.Command("sysctl", "-p", file), ""); done.code != 0 {
		t.Errorf("sysctl -p: %+v", done)
	}
	if after := runInNamespace(t, ns, newCommandProcess(t, few...), ""); after.code != 0 {
		t.Errorf("after sysctl -p: %+v", after)
	}
}

// It changes what it says, the machine then holds what is wanted, and what it
// prints takes that back.
func TestDoctorFix(t *testing.T) {
	skipIfShort(t)
	for _, c := range []struct{ flag, stdin string }{{"--yes", ""}, {"", "YES"}} {
		ns := newNamespaceWithFewPorts(t)
		args := append(few, "--fix")
		if c.flag != "" {
			args = append(args, c.flag)
		}
		got := runInNamespace(t, ns, newCommandProcess(t, args...), c.stdin)
		now := readPortRange(t, ns)
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
		if got := runInNamespace(t, ns, exec.Command("sh", "-ec", undo), ""); got.code != 0 || readPortRange(t, ns) != "50000 50099" {
			t.Errorf("%v: after %q ports are %s: %+v", c, undo, readPortRange(t, ns), got)
		}
	}
}

// Who does not say yes, or interrupts it, has nothing changed.
func TestDoctorFixRefused(t *testing.T) {
	ns := newNamespaceWithFewPorts(t)
	const holds = "this machine holds 100 of 1000"
	for _, c := range []struct {
		stdin, stdout, stderr string
		code                  int
	}{
		{"n\n", "Nothing was changed.\n", holds, 1},
		{"\n", "Nothing was changed.\n", holds, 1},
		{strings.Repeat("y", 1000), "Nothing was changed.\n", holds, 1},
		{"", "[y/N] \n", "--fix asks, and nobody answers (EOF); expected y or n on standard input, or --yes", 2},
	} {
		got := runInNamespace(t, ns, newCommandProcess(t, append(few, "--fix")...), c.stdin)
		if got.code != c.code || !strings.HasSuffix(got.stdout, c.stdout) || !strings.HasPrefix(got.stderr, "myriad: "+c.stderr) {
			t.Errorf("%q: %+v; expected %+v", c.stdin, got, c)
		}
	}
	cmd := newCommandProcess(t, append(few, "--fix")...)
	stdin, err := cmd.StdinPipe() // on which nothing comes
	failOnError(t, err)
	defer stdin.Close()
	var p *testkit.Process
	failOnError(t, ns.RunInside(func() error { p = testkit.Start(t, cmd); return nil }))
	p.WaitForOutput(`\[y/N\]`)
	p.Signal(syscall.SIGINT)
	if code := p.ExitCode(); code != 1 || !strings.Contains(p.Output.String(), "\nmyriad: interrupted; nothing was changed\n") {
		t.Errorf("interrupted: %d, %s", code, p.Output)
	}
	if now := readPortRange(t, ns); now != "50000 50099" {
		t.Errorf("ports are %s", now)
	}
}

// TestWarnings hears what commands say of walls before they begin, in a network namespace
// that has a hundred ports and short queues.
func TestWarnings(t *testing.T) {
	skipIfShort(t)
	network := newNamespaceWithFewPorts(t)
	if err := network.RunInside(func() error { return os.WriteFile("/proc/sys/net/core/somaxconn", []byte("16"), 0) }); err != nil {
		t.Fatal(err)
	}
	const refused = "127.0.0.1:9" // nobody listens there
	const nowhere = "192.0.2.1:9" // which no machine has: TEST-NET-1
	from := []string{"--src", "127.0.0.1", "--connect-timeout", "1s", "--duration", "1ms", refused}
	for _, test := range []struct {
		name string
		args []string
		says []string // nothing if it is empty
	}{
		{"load, too many", append([]string{"load", "-c", "1000"}, from...), []string{"this machine can hold only 100 of 1000 connections: ports (", "`myriad doctor -n 1000 --side client --src 127.0.0.1` shows how to raise it"}},
		{"load, near", append([]string{"load", "-c", "90"}, from...), []string{"90 connections are 90% of what this machine holds, 100: ports ("}},
		{"load, far", append([]string{"load", "-c", "50"}, from...), nil},
		{"load, quiet", append([]string{"load", "-q", "-c", "1000"}, from...), nil},
		{"load, json", append([]string{"load", "--json", "-c", "1000"}, from...), []string{"can hold only 100 of"}},
		{"load, a hundred", append([]string{"load"}, from...), nil},
		{"hold, too many", append([]string{"hold", "-n", "1000"}, from...), []string{"this machine can hold only 100 of 1000 connections: ports ("}},
		{"serve, short queue", []string{"serve", "--max-conns", "1000", "--addr", nowhere}, []string{"somaxconn (16) hurts from 17 connections of 1000 on; `myriad doctor -n 1000 --side server` shows"}},
		{"serve, few", []string{"serve", "--max-conns", "17", "--addr", nowhere}, nil},
		{"serve, processes", []string{"serve", "--max-conns", "1000", "--model", "epoll", "--processes", "2", "--addr", nowhere}, []string{"`myriad doctor -n 1000 --side server --model epoll --processes 2` shows"}},
	} {
		got := runInNamespace(t, network, newCommandProcess(t, test.args...), "") // which fails: nobody listens, or no such address
		var said []string
		for line := range strings.Lines(got.stderr) {
			if strings.Contains(line, "myriad doctor") {
				said = append(said, line)
			}
		}
		if len(said) > 2 || (len(said) > 0) != (len(test.says) > 0) {
			t.Errorf("%s: it said %q; all of it:\n%s", test.name, said, got.stderr)
		}
		for _, text := range test.says {
			if !strings.Contains(strings.Join(said, ""), text) {
				t.Errorf("%s: it said %q, want %q", test.name, said, text)
			}
		}
		if strings.Contains(got.stdout, "myriad doctor") {
			t.Errorf("%s: standard output has %q", test.name, got.stdout)
		}
	}
}
