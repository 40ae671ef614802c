package main

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/internal/lab/app"
)

// Applications answer what they have to, on every model and under plain.
func TestApps(t *testing.T) {
	both := []string{"echo", "lines", "sha", "sink --heartbeat 100ms", "http", "web", "wait", "pow"}
	check := func(command string, names ...string) {
		for _, name := range names {
			s := serveLine(t, command+" --app "+name)
			name, _, _ = strings.Cut(name, " ")
			c := testkit.Dial(t, s.addr)
			if err := app.CheckServerSpeaksApp(c.Conn, name); err != nil {
				t.Errorf("%s --app %s: %v", command, name, err)
			}
			c.Close() // or the server waits for it
			s.checkStop(t)
		}
	}
	check("plain", both...)
	for _, model := range tcp.Models() {
		check("serve --model "+model, append(both, "push", "ws", "log", "stall --stall 0s")...)
	}
	long := strings.Repeat("x", 100)
	digits := fmt.Sprintf("%x\n", sha256.Sum256([]byte(long)))
	sendAndExpect(testkit.Dial(t, serveLine(t, "serve --app sha").addr), "\n"+long+"\n", "\n"+digits)
}

// The log has a record of every third line, in the format that was asked for. The application stall says when its
// stalls begin.
func TestLog(t *testing.T) {
	for format, want := range map[string]string{
		"text": `(?m)^time=\S+ level=INFO msg=line from=127\.0\.0\.1:\d+ bytes=1$`,
		"json": `(?m)^\{"time":"\S+","level":"INFO","msg":"line","from":"127\.0\.0\.1:\d+","bytes":1\}$`,
	} {
		s := serveLine(t, "serve --app log --log-every 3 --log-format "+format)
		sendAndExpect(testkit.Dial(t, s.addr), strings.Repeat("a\n", 8), strings.Repeat("a\n", 8))
		s.stop()
		if n := len(regexp.MustCompile(want).FindAllString(s.stderr.String(), -1)); n != 2 {
			t.Errorf("--log-format %s: %d records of 8 lines, want 2: %s", format, n, s.stderr)
		}
	}
	s := serveLine(t, "serve --app stall --stall 0s --stall-capacity 0.02 --drain 1ms")
	s.waitForError(t, "stall: epoch ")
}

// Each kind of pool serves, and the server drains with it. What no worker has time for is answered with busy, and
// counted.
func TestWorkers(t *testing.T) {
	for _, args := range []string{"2", "2-10 --workers-target 1ms", "adaptive --workers-queue 10", "0"} {
		s := serveLine(t, "serve --app wait --shed --workers "+args)
		c := testkit.Dial(t, s.addr)
		c.ExchangeLine("hello", "hello")
		c.Close()
		s.checkStop(t)
	}
	if !slices.Contains(tcp.Models(), tcp.Epoll) {
		return // no model here has loops
	}
	s := serveLine(t, "serve --app wait --shed --wait 200ms --model epoll --workers 1 --workers-queue -1 --admin 127.0.0.1:0")
	conns := []*testkit.Conn{testkit.Dial(t, s.addr), testkit.Dial(t, s.addr)}
	for busy := false; !busy; { // the one worker may see to both lines at first
		for _, c := range conns {
			c.Send("a\n")
		}
		for _, c := range conns {
			line := c.ReadLine()
			if line != "busy" && line != "a" {
				t.Fatalf("got %q; want the line or busy", line)
			}
			busy = busy || line == "busy"
		}
	}
	s.waitForPage(t, "/metrics", `\nmyriad_pool_jobs_refused_total\{cause="full"\} [1-9]`)
	s.waitForPage(t, "/metrics", "\nmyriad_handler_sheds_total [1-9]")
}
