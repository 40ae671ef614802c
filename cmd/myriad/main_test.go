package main

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// asMyriad makes the test binary be the command.
const asMyriad = "MYRIAD_TEST_AS_COMMAND"

// patience is how long a command may take, and what is waited for: only a failure takes
// it, and a machine that others keep busy takes a multiple of the seconds of a free one.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(asMyriad) != "" {
		os.Exit(run(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// command is the command with its arguments, ended when the test ends.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	// The race detector would hold up each exit by a second.
	cmd.Env = append(os.Environ(), asMyriad+"=1", "GORACE=atexit_sleep_ms=0")
	cmd.Dir = t.TempDir()
	return cmd
}

// outcome is how a command ended.
type outcome struct {
	code           int
	stdout, stderr string
}

func invoke(t *testing.T, args ...string) outcome {
	t.Helper()
	cmd := command(t, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// server is a command that serves.
type server struct {
	*exec.Cmd
	addr   string
	admin  string // where --admin serves, "" without
	stderr *lockedBuffer
}

// startServer runs a serving command on a free port and waits until it is
// ready.
func startServer(t *testing.T, args ...string) *server {
	t.Helper()
	return startCommand(t, command(t, append(args, "--addr", "127.0.0.1:0")...))
}

// startCommand does so with a command that was prepared.
func startCommand(t *testing.T, cmd *exec.Cmd) *server {
	t.Helper()
	s := &server{Cmd: cmd, stderr: &lockedBuffer{}}
	if s.Stderr == nil {
		s.Stderr = s.stderr
	}
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.ProcessState == nil {
			s.Process.Kill()
			s.Wait()
		}
	})
	lines := bufio.NewScanner(out)
	for s.addr == "" {
		if !lines.Scan() {
			t.Fatalf("no ready line: %v; stderr: %s", lines.Err(), s.stderr)
		}
		before, after, _ := strings.Cut(lines.Text(), " on ")
		switch {
		case strings.Contains(before, "serving"):
			s.addr, _, _ = strings.Cut(after, " ")
		case strings.Contains(before, "metrics"):
			s.admin = strings.TrimSuffix(after, "/")
		}
	}
	return s
}

// end sends a signal and waits; it returns the exit code.
func (s *server) end(t *testing.T, sig os.Signal) int {
	t.Helper()
	if err := s.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(); err != nil && s.ProcessState == nil {
		t.Fatal(err)
	}
	return s.ProcessState.ExitCode()
}

// lockedBuffer is a buffer that a process writes while the test reads.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestWrongUse(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		says []string
	}{
		{[]string{"frobnicate"}, 2, []string{`"frobnicate"`, "serve", "load", "bench"}},
		{[]string{"serve", "--model", "threads"}, 2, []string{`"threads"`, "goroutine"}},
		{[]string{"serve", "--app", "ftp"}, 2, []string{`"ftp"`, "echo, lines, sha256, sha, sink"}},
		{[]string{"serve", "--max-conns", "-1"}, 2, []string{"--max-conns is -1", "expected 0"}},
		{[]string{"serve", "--max-conns", "many"}, 2, []string{`"many"`, "int"}},
		{[]string{"serve", "--loops", "-2"}, 2, []string{"--loops is -2"}},
		{[]string{"serve", "--max-conns-per-source", "-1"}, 2, []string{"--max-conns-per-source is -1", "expected 0"}},
		{[]string{"serve", "--idle-timeout", "soon"}, 2, []string{"--idle-timeout", `"soon"`, "1.5s"}},
		{[]string{"serve", "--idle-timeout", "-1s"}, 2, []string{"--idle-timeout is -1s", "Never"}},
		{[]string{"serve", "--deny", "10.0.0.0/33"}, 2, []string{`--deny is "10.0.0.0/33"`, "10.0.0.0/8"}},
		{[]string{"serve", "--slow-consumer", "wait"}, 2, []string{`"wait"`, "close or drop"}},
		{[]string{"serve", "--heartbeat", "1ms"}, 2, []string{"--heartbeat is 1ms", "at least 100ms"}},
		{[]string{"serve", "--heartbeat-missed", "3"}, 2, []string{"--heartbeat-missed", "with --heartbeat"}},
		{[]string{"serve", "--tls-cert", "cert.pem"}, 2, []string{"--tls-cert", "both"}},
		{[]string{"serve", "--tls-client-ca", "ca.pem"}, 2, []string{"--tls-client-ca", "--tls-cert"}},
		{[]string{"serve", "--tls-cert", "/no/cert", "--tls-key", "/no/key"}, 2, []string{"/no/cert"}},
		{[]string{"serve", "--memory-limit", "half"}, 2, []string{`--memory-limit is "half"`, "auto"}},
		{[]string{"serve", "--addr", "systemd"}, 1, []string{"LISTEN_FDS"}},
		{[]string{"serve", "--network", "udp"}, 2, []string{`"udp"`, "unix"}},
		{[]string{"serve", "--network", "unix", "--addr", "/no/such/directory/socket"}, 2, []string{"/no/such/directory/socket"}},
		{[]string{"serve", "--network", "unix", "--processes", "2"}, 2, []string{"unix", "0 or 1"}},
		{[]string{"serve", "--admin", "127.0.0.1:http-but-not"}, 2, []string{"--admin is", "HOST:PORT"}},
		{[]string{"serve", "--addr", "127.0.0.1:7", "--admin", ":7"}, 2, []string{`--addr is "127.0.0.1:7" and --admin is ":7": both would listen on one port`}},
		{[]string{"serve", "--nonsense"}, 2, []string{"--nonsense"}},
		{[]string{"serve", "extra"}, 2, []string{"extra"}},
		{[]string{"serve", "--addr", "127.0.0.1:http-but-not"}, 2, []string{"--addr is", "HOST:PORT"}},
		{[]string{"load"}, 2, []string{"HOST:PORT"}},
		{[]string{"load", "-c", "-5", "127.0.0.1:1"}, 2, []string{"-5"}},
		{[]string{"load", "--model", "threads", "127.0.0.1:1"}, 2, []string{`"threads"`, "goroutine"}},
		{[]string{"load", "-c", "60000000", "127.0.0.1:1"}, 2, []string{"RLIMIT_NOFILE", "ulimit -n"}},
		{[]string{"load", "-c", "1", "--duration", "soon", "127.0.0.1:1"}, 2, []string{`"soon"`, "1.5s"}},
		{[]string{"load", "-c", "2", "--duration", "100ms", "127.0.0.1:1"}, 1, []string{"connection refused"}},
		{[]string{"bench", "slow"}, 2, []string{`"slow"`, "quick"}},
		{[]string{"bench", "quick", "--rounds", "-1"}, 2, []string{"-1"}},
		{[]string{"plain", "--app", "ftp"}, 2, []string{`"ftp"`, "echo"}},
	} {
		got := invoke(t, c.args...)
		name := "myriad " + strings.Join(c.args, " ")
		if got.code != c.code {
			t.Errorf("%s: exit code %d, want %d; stderr: %s", name, got.code, c.code, got.stderr)
		}
		for _, word := range c.says {
			if !strings.Contains(got.stdout+got.stderr, word) {
				t.Errorf("%s: the answer %q does not say %q", name, got.stderr, word)
			}
		}
	}
}

