package main

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/myriad-go/myriad/hub/natsd"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/agents"
	"github.com/myriad-go/myriad/tools/load"
)

// star is a network of namespaces: "hub", which has 10.78.0.1, and others, each on a link of its own to it.
type star struct {
	t    *testing.T
	hub  string
	ends []string
}

func newStar(t *testing.T, ends int) *star {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces take root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip(err)
	}
	n := &star{t: t, hub: fmt.Sprintf("myriad-%d-hub", os.Getpid())}
	n.namespace(n.hub)
	n.ip("-n", n.hub, "addr", "add", "10.78.0.1/32", "dev", "lo")
	for i := range ends {
		end, link := fmt.Sprintf("myriad-%d-%d", os.Getpid(), i), fmt.Sprint("end", i)
		n.namespace(end)
		n.ends = append(n.ends, end)
		n.ip("link", "add", link, "netns", n.hub, "type", "veth", "peer", "name", "eth0", "netns", end)
		for in, on := range map[string]string{n.hub: link, end: "eth0"} {
			host := map[string]int{n.hub: 1, end: 2}[in]
			n.ip("-n", in, "addr", "add", fmt.Sprintf("10.78.%d.%d/24", i+1, host), "dev", on)
			n.ip("-n", in, "link", "set", on, "up")
		}
		n.ip("-n", end, "route", "add", "default", "via", fmt.Sprintf("10.78.%d.1", i+1))
	}
	return n
}

func (n *star) namespace(name string) {
	n.t.Helper()
	n.ip("netns", "add", name)
	n.t.Cleanup(func() { n.ip("netns", "del", name) })
	n.ip("-n", name, "link", "set", "lo", "up")
}

func (n *star) ip(args ...string) {
	n.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		n.t.Fatalf("ip %v: %v: %s", args, err, out)
	}
}

// in has a command run in a namespace, as the process that it would be otherwise.
func (n *star) in(name string, cmd *exec.Cmd) *exec.Cmd {
	n.t.Helper()
	ip, err := exec.LookPath("ip")
	if err != nil {
		n.t.Fatal(err)
	}
	cmd.Path, cmd.Args = ip, append([]string{"ip", "netns", "exec", name}, cmd.Args...)
	return cmd
}

// background starts a process that the test ends.
func background(t *testing.T, cmd *exec.Cmd) (stdout, stderr *lockedBuffer, wait func() int) {
	t.Helper()
	stdout, stderr = &lockedBuffer{}, &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the exit code says what it returned
	}()
	t.Cleanup(func() { cmd.Process.Kill(); <-ended })
	return stdout, stderr, func() int {
		testkit.Receive(t, ended, "the process's end")
		return cmd.ProcessState.ExitCode()
	}
}

// bars are what a histogram has, value for value.
func bars(t *testing.T, text string) map[int64]int64 {
	t.Helper()
	h, err := hdrhistogram.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[int64]int64)
	for _, bar := range h.Distribution() {
		if bar.Count > 0 {
			all[bar.From] += bar.Count
		}
	}
	return all
}

// latest is the last result that an agent has kept, whose file it takes away.
func latest(t *testing.T, dir string) *load.Result {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%q, %v; want the events of one run", files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	list := events(t, string(text))
	if err := os.Remove(files[0]); err != nil || list[len(list)-1].Result == nil {
		t.Fatal("no result", err)
	}
	return list[len(list)-1].Result
}

