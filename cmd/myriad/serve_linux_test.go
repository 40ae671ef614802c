package main

import (
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/internal/await"
	"github.com/myriad-go/myriad/internal/procfs"
)

// The client of netcat ends its direction right after its lines; both answers
// come all the same, and then the end.
func TestNetcat(t *testing.T) {
	nc, err := exec.LookPath("nc")
	if err != nil {
		t.Skip("nc is not installed")
	}
	for _, model := range myriad.Models() {
		s := startServer(t, "serve", "--app", "lines", "--model", model)
		host, port, _ := net.SplitHostPort(s.addr)
		cmd := exec.CommandContext(t.Context(), nc, "-N", host, port)
		cmd.Stdin = strings.NewReader("a\nb\n")
		out, err := cmd.Output()
		if err != nil || string(out) != "a\nb\n" {
			t.Errorf("%s: nc got %q, %v; want both lines", model, out, err)
		}
	}
}

func TestSignals(t *testing.T) {
	for _, model := range myriad.Models() {
		for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
			s := startServer(t, "serve", "--model", model)
			if code := s.end(t, sig); code != 0 || !strings.Contains(s.stderr.String(), "draining") {
				t.Errorf("%s: after %v: exit code %d, stderr %q; want 0 and word of draining", model, sig, code, s.stderr)
			}
		}
	}
}

// A connection in the middle of a message holds up the drain, until the second
// signal.
func TestSecondSignal(t *testing.T) {
	for _, model := range myriad.Models() {
		s := startServer(t, "serve", "--app", "lines", "--model", model)
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		io.WriteString(c, "whole\nhalf")
		if _, err := io.ReadFull(c, make([]byte, len("whole\n"))); err != nil {
			t.Fatal(err)
		}
		s.Process.Signal(os.Interrupt)
		await.True(t, "word of draining", func() bool { return strings.Contains(s.stderr.String(), "draining 1 connections") })
		if code := s.end(t, os.Interrupt); code != 1 || !strings.Contains(s.stderr.String(), "at once") {
			t.Errorf("%s: after the second signal: exit code %d, stderr %q; want 1 and word of the cut", model, code, s.stderr)
		}
	}
}

func TestServeAddressInUse(t *testing.T) {
	for _, model := range myriad.Models() {
		s := startServer(t, "serve", "--model", model)
		got := invoke(t, "serve", "--model", model, "--addr", s.addr, "--loops", "2")
		if got.code != 1 || !strings.Contains(got.stderr, "address already in use") || !strings.Contains(got.stderr, "--addr") {
			t.Errorf("%s: exit code %d, stderr %q; want 1, the cause, and what to do", model, got.code, got.stderr)
		}
	}
}

func TestServeTooManyConnections(t *testing.T) {
	got := invoke(t, "serve", "--max-conns", "1000000000")
	if got.code != 2 || !strings.Contains(got.stderr, "RLIMIT_NOFILE") || !strings.Contains(got.stderr, "ulimit -n") {
		t.Errorf("exit code %d, stderr %q; want 2, the limit, its value, and how to raise it", got.code, got.stderr)
	}
}

// Connections that are opened and killed leave no descriptor behind.
func TestConnectionsLeaveNothing(t *testing.T) {
	const conns, times = "200", 5
	for _, model := range myriad.Models() {
		s := startServer(t, "serve", "--model", model)
		descriptors := func() int {
			d, err := procfs.ReadDescriptors(s.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			return d.Open
		}
		before := descriptors()
		for range times {
			if got := invoke(t, "load", "-c", conns, "--messages", "1", s.addr); got.code != 0 {
				t.Fatalf("%s: load: %s", model, got.stderr)
			}
		}
		// Go's poller makes a few of its own when it is first used.
		const own = 4
		await.True(t, model+": descriptors are back where they began", func() bool { return descriptors() <= before+own })
	}
}

// After a kill the address is free at once, also where a ring watched it.
func TestAddressIsFreeAfterKill(t *testing.T) {
	for _, model := range myriad.Models() {
		addr := "127.0.0.1:0"
		for range 5 {
			s := startCommand(t, command(t, "serve", "--app", "wait", "--wait", "1m", "--model", model, "--addr", addr))
			addr = s.addr
			for range 20 {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				io.WriteString(c, "busy\n")
			}
			s.end(t, os.Kill)
		}
	}
}
