package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
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
	got.checkOutcome(t, "doctor", 1, "myriad: this machine can hold only 100 of 1000 connections; the first limit that it reaches is ports\n")
	if first, _, _ := strings.Cut(got.stdout, "\n"); !strings.Contains(first, "100 connections") || !strings.Contains(first, "ports") {
		t.Errorf("the first line is %q, without the first wall", first)
	}
	n.runFew("", "-n", "100").checkOutcome(t, "as many as there are ports", 0)
	n.run(newCommandProcess(t, "doctor", "--side", "client", "--src", "127.0.0.1"), "").checkOutcome(t, "without -n", 0, "(wanted: 1,000,000;")
	n.runFew("", "--json").checkOutcome(t, "--json", 1, `{"plan":{"connections":1000,`, `},"first":"ports","walls":[{`, `"sysctls":{`)
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
	for _, c := range []struct{ stdin, flag string }{{"", "--yes=true"}, {"YES", "--yes=false"}} {
		got := n.runFew(c.stdin, "--fix", c.flag)
		now := n.ports()
		if asked := strings.Contains(got.stdout, "Apply this change? [y/N]"); asked != (c.stdin != "") || now == "50000 50099" {
			t.Errorf("%+v: it asked: %v, and ports are %s", c, asked, now)
		}
		got.checkOutcome(t, c.flag, 0, "\nChanged:\n  net.ipv4.ip_local_port_range: 50000 50099 -> "+now+"\n", "can hold 1,000 connections now")
		_, rest, _ := strings.Cut(got.stdout, "To undo:\n")
		undo, _, _ := strings.Cut(rest, "\n\n")
		if got := n.run(exec.Command("sh", "-ec", undo), ""); got.code != 0 || n.ports() != "50000 50099" {
			t.Errorf("%v: after %q ports are %s: %+v", c, undo, n.ports(), got)
		}
	}
	const only = "this machine can hold only 100 of 1000"
	n.runFew("n\n", "--fix").checkOutcome(t, "n", 1, "Nothing was changed.\n", only)
	n.runFew(strings.Repeat("y", 1000), "--fix").checkOutcome(t, "many y", 1, "Nothing was changed.\n", only)
	n.runFew("", "--fix").checkOutcome(t, "EOF", 2, "[y/N] \n",
		"no answer to the question of --fix (EOF); expected y or n on standard input, or --yes")
	cmd := newCommandProcess(t, append(few, "--fix")...)
	stdin, err := cmd.StdinPipe() // on which nothing comes
	testkit.RequireNoError(t, err)
	defer stdin.Close()
	var p *testkit.Process
	testkit.RequireNoError(t, n.RunInside(func() error { p = testkit.Start(t, cmd); return nil }))
	p.WaitForOutput(`\[y/N\]`)
	p.Signal(syscall.SIGINT)
	outcome{p.WaitExitCode(), p.Output.String(), ""}.checkOutcome(t, "interrupted", 1, "\nmyriad: interrupted; nothing was changed\n")
	if n.ports() != "50000 50099" {
		t.Errorf("ports are %s though nobody said yes", n.ports())
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
	for line, says := range map[string]string{
		"load -c 1000" + from:        only,
		"load -c 90" + from:          "90 connections are 90% of what this machine can hold, 100: ports (",
		"load -c 50" + from:          "",
		"load -q -c 1000" + from:     "",
		"load --json -c 1000" + from: only,
		"hold -n 1000" + from:        doctor + "client --src 127.0.0.1` shows how to raise it",
		"serve --max-conns 17" + at:  "",
		"serve --max-conns 1000 --model epoll --processes 2" + at: "somaxconn (16) degrades performance from 17 of 1000 connections; " +
			doctor + "server --model epoll --processes 2` shows",
	} {
		got := n.run(newCommandProcess(t, strings.Fields(line)...), "") // which fails: nobody listens, or no such address
		got.checkOutcome(t, line, 1, says)
		if said := strings.Contains(got.stderr, "myriad doctor"); said != (says != "") || strings.Contains(got.stdout, "myriad doctor") {
			t.Errorf("%s warns: %v; all of it:\n%s", line, said, got.output())
		}
	}
}