// TestAgents has two agents in namespaces of their own load a server in a third. What is merged is exactly
// what both have recorded. Then one of them is killed half-way: it is named, and the run ends with the other.
func TestAgents(t *testing.T) {
	slow(t)
	t.Parallel()
	n := newStar(t, 2)
	const at, nats = "10.78.0.1:9000", "10.78.0.1:4222"
	startProcess(t, n.in(n.hub, process(t, "serve", "--app", "lines", "--addr", at)))
	secret := func(cmd *exec.Cmd, text string) *exec.Cmd {
		cmd.Env = append(cmd.Env, agents.SecretVariable+"="+text)
		return cmd
	}
	dirs := []string{t.TempDir(), t.TempDir()}
	var processes []*exec.Cmd
	for i, name := range []string{"a", "b"} {
		cmd := secret(n.in(n.ends[i], process(t, "agent", "--nats", "nats://"+nats, "--name", name, "--keep", dirs[i], "--allow", "10.78.0.0/24")), "sesame")
		background(t, cmd)
		processes = append(processes, cmd)
	}
	_, liar, _ := background(t, secret(n.in(n.ends[0], process(t, "agent", "--nats", "nats://"+nats, "--name", "liar")), "another"))

	cmd := func(args ...string) *exec.Cmd {
		args = append([]string{"load", "--agents", "2", "--agents-addr", nats, "-c", "200", "--rate", "4k", "--interval", "100ms", "--json"}, args...)
		return secret(n.in(n.hub, process(t, append(args, at)...)), "sesame")
	}
	got := runProcess(t, cmd("-T", "2s"))
	if got.code != 0 {
		t.Fatalf("exit code %d, stderr %s", got.code, got.stderr)
	}
	list := events(t, got.stdout)
	whole := list[len(list)-1].Result
	if whole == nil || whole.Connected != 200 || len(whole.Agents) != 2 || whole.Latency.Count < 7000 {
		t.Fatalf("%+v; want 200 connections of two agents, and 8,000 latencies", whole)
	}
	merged, recorded := bars(t, whole.Histogram), int64(0)
	for i, dir := range dirs {
		r := latest(t, dir)
		if r.Connected != 100 {
			t.Errorf("agent %d had %d connections, want 100", i, r.Connected)
		}
		for value, count := range bars(t, r.Histogram) {
			merged[value] -= count
			recorded += count
		}
	}
	for value, left := range merged {
		if left != 0 {
			t.Errorf("%d latencies of %v more are merged than the agents have recorded", left, time.Duration(value))
		}
	}
	if recorded != whole.Latency.Count {
		t.Errorf("the agents have recorded %d latencies, and %d are merged", recorded, whole.Latency.Count)
	}
	if !strings.Contains(got.stderr, "a client from 10.78.1.2 is refused: its token is wrong or missing") || !strings.Contains(liar.String(), "the token is wrong") {
		t.Errorf("the coordinator says %q and the agent with another secret %q; want both to say that the token is wrong", got.stderr, liar)
	}

	stdout, stderr, wait := background(t, cmd("-T", "8s"))
	testkit.WaitFor(t, "the traffic", func() bool { return strings.Contains(stdout.String(), `"phase":"measuring"`) })
	if err := processes[1].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if code := wait(); code != 1 || !strings.Contains(stderr.String(), "agent b is lost, with 100 of 200 connections: not heard of for") {
		t.Errorf("exit code %d, stderr %q; want 1, and the agent that is lost", code, stderr)
	}
	list = events(t, stdout.String())
	rest, alone := list[len(list)-1].Result, latest(t, dirs[0])
	if rest == nil || rest.Connected != 100 || rest.Connections != 200 || rest.Answered != alone.Answered || rest.Histogram != alone.Histogram {
		t.Errorf("%+v; want what agent a has seen", rest)
	}
	for _, a := range rest.Agents {
		if (a.Lost != "") != (a.Name == "b") {
			t.Errorf("%+v; want b to be lost, and no other", a)
		}
	}
}

