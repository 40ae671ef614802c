package main

import (
	"bytes"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/await"
	"github.com/myriad-go/myriad/load"
)

func TestHold(t *testing.T) {
	s := startServer(t, "serve", "--app", "lines")
	got := invoke(t, "hold", "-n", "20", "--duration", "200ms", s.addr)
	for _, part := range []string{"held: 20 connections after ", "20 of 20"} {
		if got.code != 0 || !strings.Contains(got.stdout, part) {
			t.Errorf("exit code %d, stdout %q, stderr %q; want %q", got.code, got.stdout, got.stderr, part)
		}
	}
}

// Ctrl-C is how it ends.
func TestHoldUntilInterrupted(t *testing.T) {
	s := startServer(t, "serve", "--app", "lines")
	cmd := command(t, "hold", "-n", "20", s.addr)
	out := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the connections are held", func() bool { return strings.Contains(out.String(), "held: 20 connections") })
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "20 of 20") {
		t.Errorf("interrupted: %v, output %q; want exit code 0 and the result", err, out)
	}
}

// TestHoldLines has verifications, heartbeats and a broadcast, each with a server of its
// own, as one that echoes would answer the answers.
func TestHoldLines(t *testing.T) {
	s := startServer(t, "serve", "--app", "lines")
	got := invoke(t, "hold", "-n", "20", "--check=3", "--duration", "100ms", "--expect", "checked==40", s.addr)
	if want := "20 of 20 connections answered"; got.code != 0 || strings.Count(got.stdout, want) != 2 {
		t.Errorf("exit code %d, stdout %q, stderr %q; want %q twice", got.code, got.stdout, got.stderr, want)
	}
	ln := listenFor(t, "ping\nnoon\n")
	cmd := command(t, "hold", "-n", "5", "--heartbeat", "ping", "--broadcast", "noon\n", "--expect", "heartbeats==5", "--json", ln)
	out, told := &lockedBuffer{}, &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = out, told
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "all have heard the broadcast", func() bool { return strings.Contains(out.String(), `"phase":"heard"`) })
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	for _, want := range []string{`"heard":5,"again":0`, `"heartbeats":5`} {
		if err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%v, stdout %q, stderr %q; want %q", err, out, told, want)
		}
	}
	got = invoke(t, "hold", "-n", "5", "--heartbeat", "ping", "--broadcast", "dusk", "--duration", "200ms", ln)
	if want := "broadcast: 5 of 5 connections have not got it"; got.code != 1 || !strings.Contains(got.stderr, want) {
		t.Errorf("exit code %d, stderr %q; want 1 and %q", got.code, got.stderr, want)
	}
}

// listenFor serves connections that are told a text and read to their end.
func listenFor(t *testing.T, text string) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wait.Go(func() {
				defer c.Close()
				_, _ = c.Write([]byte(text))
				_, _ = io.Copy(io.Discard, c)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		wait.Wait()
	})
	return ln.Addr().String()
}

func TestHoldWrongUse(t *testing.T) {
	for line, says := range map[string]string{
		"":                                "no target is given",
		"-n 0 a:1":                        `--connections is "0"`,
		"--duration -1s a:1":              `--duration is "-1s"; expected a time above 0`,
		"--duration 31d a:1":              "expected 0s to 720h",
		"-m ping a:1":                     "-m; expected a flag",
		"--rate 10 a:1":                   "--rate; expected a flag",
		"--ramp 2:1:1s a:1":               `--ramp is "2:1:1s"`,
		"--interval never a:1":            `--interval is "never"`,
		"--close politely a:1":            "expected fin or rst",
		"--src nowhere a:1":               "--src",
		"--model threads a:1":             `"threads"`,
		"nowhere":                         "expected HOST:PORT",
		"--connect-rate -1 a:1":           `--connect-rate is "-1"`,
		"--check=0 a:1":                   `--check is "0"`,
		"--check=2M a:1":                  "expected 1 to 1048576",
		"--heartbeat-answer pong a:1":     "--heartbeat-answer is given without --heartbeat; expected both",
		"--heartbeat= a:1":                `--heartbeat is ""; expected a line that is not empty`,
		"--broadcast x --heartbeat x a:1": "expected two lines",
		"--check --lifetime 1s a:1":       "--lifetime; expected a flag",
	} {
		got := invoke(t, append([]string{"hold"}, strings.Fields(line)...)...)
		if got.code != 2 || !strings.Contains(got.stderr, says) {
			t.Errorf("hold %s: exit code %d, stderr %q; want 2 and %q", line, got.code, got.stderr, says)
		}
	}
	if got := invoke(t, "hold", "-n", "1", "127.0.0.1:1"); got.code != 1 || !strings.Contains(got.stdout+got.stderr, "connection refused") {
		t.Errorf("hold where nobody listens: exit code %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
}

func TestHeldConns(t *testing.T) {
	interval := func(stage string, open, resident int64) load.Event {
		return load.Event{Phase: load.Progress, Interval: &load.Interval{
			Stage: stage, Open: open, Generator: load.Usage{Resident: resident}, Server: &load.Usage{Resident: 2 * resident},
		}}
	}
	var out bytes.Buffer
	h := &heldConns{out: &out, began: time.Now()}
	for _, e := range []load.Event{
		{Phase: load.Began, Plan: &load.Plan{Generator: &load.Usage{Resident: 1 << 20}, Server: &load.Usage{Resident: 1 << 20}}},
		interval("connect", 10, 1),
		{Phase: load.Connected, Snapshot: load.Snapshot{Open: 1024}},
		{Phase: load.Progress},
		interval("window", 512, 1<<20),
		interval("window", 1024, 2<<20),
		interval("close", 3, 3<<20),
	} {
		h.observe(e)
	}
	if err := h.write(&out); err != nil {
		t.Fatal(err)
	}
	_, memory, _ := strings.Cut(out.String(), "\n")
	want := "generator  1024 bytes of user memory a connection; resident 2.0 MiB in all, 1.0 MiB before\nserver     3072 bytes of user memory a connection; resident 4.0 MiB in all, 1.0 MiB before\n"
	if !strings.HasPrefix(out.String(), "held: 1024 connections after ") || memory != want {
		t.Errorf("got %q, want the number that is held and %q", out.String(), want)
	}
	later := &heldConns{opened: h.opened, plan: h.plan, last: h.last}
	var all bytes.Buffer
	if err := later.write(&all); err != nil || all.String() != out.String() {
		t.Errorf("said in the end: got %q, %v; want %q", all.String(), err, out.String())
	}
	out.Reset()
	if err := new(heldConns).write(&out); err != nil || out.Len() > 0 {
		t.Errorf("nothing was held: got %q, %v", out.String(), err)
	}
}
