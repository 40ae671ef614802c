package main

import (
	"crypto/tls"
	"errors"
	"fmt"
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
	testkit.RequireNoError(t, syscall.Kill(-s.Process.Process.Pid, sig))
}

func dialWithHalfMessage(t *testing.T, addr string) *testkit.Conn {
	t.Helper()
	c := testkit.Dial(t, addr)
	sendAndExpect(c, "whole\nhalf", "whole\n")
	return c
}

func finishHalfMessage(c *testkit.Conn) {
	c.Send(" and half\n")
	c.ExpectEOF("half and half\n")
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
// SIGTERM: the drain is announced once, and nothing is cut off. A connection in the middle of a message holds up the
// drain, until the second signal.
func TestSignals(t *testing.T) {
	for sig, args := range map[syscall.Signal][]string{
		syscall.SIGINT: {"--processes", "2"}, syscall.SIGTERM: {"--model", "goroutine"}, syscall.SIGHUP: {"--processes", "2"},
	} {
		for _, second := range []bool{false, true} {
			s := startProcessGroup(t, args...)
			c := dialWithHalfMessage(t, s.addr)
			s.signalGroup(t, sig)
			waitUntilRefused(t, s.addr) // the workers drain, and have said what they have open
			if second {
				s.signalGroup(t, syscall.SIGINT)
				if code := s.stop(); code != 1 || !strings.Contains(s.stderr.String(), "at once") {
					t.Errorf("%v, then another: exit code %d, stderr %q; want 1 and word of the cut", sig, code, s.stderr)
				}
				continue
			}
			finishHalfMessage(c)
			s.checkStop(t)
			if said := s.stderr.String(); strings.Count(said, "shutting down") != 1 || strings.Count(said, "draining") > 1 {
				t.Errorf("%v: stderr %q; want one line of the signal, and at most one of draining", sig, said)
			}
		}
	}
}

// A closed terminal also ends the reader of standard error and sends SIGHUP more than once. Running
// requests still complete.
func TestHangupDrains(t *testing.T) {
	cmd := newCommandProcess(t, "serve", "--app", "lines", "--addr", "127.0.0.1:0")
	reader, writer, err := os.Pipe()
	testkit.RequireNoError(t, err)
	cmd.Stderr = writer
	s := startProcess(t, cmd)
	writer.Close()
	c := dialWithHalfMessage(t, s.addr)
	reader.Close()
	s.Signal(syscall.SIGHUP)
	waitUntilRefused(t, s.addr)
	s.Signal(syscall.SIGHUP)
	finishHalfMessage(c)
	s.checkStop(t)
}

// With TLS a hang-up of the whole group, or of the first process, reloads the certificate.
func TestHangupReloads(t *testing.T) {
	shown := func(addr string) string {
		c := testkit.DialTLS(t, addr, &tls.Config{InsecureSkipVerify: true})
		defer c.Close()
		return string(c.Conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Raw)
	}
	for _, args := range [][]string{nil, {"--processes", "2"}} {
		cert, key := testkit.WriteCertificate(t)
		s := startProcessGroup(t, append(args, "--tls-cert", cert, "--tls-key", key)...)
		before, children := shown(s.addr), childPIDs(t, s.Process.Process.Pid)
		otherCert, otherKey := testkit.WriteCertificate(t)
		testkit.RequireNoError(t, errors.Join(os.Rename(otherCert, cert), os.Rename(otherKey, key)))
		s.signalGroup(t, syscall.SIGHUP)
		s.waitForError(t, "hangup: certificate "+cert+" reloaded; it expires at ")
		testkit.WaitFor(t, "the new certificate", func() bool { return shown(s.addr) != before })
		testkit.RequireNoError(t, os.WriteFile(key, []byte("broken"), 0o600))
		s.Signal(syscall.SIGHUP)
		s.waitForError(t, "hangup: cannot reload the certificate")
		if now := childPIDs(t, s.Process.Process.Pid); !slices.Equal(now, children) {
			t.Errorf("worker processes %v, before %v; want the same", now, children)
		}
		s.Signal(syscall.SIGTERM)
		s.checkStop(t)
		if said := s.stderr.String(); strings.Count(said, "reload") != 2 {
			t.Errorf("each outcome of a reload is said once, not by workers: %s", said)
		}
	}
}

// wrapInShell lets a shell run first and then exec the command.
func wrapInShell(cmd *exec.Cmd, first string) *exec.Cmd {
	cmd.Args = append([]string{"sh", "-c", first + ` && exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	return cmd
}

// Worker processes with several tables of descriptors that end leave their listeners to the next ones.
func TestDescriptorTables(t *testing.T) {
	skipIfShort(t)
	s := startProcess(t, wrapInShell(newCommandProcess(t, "serve", "--addr", "127.0.0.1:0", "--model", "epoll",
		"--max-conns", "4000", "--processes", "2"), "ulimit -n 1000"))
	for _, pid := range childPIDs(t, s.Process.Process.Pid) {
		testkit.RequireNoError(t, syscall.Kill(pid, syscall.SIGTERM))
		testkit.WaitFor(t, "another worker takes its place", func() bool {
			now := childPIDs(t, s.Process.Process.Pid)
			return len(now) == 2 && !slices.Contains(now, pid)
		})
	}
	invokeLine(t, "load -c 100 --messages 2 "+s.addr).checkOutcome(t, "load", 0)
	s.Signal(os.Interrupt)
	s.checkStop(t)
}

func childPIDs(t *testing.T, pid int) (pids []int) {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	testkit.RequireNoError(t, err)
	for _, list := range lists {
		text, _ := os.ReadFile(list) // of a thread that has ended there is none
		for _, word := range strings.Fields(string(text)) {
			child, err := strconv.Atoi(word)
			testkit.RequireNoError(t, err)
			pids = append(pids, child)
		}
	}
	return pids
}

// listenForNotify listens at a NOTIFY_SOCKET as systemd does.
func listenForNotify(t *testing.T) (socket string, manager *net.UnixConn) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	testkit.RequireNoError(t, err)
	t.Cleanup(func() { manager.Close() })
	return socket, manager
}

// readNotifications returns the notifications that have arrived, without their times.
func readNotifications(manager *net.UnixConn) (all []string) {
	b := make([]byte, 100)
	manager.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	for n, err := manager.Read(b); err == nil; n, err = manager.Read(b) {
		said, _, _ := strings.Cut(string(b[:n]), "\nMONOTONIC_USEC=")
		all = append(all, said)
	}
	return all
}

// Worker processes serve with a pool each, their supervisor says so once, its metrics have what Go's runtime says of
// them, and its page controls them. They do not notify the service manager.
func TestProcesses(t *testing.T) {
	skipIfShort(t)
	socket, manager := listenForNotify(t)
	t.Setenv("NOTIFY_SOCKET", socket)
	s := startServer(t, "serve", "--app", "lines", "--processes", "2", "--workers", "adaptive", "--max-conns", "30",
		"--model", "epoll", "--admin", "127.0.0.1:0", "--admin-control", "--admin-token-file", writeTokenFile(t))
	if ready := s.stdout.String(); !strings.HasSuffix(ready, " (model epoll, loops 2, processes 2, at most 30 connections)\n") ||
		strings.Count(ready, "\n") != 2 {
		t.Errorf("it said %q, want where its page is and where it serves", ready)
	}
	s.waitForPage(t, "/metrics", "\nmyriad_worker_goroutines ([4-9]|[1-9][0-9])")
	s.waitForPage(t, "/metrics", "\nmyriad_loop_lag_seconds_count [1-9]")
	invokeLine(t, "serve --processes 2 --addr "+s.addr).checkOutcome(t, "a second one", 1, "address already in use")
	checkAdminControl(t, s, secret)
	s.checkStop(t)
	if heard := readNotifications(manager); !slices.Equal(heard, []string{"READY=1", "STOPPING=1"}) {
		t.Errorf("the manager has heard %q", heard)
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
				testkit.Dial(t, addr).Send("busy\n")
			}
			s.signalAndWait(os.Kill)
		}
	}
}
