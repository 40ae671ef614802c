package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad"
)

func TestWrongUseOfWorkers(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"--workers many", `--workers is "many"; expected a number such as 128, MIN-MAX such as 2-1000, or adaptive`},
		{"--workers -3", `--workers is "-3"; expected a number`},
		{"--workers 3-", `--workers is "3-"; expected a number`},
		{"--workers 3-2", "--workers 3-2: Max is 2 with a Min of 3; expected 3 to"},
		{"--workers 2000000", "--workers 2000000: Max is 2000000"},
		{"--workers 2000000 --processes 2", "--workers 2000000: Max is 2000000"},
		{"--workers 8 --workers-target 1ms", "--workers-target is 1ms with --workers 8; expected it with --workers adaptive or MIN-MAX"},
		{"--workers adaptive --workers-target 1ns", "--workers-target is 1ns; expected 0"},
		{"--workers 8 --workers-queue -2", "--workers-queue is -2; expected 0"},
		{"--workers-queue 5", "expected them with --workers"},
		{"--workers 0 --workers-target 1ms", "expected them with --workers"},
		{"--work-wait 1ms", `for the application "echo"; expected it with --app work`},
		{"--app work --work-wait -1s", "--work-wait is -1s; expected 0s to 1m0s"},
		{"--app work --work-cpu 2m", "--work-cpu is 2m0s; expected 0s to 1m0s"},
		{"--app work --work-bytes -1", "--work-bytes is -1; expected 0 to 1073741824"},
	} {
		got := invoke(t, append([]string{"serve", "--addr", "127.0.0.1:0"}, strings.Fields(c.args)...)...)
		if got.code != 2 || !strings.Contains(got.stderr, c.says) {
			t.Errorf("%s: exit code %d, stderr %q; want 2 and %q", c.args, got.code, got.stderr, c.says)
		}
	}
}

// Each kind of pool serves, and the server drains with it.
func TestServeWithWorkers(t *testing.T) {
	for _, args := range []string{"--workers 2", "--workers 2-10 --workers-target 1ms", "--workers adaptive --workers-queue 10", "--workers adaptive --processes 2", "--workers 0"} {
		for _, app := range []string{"lines", "work"} {
			s := startServer(t, append([]string{"serve", "--app", app}, strings.Fields(args)...)...)
			if got, err := bufio.NewReader(dialAndSend(t, s, "hello\n")).ReadString('\n'); err != nil || got != "hello\n" {
				t.Errorf("%s, %s: got %q, %v; want the line", args, app, got, err)
			}
			s.Process.Signal(syscall.SIGTERM)
			if err := s.Wait(); err != nil {
				t.Errorf("%s, %s: %v after SIGTERM; stderr: %s", args, app, err, s.stderr)
			}
		}
	}
}

// The application work takes its time, computed and waited.
func TestWork(t *testing.T) {
	f := workFlags{wait: 20 * time.Millisecond, cpu: 20 * time.Millisecond, bytes: 1 << 20}
	w := newWork(f)
	begin := time.Now()
	sum := compute(w.rounds)
	if took := time.Since(begin); took < f.cpu/2 {
		t.Errorf("%d rounds take %v, want about %v (they give %d)", w.rounds, took, f.cpu, sum)
	}
	s := startServer(t, "serve", "--app", "work", "--work-wait", "20ms", "--work-cpu", "20ms", "--work-bytes", "1048576")
	begin = time.Now()
	if got, err := bufio.NewReader(dialAndSend(t, s, "hello\n")).ReadString('\n'); err != nil || got != "hello\n" || time.Since(begin) < 30*time.Millisecond {
		t.Errorf("got %q, %v after %v; want the line after some 40 ms", got, err, time.Since(begin))
	}
}

// What no worker has time for is answered with busy, and counted where --admin tells
// of the server and its pool.
func TestWorkIsBusy(t *testing.T) {
	if len(myriad.Models()) == 1 {
		t.Skip("no model here has loops")
	}
	s := startServer(t, "serve", "--app", "work", "--work-wait", "500ms", "--model", "epoll", "--workers", "1", "--workers-queue", "-1", "--admin", "127.0.0.1:0")
	// Both have a line for the one worker. It may see to both at first: what is never
	// shed, that a connection has opened, may wait for it with the line.
	first, second := dial(t, s), dial(t, s)
	inFirst, inSecond := bufio.NewReader(first), bufio.NewReader(second)
	for busy := false; !busy; {
		io.WriteString(first, "a\n")
		io.WriteString(second, "a\n")
		for _, in := range []*bufio.Reader{inFirst, inSecond} {
			got, err := in.ReadString('\n')
			if err != nil || got != "busy\n" && got != "a\n" {
				t.Fatalf("got %q, %v; want the line or busy", got, err)
			}
			busy = busy || got == "busy\n"
		}
	}
	answer, err := http.Get(s.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{`myriad_pool_jobs_refused_total\{cause="full"\}`, "myriad_pool_jobs_accepted_total", "myriad_handler_sheds_total", "myriad_connections", "go_goroutines"} {
		if !regexp.MustCompile(fmt.Sprintf(`(?m)^%s [1-9]`, name)).Match(text) {
			t.Errorf("no %s above 0 in the metrics:\n%s", name, text)
		}
	}
}
