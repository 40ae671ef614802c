package main

import (
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

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/internal/await"
	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/lab"
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
	await.True(t, "no new connections are taken", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
}

// A terminal sends SIGINT or SIGHUP to the supervisor and its workers, a service manager
// SIGTERM: the drain is announced once, and nothing is cut off.
func TestSignalToGroup(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
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
	await.True(t, "the group is gone", func() bool {
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

// limited is `myriad serve` with a limit of descriptors.
func limited(t *testing.T, limit string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := command(t, append([]string{"serve"}, args...)...)
	cmd.Args = append([]string{"sh", "-c", "ulimit -n " + limit + ` && exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	return cmd
}

// The limit of descriptors is one of each process, so several hold more
// connections than one can.
func TestProcessesDescriptors(t *testing.T) {
	for _, processes := range []string{"1", "3"} {
		s := &server{Cmd: limited(t, "300", "--model", "goroutine", "--max-conns", "600", "--processes", processes), stderr: &lockedBuffer{}}
		s.Stderr = s.stderr
		_ = s.Run() // the exit code says what it returned
		if code := s.ProcessState.ExitCode(); code != 2 || !strings.Contains(s.stderr.String(), "RLIMIT_NOFILE") {
			t.Errorf("600 connections with %s processes of 300 descriptors: exit code %d, stderr %q; want 2 and the limit",
				processes, code, s.stderr)
		}
	}
	// Each of four may have 150; 400 are spread by chance.
	holds(t, limited(t, "300", "--model", "goroutine", "--max-conns", "600", "--processes", "4", "--addr", "127.0.0.1:0"), "400")
}

// holds starts a server that is to hold so many connections, and exchanges two
// messages on each.
func holds(t *testing.T, cmd *exec.Cmd, conns string) {
	t.Helper()
	s := startCommand(t, cmd)
	if got := invoke(t, "load", "-c", conns, "--messages", "2", s.addr); got.code != 0 {
		t.Errorf("load: exit code %d, %s%s", got.code, got.stdout, got.stderr)
	}
	if code := s.end(t, os.Interrupt); code != 0 {
		t.Errorf("exit code %d, stderr %q", code, s.stderr)
	}
}

// The limit of descriptors is one of each table, so loops with a table each hold
// more connections than it says, in one process and in several.
func TestShards(t *testing.T) {
	for _, model := range myriad.Models()[1:] { // the first has no loops
		// A table of 1,000 has room for some 400.
		holds(t, limited(t, "1000", "--model", model, "--max-conns", "1500", "--addr", "127.0.0.1:0"), "1500")
		holds(t, limited(t, "1000", "--model", model, "--max-conns", "4000", "--processes", "2", "--addr", "127.0.0.1:0"), "3000")
	}
	got := invoke(t, "serve", "--loops", "1", "--max-conns", "60000", "--model", "epoll")
	if soft, _, _ := sock.DescriptorLimit(); soft < 60000 && (got.code != 2 || !strings.Contains(got.stderr, "--loops is 1; expected 0 (the default: as many as it takes) or at least")) {
		t.Errorf("too few loops: exit code %d, stderr %q; want 2 and how many it takes", got.code, got.stderr)
	}
}

// Workers with shards that end leave their listeners to the next ones.
func TestShardsInRestartedProcess(t *testing.T) {
	s := startCommand(t, limited(t, "1000", "--model", "epoll", "--max-conns", "4000", "--processes", "2", "--addr", "127.0.0.1:0"))
	pids := childrenOf(t, s.Process.Pid)
	if len(pids) != 2 {
		t.Fatalf("worker processes %v, want 2", pids)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		await.True(t, "another worker takes its place", func() bool {
			now := childrenOf(t, s.Process.Pid)
			return len(now) == 2 && !slices.Contains(now, pid)
		})
	}
	if got := invoke(t, "load", "-c", "100", "--messages", "2", s.addr); got.code != 0 {
		t.Errorf("load: exit code %d, %s%s", got.code, got.stdout, got.stderr)
	}
	if code := s.end(t, os.Interrupt); code != 0 {
		t.Errorf("exit code %d, stderr %q", code, s.stderr)
	}
}

// childrenOf lists the processes that one has started.
func childrenOf(t *testing.T, pid int) (pids []int) {
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

// The supervisor's metrics have what Go's runtime says of its workers, which have no admin server
// of their own.
func TestProcessesRuntimeMetrics(t *testing.T) {
	s := startServer(t, "serve", "--processes", "2", "--admin", "127.0.0.1:0")
	m := lab.MetricsSource{Addr: strings.TrimPrefix(s.admin, "http://")}
	const goroutines, turns = "myriad_worker_goroutines", "myriad_loop_lag_seconds_count"
	await.True(t, "goroutines of both workers, and turns of their loops", func() bool {
		v, err := m.Values(t.Context(), goroutines, "myriad_worker_gc_cycles_total", "myriad_worker_gc_pause_seconds_total", turns)
		if err != nil {
			t.Fatal(err)
		}
		return v[goroutines] >= 4 && v[turns] > 0
	})
}
