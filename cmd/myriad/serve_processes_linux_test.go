package main

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startGroup runs `myriad serve --app lines --processes 2` in a process group of
// its own, as a terminal does.
func startGroup(t *testing.T) *server {
	t.Helper()
	cmd := command(t, "serve", "--app", "lines", "--processes", "2", "--addr", "127.0.0.1:0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return startCommand(t, cmd)
}

// halfMessage is a connection that has sent half a message.
func halfMessage(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	io.WriteString(c, "whole\nhalf")
	if _, err := io.ReadFull(c, make([]byte, len("whole\n"))); err != nil {
		t.Fatal(err)
	}
	return c
}

// untilRefused waits until all processes have closed their listeners.
func untilRefused(t *testing.T, addr string) {
	t.Helper()
	eventually(t, "no new connections are taken", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
}

// A terminal sends SIGINT to the supervisor and its workers, a service manager
// SIGTERM: the drain is announced once, and nothing is cut off.
func TestSignalToGroup(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		s := startGroup(t)
		c := halfMessage(t, s.addr)
		if err := syscall.Kill(-s.Process.Pid, sig); err != nil {
			t.Fatal(err)
		}
		untilRefused(t, s.addr)
		io.WriteString(c, " and half\n")
		if answer, err := io.ReadAll(c); err != nil || string(answer) != "half and half\n" {
			t.Errorf("%v: the message that had begun: %q, %v", sig, answer, err)
		}
		c.Close()
		if err := s.Wait(); err != nil {
			t.Errorf("%v: it ended with %v, stderr %q; want exit code 0", sig, err, s.stderr)
		}
		if said := s.stderr.String(); strings.Count(said, "draining") != 1 || strings.Count(said, "\n") != 1 {
			t.Errorf("%v: stderr %q, want one line, of draining", sig, said)
		}
	}
}

func TestSecondSignalToGroup(t *testing.T) {
	s := startGroup(t)
	halfMessage(t, s.addr)
	syscall.Kill(-s.Process.Pid, syscall.SIGINT)
	untilRefused(t, s.addr) // the workers drain, and have said what they have open
	syscall.Kill(-s.Process.Pid, syscall.SIGINT)
	_ = s.Wait() // the exit code says what it returned
	if code := s.ProcessState.ExitCode(); code != 1 || strings.Count(s.stderr.String(), "at once") < 1 {
		t.Errorf("exit code %d, stderr %q; want 1 and word of the cut", code, s.stderr)
	}
}

// Workers whose supervisor is killed drain and end: nothing holds the address
// or the standard error any more.
func TestSupervisorKilled(t *testing.T) {
	s := startGroup(t)
	c := halfMessage(t, s.addr)
	s.Process.Signal(os.Kill)
	io.WriteString(c, " and half\n")
	if answer, err := io.ReadAll(c); err != nil || string(answer) != "half and half\n" {
		t.Errorf("the message that had begun: %q, %v", answer, err)
	}
	c.Close()
	_ = s.Wait() // until the last worker has closed its standard error
	eventually(t, "the group is gone", func() bool {
		return errors.Is(syscall.Kill(-s.Process.Pid, 0), syscall.ESRCH)
	})
	l, err := net.Listen("tcp", s.addr)
	if err != nil {
		t.Fatalf("the address is held: %v", err)
	}
	l.Close()
}

func TestProcessesAddressInUse(t *testing.T) {
	s := startGroup(t)
	got := invoke(t, "serve", "--processes", "2", "--addr", s.addr)
	if got.code != 1 || !strings.Contains(got.stderr, "address already in use") || !strings.Contains(got.stderr, "--addr") {
		t.Errorf("exit code %d, stderr %q; want 1, the cause, and what to do", got.code, got.stderr)
	}
}

// The limit of descriptors is one of each process, so several hold more
// connections than one can.
func TestProcessesDescriptors(t *testing.T) {
	limited := func(args ...string) *server {
		cmd := command(t, append([]string{"serve"}, args...)...)
		cmd.Args = append([]string{"sh", "-c", `ulimit -n 300 && exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
		cmd.Path = "/bin/sh"
		s := &server{Cmd: cmd, stderr: &lockedBuffer{}}
		s.Stderr = s.stderr
		return s
	}
	for _, processes := range []string{"1", "3"} {
		s := limited("--max-conns", "600", "--processes", processes)
		_ = s.Run() // the exit code says what it returned
		if code := s.ProcessState.ExitCode(); code != 2 || !strings.Contains(s.stderr.String(), "RLIMIT_NOFILE") {
			t.Errorf("600 connections with %s processes of 300 descriptors: exit code %d, stderr %q; want 2 and the limit",
				processes, code, s.stderr)
		}
	}
	// Each of four may have 150; 400 are spread by chance.
	s := startCommand(t, limited("--max-conns", "600", "--processes", "4", "--addr", "127.0.0.1:0").Cmd)
	if got := invoke(t, "load", "-c", "400", "--messages", "2", s.addr); got.code != 0 {
		t.Errorf("load: exit code %d, %s%s", got.code, got.stdout, got.stderr)
	}
	if code := s.end(t, os.Interrupt); code != 0 {
		t.Errorf("exit code %d, stderr %q", code, s.stderr)
	}
}

func TestProcessesReadyLine(t *testing.T) {
	cmd := command(t, "serve", "--processes", "3", "--max-conns", "30", "--model", "goroutine", "--addr", "127.0.0.1:0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 256)
	n, err := out.Read(line)
	if got := string(line[:n]); err != nil || !strings.HasSuffix(got, " (model goroutine, processes 3, at most 30 connections)\n") {
		t.Errorf("it said %q, %v", got, err)
	}
	cmd.Process.Signal(os.Interrupt)
	if rest, err := io.ReadAll(out); err != nil || len(rest) > 0 {
		t.Errorf("then it said %q, %v; want nothing, from the workers neither", rest, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