func TestLoad(t *testing.T) {
	s := startServer(t, "serve", "--app", "lines")
	got := invoke(t, "load", "-c", "20", "--duration", "200ms", "-m", "ping\n", s.addr)
	if got.code != 0 || !strings.Contains(got.stdout, "20 of 20") || got.stderr != "" {
		t.Errorf("load: exit code %d, stdout %q, stderr %q; want 0, all 20 connected, and no noise off a terminal", got.code, got.stdout, got.stderr)
	}
}

// An answer that differs from what was sent must be seen.
func TestLoadSeesWrongAnswers(t *testing.T) {
	s := startServer(t, "serve", "--app", "sha256")
	got := invoke(t, "load", "-c", "2", "--messages", "1", "-m", "ping\n", s.addr)
	if got.code != 1 || !strings.Contains(got.stdout+got.stderr, "ping") {
		t.Errorf("load against a server that does not echo: exit code %d, stdout %q, stderr %q; want 1 and what was expected", got.code, got.stdout, got.stderr)
	}
}

func TestPlain(t *testing.T) {
	s := startServer(t, "plain", "--app", "lines")
	if got := invoke(t, "load", "-c", "2", "--messages", "3", s.addr); got.code != 0 {
		t.Errorf("load against plain: exit code %d, stderr %q", got.code, got.stderr)
	}
}

func TestBench(t *testing.T) {
	got := invoke(t, "bench", "quick", "--rounds", "1", "--duration", "100ms", "--only", "echo-100/")
	if got.code != 0 {
		t.Fatalf("bench: exit code %d, stderr %s", got.code, got.stderr)
	}
	for _, word := range []string{"net", "goroutine", "epoll", "report in bench-quick-"} {
		if !strings.Contains(got.stdout+got.stderr, word) {
			t.Errorf("the report does not say %q:\n%s", word, got.stdout)
		}
	}
}

func TestHelp(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"--help", "serve"}, {"serve --help", "--model"}, {"load --help", "--pipeline"}, {"bench --help", "quick"},
		{"bench quick --help", "--subject"}, {"plain --help", "--app"}, {"--version", "go1."}, {"version", "go1."}, {"help bench quick", "quick"},
	} {
		if got := invoke(t, strings.Fields(c.args)...); got.code != 0 || !strings.Contains(got.stdout, c.says) {
			t.Errorf("myriad %s: exit code %d, does not say %q:\n%s", c.args, got.code, c.says, got.stdout)
		}
	}
}
