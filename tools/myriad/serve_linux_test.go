package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

// startProcessGroup runs "myriad serve --app lines" in its own process group, as a terminal does.
func startProcessGroup(t *testing.T, args ...string) *server {
	t.Helper()
	cmd := newCommandProcess(t, append([]string{"serve", "--app", "lines", "--addr", "127.0.0.1:0"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return startProcess(t, cmd)
}

func (s *server) signalGroup(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(-s.Process.Pid, sig); err != nil {
		t.Fatal(err)
	}
}

// dialWithHalfMessage returns a connection that has sent half a message.
func dialWithHalfMessage(t *testing.T, addr string) net.Conn {
	t.Helper()
	c := dial(t, addr)
	sendAndExpect(t, c, "whole\nhalf", "whole\n")
	return c
}

// finishHalfMessage sends the other half and expects its answer and the end.
func finishHalfMessage(t *testing.T, c net.Conn) {
	t.Helper()
	io.WriteString(c, " and half\n")
	if answer, err := io.ReadAll(c); err != nil || string(answer) != "half and half\n" {
		t.Errorf("the message that had begun: %q, %v", answer, err)
	}
	c.Close()
}

// waitUntilRefused waits until all processes have closed their listeners.
func waitUntilRefused(t *testing.T, addr string) {
	t.Helper()
	testkit.WaitFor(t, "no new connections are taken", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
}

// A terminal sends SIGINT or SIGHUP to the supervisor and its workers, a service manager
// SIGTERM: the drain is announced once, and nothing is cut off.
func TestSignals(t *testing.T) {
	for sig, args := range map[syscall.Signal][]string{
		syscall.SIGINT: {"--processes", "2"}, syscall.SIGTERM: {"--model", "goroutine"}, syscall.SIGHUP: {"--processes", "2"},
	} {
		s := startProcessGroup(t, args...)
		c := dialWithHalfMessage(t, s.addr)
		s.signalGroup(t, sig)
		waitUntilRefused(t, s.addr)
		finishHalfMessage(t, c)
		code, said := s.stop(), s.stderr.String()
		if code != 0 || strings.Count(said, "draining") != 1 || strings.Count(said, "\n") != 1 {
			t.Errorf("%v: exit code %d, stderr %q; want 0 and one line, of draining", sig, code, said)
		}
	}
}

// A connection in the middle of a message holds up the drain, until the second signal.
func TestSecondSignal(t *testing.T) {
	for _, args := range [][]string{nil, {"--processes", "2"}} {
		s := startProcessGroup(t, args...)
		dialWithHalfMessage(t, s.addr)
		s.signalGroup(t, syscall.SIGINT)
		waitUntilRefused(t, s.addr) // the workers drain, and have said what they have open
		s.signalGroup(t, syscall.SIGINT)
		if code := s.stop(); code != 1 || !strings.Contains(s.stderr.String(), "at once") {
			t.Errorf("%q: exit code %d, stderr %q; want 1 and word of the cut", args, code, s.stderr)
		}
	}
}

// A closed terminal also ends the reader of standard error and sends SIGHUP more than once. Running
// requests still complete.
func TestHangupDrains(t *testing.T) {
	cmd := newCommandProcess(t, "serve", "--app", "lines", "--addr", "127.0.0.1:0")
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = writer
	s := startProcess(t, cmd)
	writer.Close()
	c := dialWithHalfMessage(t, s.addr)
	reader.Close()
	s.Process.Signal(syscall.SIGHUP)
	waitUntilRefused(t, s.addr)
	s.Process.Signal(syscall.SIGHUP)
	finishHalfMessage(t, c)
	if code := s.stop(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// With TLS a hang-up of the whole group, or of the first process, reloads the certificate.
func TestHangupReloads(t *testing.T) {
	shown := func(addr string) string {
		c, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return string(c.ConnectionState().PeerCertificates[0].Raw)
	}
	for _, args := range [][]string{nil, {"--processes", "2"}} {
		cert, key := writeCertificate(t)
		s := startProcessGroup(t, append(args, "--tls-cert", cert, "--tls-key", key)...)
		before, children := shown(s.addr), childPIDs(t, s.Process.Pid)
		otherCert, otherKey := writeCertificate(t)
		if err := errors.Join(os.Rename(otherCert, cert), os.Rename(otherKey, key)); err != nil {
			t.Fatal(err)
		}
		said := func(what string) func() bool {
			return func() bool { return strings.Count(s.stderr.String(), what) == 1 }
		}
		s.signalGroup(t, syscall.SIGHUP)
		testkit.WaitFor(t, "word of the reload", said("hangup: certificate "+cert+" reloaded, it expires "))
		testkit.WaitFor(t, "the new certificate", func() bool { return shown(s.addr) != before })
		if err := os.WriteFile(key, []byte("broken"), 0o600); err != nil {
			t.Fatal(err)
		}
		s.Process.Signal(syscall.SIGHUP)
		testkit.WaitFor(t, "word of a failure", said("hangup: the certificate can't be reloaded"))
		if now := childPIDs(t, s.Process.Pid); !slices.Equal(now, children) {
			t.Errorf("worker processes %v, before %v; want the same", now, children)
		}
		if code := s.signalAndWait(t, syscall.SIGTERM); code != 0 {
			t.Errorf("exit code %d, stderr %q", code, s.stderr)
		}
	}
}

// wrapInShell lets a shell run first and then exec the command.
func wrapInShell(cmd *exec.Cmd, first string) *exec.Cmd {
	cmd.Args = append([]string{"sh", "-c", first + ` && exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	return cmd
}

// serveWithFDLimit returns "myriad serve" with a descriptor limit.
func serveWithFDLimit(t *testing.T, limit, args string) *exec.Cmd {
	t.Helper()
	return wrapInShell(newCommandProcess(t, append([]string{"serve", "--addr", "127.0.0.1:0"}, strings.Fields(args)...)...), "ulimit -n "+limit)
}

// The limit of descriptors is one of each process and, with loops, of each table: so
// processes and loops hold more connections than it says. Worker processes with several tables that end leave their
// listeners to the next ones.
func TestDescriptorLimits(t *testing.T) {
	skipIfShort(t)
	for _, processes := range []string{"1", "3"} {
		got := runToEnd(t, serveWithFDLimit(t, "300", "--model goroutine --max-conns 600 --processes "+processes))
		if got.code != 2 || !strings.Contains(got.stderr, "RLIMIT_NOFILE") {
			t.Errorf("600 connections with %s processes of 300 descriptors: %+v; want 2 and the limit", processes, got)
		}
	}
	for _, c := range []struct{ limit, serve, conns string }{
		{"300", "--model goroutine --max-conns 600 --processes 4", "400"}, // each of four may have 150; 400 are spread by chance
		{"1000", "--model epoll --max-conns 1500", "1500"},                // a table of 1,000 has room for some 400
		{"1000", "--model epoll --max-conns 4000 --processes 2", "100"},
	} {
		s := startProcess(t, serveWithFDLimit(t, c.limit, c.serve))
		if strings.Contains(c.serve, "4000") {
			for _, pid := range childPIDs(t, s.Process.Pid) {
				failOnError(t, syscall.Kill(pid, syscall.SIGTERM))
				testkit.WaitFor(t, "another worker takes its place", func() bool {
					now := childPIDs(t, s.Process.Pid)
					return len(now) == 2 && !slices.Contains(now, pid)
				})
			}
		}
		if got := invokeLine(t, "load -c "+c.conns+" --messages 2 "+s.addr); got.code != 0 {
			t.Errorf("%s: load: exit code %d, %s", c.serve, got.code, got.output())
		}
		if code := s.signalAndWait(t, os.Interrupt); code != 0 {
			t.Errorf("%s: exit code %d, stderr %q", c.serve, code, s.stderr)
		}
	}
}

// childPIDs returns the child processes of pid.
func childPIDs(t *testing.T, pid int) (pids []int) {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		text, _ := os.ReadFile(list) // of a thread that has ended there is none
		for _, word := range strings.Fields(string(text)) {
			child, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, child)
		}
	}
	return pids
}

// Worker processes serve with a pool each, their supervisor says so once, its metrics have
// what Go's runtime says of them, and its page controls them.
func TestProcesses(t *testing.T) {
	skipIfShort(t)
	s := startServer(t, "serve", "--app", "lines", "--processes", "2", "--workers", "adaptive", "--max-conns", "30", "--model", "epoll",
		"--admin", "127.0.0.1:0", "--admin-control", "--admin-token-file", writeTokenFile(t))
	if ready := s.stdout.String(); !strings.HasSuffix(ready, " (model epoll, loops 2, processes 2, at most 30 connections)\n") || strings.Count(ready, "\n") != 2 {
		t.Errorf("it said %q, want where its page is and where it serves", ready)
	}
	s.waitForPage(t, "/metrics", "\nmyriad_worker_goroutines ([4-9]|[1-9][0-9])")
	s.waitForPage(t, "/metrics", "\nmyriad_loop_lag_seconds_count [1-9]")
	if got := invokeLine(t, "serve --processes 2 --addr "+s.addr); got.code != 1 || !strings.Contains(got.stderr, "address already in use") {
		t.Errorf("a second one: %+v; want 1 and the cause", got)
	}
	checkAdminControl(t, s, secret)
	if code := s.stop(); code != 0 {
		t.Errorf("after the drain: exit code %d; stderr: %s", code, s.stderr)
	}
}

// listenForNotify listens at a NOTIFY_SOCKET as systemd does.
func listenForNotify(t *testing.T) (socket string, manager *net.UnixConn) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	failOnError(t, err)
	t.Cleanup(func() { manager.Close() })
	return socket, manager
}

// soon is when all is there that has been said already.
const soon = 10 * time.Millisecond

// readNotification returns a notification that arrives within timeout, or "".
func readNotification(manager *net.UnixConn, timeout time.Duration) string {
	b := make([]byte, 100)
	manager.SetReadDeadline(time.Now().Add(timeout))
	n, _ := manager.Read(b)
	return string(b[:n])
}

// The service manager is notified once when the server serves and once when it stops, whatever
// caused the stop, and never by worker processes.
func TestServiceManager(t *testing.T) {
	for _, args := range [][]string{nil, {"--processes", "2"}} {
		socket, manager := listenForNotify(t)
		cmd := newCommandProcess(t, append([]string{"serve", "--addr", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--admin-control", "--admin-token-file", writeTokenFile(t)}, args...)...)
		cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+socket)
		s := startProcess(t, cmd)
		if got := readNotification(manager, patience); got != "READY=1" {
			t.Errorf("it has heard %q, want READY=1", got)
		}
		s.postControl(t, "drain", secret)
		if code := s.stop(); code != 0 {
			t.Errorf("exit code %d; stderr: %s", code, s.stderr)
		}
		if first, second := readNotification(manager, patience), readNotification(manager, soon); first != "STOPPING=1" || second != "" {
			t.Errorf("then it has heard %q and %q, want STOPPING=1 and nothing", first, second)
		}
	}
}

// After a kill the address is free at once, also where a ring watched it.
func TestKilledServerLeavesAddress(t *testing.T) {
	for _, model := range tcp.Models() {
		addr := "127.0.0.1:0"
		for range 2 {
			s := startProcess(t, newCommandProcess(t, "serve", "--app", "wait", "--wait", "1m", "--model", model, "--addr", addr))
			addr = s.addr
			for range 20 {
				io.WriteString(dial(t, addr), "busy\n")
			}
			s.signalAndWait(t, os.Kill)
		}
	}
}
