package main

import (
	"crypto/tls"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/hub/natsd"
	"github.com/myriad-go/myriad/internal/testkit"
)

// TestLocalAgents checks that processes of this machine generate the load.
func TestLocalAgents(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	s := startServer(t, "serve", "--app", "lines")
	got := runToEnd(t, newCommandProcess(t, "load", "--agents", "local:2", "-c", "10", "--messages", "5", "--json", s.addr))
	if r := lastResult(t, got.stdout); got.code != 0 || r == nil || r.Answered != 50 || len(r.Agents) != 2 {
		t.Errorf("exit code %d, %s, %+v; want 50 answers by two agents", got.code, got.stderr, r)
	}
	got = runToEnd(t, newCommandProcess(t, "hold", "--agents", "local:2", "-n", "10", "--check", "-T", "100ms", s.addr))
	got.checkOutcome(t, "hold", 0, "held: 10 connections", "10 of 10 connections answered")
}

// TestLocalAgentsStop checks that local agents stop with their coordinator, also if it is killed.
func TestLocalAgentsStop(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	s := startServer(t, "serve", "--app", "lines")
	for sig, want := range map[syscall.Signal]int{syscall.SIGINT: 1, syscall.SIGKILL: -1} {
		cmd := newCommandProcess(t, "load", "--agents", "local:2", "-c", "10", "-T", "1h", "--json", s.addr)
		cmd.Stderr = new(testkit.Buffer)
		p := testkit.Start(t, cmd)
		p.WaitForOutput(`"phase":"measuring"`)
		agents := childPIDs(t, cmd.Process.Pid)
		p.Signal(sig)
		if code := p.WaitExitCode(); code != want || len(agents) != 2 {
			t.Errorf("%v: exit code %d with %d agents, stderr %q; want %d", sig, code, len(agents), cmd.Stderr, want)
		}
		if r := lastResult(t, p.Output.String()); sig == syscall.SIGINT && (r == nil || !r.Interrupted || r.Connected != 10) {
			t.Errorf("%v: %+v; want what there was until then", sig, r)
		}
		for _, agent := range agents {
			testkit.WaitFor(t, sig.String()+": the agents end", func() bool { return syscall.Kill(agent, 0) != nil })
		}
	}
}

// TestAgentsEncrypted has the coordinator's own server encrypt what is said, and an agent that has the secret and
// trusts its certificate do the load. One that does not trust it, and one with another secret, say so, and take no
// part. Then both meet at a separate NATS server with TLS.
func TestAgentsEncrypted(t *testing.T) {
	cert, key := testkit.WriteCertificate(t)
	s := serveLine(t, "serve --app lines")
	agent := func(secret, at string, flags ...string) *testkit.Process {
		t.Helper()
		cmd := newCommandProcess(t, append([]string{"agent", "--once", "--nats", "tls://" + at}, flags...)...)
		cmd.Env = append(cmd.Env, "MYRIAD_AGENTS_SECRET="+secret)
		return testkit.Start(t, cmd)
	}
	cmd := newCommandProcess(t, "load", "--agents", "1", "--agents-addr", "127.0.0.1:0", "--agents-cert", cert, "--agents-key", key,
		"-c", "2", "--messages", "3", s.addr)
	cmd.Env = append(cmd.Env, "MYRIAD_AGENTS_SECRET=sesame")
	coordinator := testkit.Start(t, cmd)
	at := coordinator.WaitForOutput(`waiting at tls://(\S+) `)[1]
	agent("sesame", at).WaitForOutput("certificate signed by unknown authority")
	agent("another", at, "--nats-ca", cert).WaitForOutput("wrong token")
	coordinator.WaitForOutput("rejected a client from 127.0.0.1: its token is wrong or missing")
	trusts := agent("sesame", at, "--nats-ca", cert)
	if code, agentCode := coordinator.WaitExitCode(), trusts.WaitExitCode(); code != 0 || agentCode != 0 {
		t.Errorf("exit codes %d, and %d of the agent, %s", code, agentCode, coordinator.Output)
	}

	pair, err := tls.LoadX509KeyPair(cert, key)
	testkit.RequireNoError(t, err)
	server, err := natsd.Start(natsd.Config{Addr: "127.0.0.1:0", TLS: &tls.Config{Certificates: []tls.Certificate{pair}}})
	testkit.RequireNoError(t, err)
	defer server.Close()
	there := agent("", server.Addr().String(), "--nats-ca", cert)
	line := "load --agents 1 -c 2 --messages 3 --nats tls://" + server.Addr().String() + " --nats-ca " + cert + " " + s.addr
	invokeLine(t, line).checkOutcome(t, line, 0, "answered")
	if code := there.WaitExitCode(); code != 0 {
		t.Errorf("the agent ended with %d after its run", code)
	}
}