// TestLocalAgents has processes of this machine do the load; they end with it, however it ends.
func TestLocalAgents(t *testing.T) {
	slow(t)
	t.Parallel()
	s := startServer(t, "serve", "--app", "lines")
	got := runProcess(t, process(t, "load", "--agents", "local:2", "-c", "10", "--messages", "5", "--json", s.addr))
	list := events(t, got.stdout)
	if r := list[len(list)-1].Result; got.code != 0 || r == nil || r.Answered != 50 || len(r.Agents) != 2 {
		t.Errorf("exit code %d, %s, %+v; want 50 answers by two agents", got.code, got.stderr, r)
	}
	got = runProcess(t, process(t, "hold", "--agents", "local:2", "-n", "10", "--check", "-T", "100ms", s.addr))
	if got.code != 0 || !strings.Contains(got.stdout, "held: 10 connections") || !strings.Contains(got.stdout, "10 of 10 connections answered") {
		t.Errorf("hold: exit code %d, %s", got.code, got.says())
	}
	for _, how := range []struct {
		name string
		sig  syscall.Signal
		all  bool // the agents get it too, as from a terminal
		code int
	}{{"ended", syscall.SIGTERM, false, 1}, {"Ctrl-C", syscall.SIGINT, true, 1}, {"killed", syscall.SIGKILL, false, -1}} {
		cmd := process(t, "load", "--agents", "local:2", "-c", "10", "-T", "1h", "--json", s.addr)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		stdout, stderr, wait := background(t, cmd)
		testkit.WaitFor(t, "the traffic", func() bool { return strings.Contains(stdout.String(), `"phase":"measuring"`) })
		agents := childrenOf(t, cmd.Process.Pid)
		if len(agents) != 2 {
			t.Fatalf("%s: %d agents, want 2", how.name, len(agents))
		}
		pid := cmd.Process.Pid
		if how.all {
			pid = -pid
		}
		if err := syscall.Kill(pid, how.sig); err != nil {
			t.Fatal(err)
		}
		if code := wait(); code != how.code {
			t.Errorf("%s: exit code %d, stderr %q; want %d", how.name, code, stderr, how.code)
		}
		if how.code == 1 {
			var last load.Event
			lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
			if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.Result == nil || !last.Result.Interrupted || last.Result.Connected != 10 {
				t.Errorf("%s: %v, %+v; want what there was until then", how.name, err, last.Result)
			}
		}
		for _, agent := range agents {
			testkit.WaitFor(t, how.name+": the agents end", func() bool { return syscall.Kill(agent, 0) != nil })
		}
	}
}

// TestAgentsEncrypted has the coordinator's own server encrypt what is said. An agent that does not
// trust its certificate says so, and takes no part.
func TestAgentsEncrypted(t *testing.T) {
	cert, key := certificate(t)
	s := serveHere(t, "serve --app lines")
	stdout, stderr, wait := background(t, process(t, "load", "--agents", "1", "--agents-addr", "127.0.0.1:0", "--agents-cert", cert, "--agents-key", key, "-c", "2", "--messages", "3", s.addr))
	var at string
	testkit.WaitFor(t, "the server's address", func() bool {
		_, rest, found := strings.Cut(stdout.String(), "waiting on tls://")
		at, _, _ = strings.Cut(rest, " ")
		return found && at != ""
	})
	agent := func(flags ...string) (*lockedBuffer, func() int) {
		_, says, wait := background(t, process(t, append([]string{"agent", "--once", "--nats", "tls://" + at}, flags...)...))
		return says, wait
	}
	doubts, _ := agent("--name", "doubts")
	testkit.WaitFor(t, "an agent that does not trust the certificate", func() bool {
		return strings.Contains(doubts.String(), "certificate signed by unknown authority")
	})
	_, trusts := agent("--nats-ca", cert)
	if code := wait(); code != 0 {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if code := trusts(); code != 0 {
		t.Errorf("the agent ended with %d after its run", code)
	}
}

// TestAgentsMeetElsewhere has both sides meet at a NATS server with TLS that is nobody's of the two.
func TestAgentsMeetElsewhere(t *testing.T) {
	cert, key := certificate(t)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	server, err := natsd.Start(natsd.Config{Addr: "127.0.0.1:0", TLS: &tls.Config{Certificates: []tls.Certificate{pair}}})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	at := []string{"--nats", "tls://" + server.Addr().String(), "--nats-ca", cert}
	_, _, wait := background(t, process(t, append([]string{"agent", "--once"}, at...)...))
	s := serveHere(t, "serve --app lines")
	got := invoke(t, append([]string{"load", "--agents", "1", "-c", "2", "--messages", "3", s.addr}, at...)...)
	if got.code != 0 || !strings.Contains(got.stdout, "answered") {
		t.Errorf("exit code %d, %s", got.code, got.says())
	}
	if code := wait(); code != 0 {
		t.Errorf("the agent ended with %d after its run", code)
	}
}
