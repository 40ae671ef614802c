package main

import (
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

// smallNetwork is a network namespace with a hundred ports and short queues.
type smallNetwork struct {
	*faults.Namespace
	t *testing.T
}

func newSmallNetwork(t *testing.T) smallNetwork {
	t.Helper()
	ns, err := faults.NewNamespace()
	if errors.Is(err, os.ErrPermission) {
		t.Skip(err)
	}
	testkit.RequireNoError(t, err)
	t.Cleanup(func() { ns.Close() })
	testkit.RequireNoError(t, ns.RunInside(func() error {
		return errors.Join(os.WriteFile(portsFile, []byte("50000 50099"), 0), os.WriteFile("/proc/sys/net/core/somaxconn", []byte("16"), 0))
	}))
	return smallNetwork{ns, t}
}

func (n smallNetwork) ports() string {
	n.t.Helper()
	var text []byte
	testkit.RequireNoError(n.t, n.RunInside(func() (err error) { text, err = os.ReadFile(portsFile); return err }))
	return strings.Join(strings.Fields(string(text)), " ")
}

func (n smallNetwork) run(cmd *exec.Cmd, stdin string) (o outcome) {
	n.t.Helper()
	cmd.Stdin = strings.NewReader(stdin)
	testkit.RequireNoError(n.t, n.RunInside(func() error { o = runToEnd(n.t, cmd); return nil }))
	return o
}

// runFew runs the plan with further arguments.
func (n smallNetwork) runFew(stdin string, args ...string) outcome {
	n.t.Helper()
	return n.run(newCommandProcess(n.t, append(few, args...)...), stdin)
}

// It says the first wall in its first line, and its exit code whether the machine holds what is wanted.
func TestDoctor(t *testing.T) {
	n := newSmallNetwork(t)
	got := n.runFew("")
	first, _, _ := strings.Cut(got.stdout, "\n")
	if want := "myriad: this machine can hold only 100 of 1000 connections; the first limit that it reaches is ports\n"; got.code != 1 || got.stderr != want ||
		!strings.Contains(first, "100 connections") || !strings.Contains(first, "ports") {
		t.Errorf("%+v; expected 1, %q, and the first wall in the first line", got, want)
	}
	if got := n.runFew("", "-n", "100"); got.code != 0 || got.stderr != "" {
		t.Errorf("%+v; expected 0: as many as there are ports", got)
	}
	n.run(newCommandProcess(t, "doctor", "--side", "client", "--src", "127.0.0.1"), "").checkOutcome(t, "without -n", 0, "(wanted: 1,000,000;")
	got = n.runFew("", "--json")
	var r doctor.Report
	testkit.RequireNoError(t, json.Unmarshal([]byte(got.stdout), &r))
	if got.code != 1 || r.Holds != 100 || r.First != "ports" || r.Plan.Connections != 1000 || len(r.Facts.Sysctls) == 0 {
		t.Errorf("%d: %+v", got.code, r)
	}
	// What is printed for sysctl does what --fix does.
	file := filepath.Join(t.TempDir(), "90-myriad.conf")
	testkit.RequireNoError(t, os.WriteFile(file, []byte(n.runFew("", "--print", "sysctl").stdout), 0o644))
	n.run(exec.Command("sysctl", "-p", file), "").checkOutcome(t, "sysctl -p", 0)
	n.runFew("").checkOutcome(t, "after sysctl -p", 0)
}

// It changes what it says, the machine then holds what is wanted, and what it prints takes that back. Who does
// not say yes, or interrupts it, has nothing changed.
func TestDoctorFix(t *testing.T) {
	skipIfShort(t)
	n := newSmallNetwork(t)
	for _, c := range []struct {
		stdin, flag, stdout, stderr string
		code                        int
	}{
		{"", "--yes=true", "", "", 0},
		{"YES", "--yes=false", "Apply this change? [y/N]", "", 0},
		{"n\n", "--yes=false", "Nothing was changed.\n", "this machine can hold only 100 of 1000", 1},
		{strings.Repeat("y", 1000), "--yes=false", "Nothing was changed.\n", "this machine can hold only 100 of 1000", 1},
		{"", "--yes=false", "[y/N] \n", "no answer to the question of --fix (EOF); expected y or n on standard input, or --yes", 2},
	} {
		got := n.runFew(c.stdin, "--fix", c.flag)
		got.checkOutcome(t, c.stdin+c.flag, c.code, c.stdout, c.stderr)
		now := n.ports()
		if c.code != 0 {
			if now != "50000 50099" {
				t.Errorf("%+v: ports are %s", c, now)
			}
			continue
		}
		if asked := strings.Contains(got.stdout, "[y/N]"); asked != (c.stdin != "") || now == "50000 50099" {
			t.Errorf("%+v: it asked: %v, and ports are %s", c, asked, now)
		}
		got.checkOutcome(t, c.flag, 0, "\nChanged:\n  net.ipv4.ip_local_port_range: 50000 50099 -> "+now+"\n", "can hold 1,000 connections now")
		_, rest, _ := strings.Cut(got.stdout, "To undo:\n")
		undo, _, _ := strings.Cut(rest, "\n\n")
		if got := n.run(exec.Command("sh", "-ec", undo), ""); got.code != 0 || n.ports() != "50000 50099" {
			t.Errorf("%v: after %q ports are %s: %+v", c, undo, n.ports(), got)
		}
	}
	cmd := newCommandProcess(t, append(few, "--fix")...)
	stdin, err := cmd.StdinPipe() // on which nothing comes
	testkit.RequireNoError(t, err)
	defer stdin.Close()
	var p *testkit.Process
	testkit.RequireNoError(t, n.RunInside(func() error { p = testkit.Start(t, cmd); return nil }))
	p.WaitForOutput(`\[y/N\]`)
	p.Signal(syscall.SIGINT)
	if code := p.ExitCode(); code != 1 || !strings.Contains(p.Output.String(), "\nmyriad: interrupted; nothing was changed\n") || n.ports() != "50000 50099" {
		t.Errorf("interrupted: %d, %s, ports are %s", code, p.Output, n.ports())
	}
}

// TestWarnings hears what commands say of walls before they begin.
func TestWarnings(t *testing.T) {
	skipIfShort(t)
	n := newSmallNetwork(t)
	const (
		from   = " --src 127.0.0.1 --connect-timeout 1s --duration 1ms 127.0.0.1:9" // where nobody listens
		only   = "this machine can hold only 100 of 1000 connections: ports ("
		at     = " --addr 192.0.2.1:9" // which no machine has: TEST-NET-1
		doctor = "`myriad doctor -n 1000 --side "
	)
	for line, says := range map[string][]string{ // all that is said if it is empty
		"load -c 1000" + from:         {only, doctor + "client --src 127.0.0.1` shows how to raise it"},
		"load -c 90" + from:           {"90 connections are 90% of what this machine can hold, 100: ports ("},
		"load -c 50" + from:           nil,
		"load -q -c 1000" + from:      nil,
		"load --json -c 1000" + from:  {only},
		"load" + from:                 nil,
		"hold -n 1000" + from:         {only},
		"serve --max-conns 1000" + at: {"somaxconn (16) degrades performance from 17 of 1000 connections; " + doctor + "server` shows"},
		"serve --max-conns 17" + at:   nil,
		"serve --max-conns 1000 --model epoll --processes 2" + at: {doctor + "server --model epoll --processes 2` shows"},
	} {
		got := n.run(newCommandProcess(t, strings.Fields(line)...), "") // which fails: nobody listens, or no such address
		if said := strings.Count(got.stderr, "myriad doctor"); said > 2 || (said > 0) != (len(says) > 0) || strings.Contains(got.stdout, "myriad doctor") {
			t.Errorf("%s: %d warnings; all of it:\n%s", line, said, got.output())
		}
		got.checkOutcome(t, line, 1, says...)
	}
}
