package main

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/internal/lab/app"
	"github.com/myriad-go/myriad/tools/internal/proof"
	"github.com/myriad-go/myriad/tools/internal/stall"
)

// Applications answer what they have to, on every model and under plain.
func TestApps(t *testing.T) {
	long := strings.Repeat("x", 100)
	sha := func(line string, digits int) string {
		return fmt.Sprintf("%x", sha256.Sum256([]byte(line)))[:digits] + "\n"
	}
	serves := []string{"plain"}
	for _, model := range tcp.Models() {
		serves = append(serves, "serve --model "+model)
	}
	for _, serve := range serves {
		for app, c := range map[string]struct{ send, want string }{
			"echo":             {"no line", "no line"},
			"lines":            {"one\ntwo\nthr", "one\ntwo\n"},
			"sha":              {"ping\n\n" + long + "\n", sha("ping", 4) + "\n" + sha(long, 64)},
			"pow":              {"ping\n", string(proof.AppendLineWithProof(nil, []byte("ping"), 16))},
			"wait":             {"a\nb\n", "a\nb\n"},
			"push":             {"pong\npongo\nhave!\n!\n!news\n", "pongo\nhave!\n\nnews\n"},
			"wait --wait 30ms": {"a\nb\n", "a\nb\n"},
			"stall --stall 0s": {"a\nb\n", "a\nb\n"},
			"log":              {"a\nb\n", "a\nb\n"},
		} {
			if serve == "plain" && (app == "push" || app == "log" || strings.Contains(app, "--")) {
				continue
			}
			s := serveLine(t, serve+" --app "+app)
			conn, begin := dial(t, s.addr), time.Now()
			sendAndExpect(t, conn, c.send, c.want)
			if took := time.Since(begin); strings.HasPrefix(app, "wait ") && took < 60*time.Millisecond {
				t.Errorf("%s --app %s: two lines took %v, want 60 ms at least", serve, app, took)
			}
			conn.Close()
			if code := s.stop(); code != 0 {
				t.Errorf("%s --app %s: exit code %d, stderr %s", serve, app, code, s.stderr)
			}
		}
	}
}

// The log has a record of every third line, in the format that was asked for.
func TestLog(t *testing.T) {
	for format, want := range map[string]string{
		"text": `^time=\S+ level=INFO msg=line from=127\.0\.0\.1:\d+ bytes=1$`,
		"json": `^\{"time":"\S+","level":"INFO","msg":"line","from":"127\.0\.0\.1:\d+","bytes":1\}$`,
	} {
		s := serveLine(t, "serve --app log --log-every 3 --log-format "+format)
		c := dial(t, s.addr)
		sendAndExpect(t, c, strings.Repeat("a\n", 8), strings.Repeat("a\n", 8))
		c.Close()
		s.stop()
		records := 0
		for record := range strings.Lines(s.stderr.String()) {
			if !strings.Contains(record, "msg") {
				continue
			}
			if records++; !regexp.MustCompile(want).MatchString(strings.TrimSuffix(record, "\n")) {
				t.Errorf("--log-format %s: the record %q, want one that matches %s", format, record, want)
			}
		}
		if records != 2 {
			t.Errorf("--log-format %s: %d records of 8 lines, want 2: %s", format, records, s.stderr)
		}
	}
}

// A line that begins with an exclamation mark reaches all.
func TestPush(t *testing.T) {
	for _, model := range tcp.Models() {
		s := serveLine(t, "serve --app push --max-unsent 100 --model "+model)
		var conns []net.Conn
		for range 5 {
			c := dial(t, s.addr)
			sendAndExpect(t, c, "hello\n", "hello\n") // so that it has been accepted
			conns = append(conns, c)
		}
		io.WriteString(conns[0], "!news for all\n")
		for _, c := range conns {
			sendAndExpect(t, c, "", "news for all\n")
		}
		sendAndExpect(t, conns[1], "!"+strings.Repeat("x", 200)+"\n", "error: ")
	}
}

// The application stall says when its stalls begin, and closes a connection whose line finds no room to wait.
func TestStall(t *testing.T) {
	s := serveLine(t, "serve --app stall --stall 0s --stall-capacity 0.02 --drain 1ms")
	if !regexp.MustCompile(`stall: epoch \d+ns\n`).MatchString(s.stderr.String()) {
		t.Errorf("stderr is %q, want a line with the epoch", s.stderr)
	}
	c := dial(t, s.addr)
	go io.WriteString(c, strings.Repeat("\n", stall.MaxLines+1000))
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d bytes, %v; want the end of the connection", n, err)
	}
}

// Each kind of pool serves, and the server drains with it. What no worker has time for is
// answered with busy, and counted.
func TestWorkers(t *testing.T) {
	for _, args := range []string{"--workers 2", "--workers 2-10 --workers-target 1ms", "--workers adaptive --workers-queue 10", "--workers 0"} {
		for _, app := range []string{"lines", "wait --shed"} {
			s := serveLine(t, "serve --app "+app+" "+args)
			c := dial(t, s.addr)
			sendAndExpect(t, c, "hello\n", "hello\n")
			c.Close()
			if code := s.stop(); code != 0 {
				t.Errorf("%s, %s: exit code %d, stderr: %s", args, app, code, s.stderr)
			}
		}
	}
	if len(tcp.Models()) == 1 {
		return // no model here has loops
	}
	s := serveLine(t, "serve --app wait --shed --wait 200ms --model epoll --workers 1 --workers-queue -1 --admin 127.0.0.1:0")
	// Both have a line for the one worker. It may see to both at first: what is never
	// shed, that a connection has opened, may wait for it with the line.
	first, second := dial(t, s.addr), dial(t, s.addr)
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
	for _, name := range []string{`myriad_pool_jobs_refused_total\{cause="full"\}`, "myriad_pool_jobs_accepted_total", "myriad_handler_sheds_total", "myriad_connections", "go_goroutines"} {
		s.waitForPage(t, "/metrics", "\n"+name+" [1-9]")
	}
}

// httpGet asks a server of HTTP.
func httpGet(t *testing.T, url string) (status int, text string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	answer, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(all)
}

// The answers to a pipeline come in order, each complete, with the date; what comes after
// stays open or ends as HTTP says.
func TestHTTP(t *testing.T) {
	const one = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	for _, model := range tcp.Models() {
		s := serveLine(t, "serve --app http --model "+model)
		for send, statuses := range map[string]string{
			strings.Repeat(one, 40): strings.Repeat("200 ", 40),
			one + "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" + one: "200 200 end",
			one + "GET / HTTP/2.0\r\nHost: a\r\n\r\n" + one:                      "200 505 end",
		} {
			c := dial(t, s.addr)
			io.WriteString(c, send)
			in := bufio.NewReader(c)
			for _, want := range strings.Fields(statuses) {
				r, err := http.ReadResponse(in, nil)
				if want == "end" {
					if err == nil {
						t.Errorf("%s: %.60q: %s, want the end", model, send, r.Status)
					}
					continue
				}
				if err != nil {
					t.Fatalf("%s: %.60q: %v", model, send, err)
				}
				text, _ := io.ReadAll(r.Body)
				date, err := http.ParseTime(r.Header.Get("Date"))
				if r.Status[:3] != want || want == "200" && (err != nil || time.Since(date).Abs() > patience || string(text) != app.HelloText) {
					t.Errorf("%s: %.60q: %s, %q, %v, %v; want %s", model, send, r.Status, text, date, err, want)
				}
			}
		}
	}
}

// A message that begins with an exclamation mark reaches all WebSockets and streams.
func TestWebPush(t *testing.T) {
	for _, model := range tcp.Models() {
		s := serveLine(t, "serve --app ws --model "+model)
		stream := dial(t, s.addr)
		in := bufio.NewReader(stream)
		io.WriteString(stream, "GET /events HTTP/1.1\r\nHost: a\r\n\r\n")
		if r, err := http.ReadResponse(in, nil); err != nil || r.Header.Get("Content-Type") != "text/event-stream" {
			t.Fatalf("%s: %v, %v; want a stream of events", model, r, err)
		}
		var sockets []net.Conn
		for range 3 {
			c, err := app.ConnForLines(dial(t, s.addr), app.WebSocket)
			if err != nil {
				t.Fatal(err)
			}
			sendAndExpect(t, c, "hello\n", "hello\n")
			sockets = append(sockets, c)
		}
		io.WriteString(sockets[0], "!news for all\n")
		for _, c := range sockets {
			sendAndExpect(t, c, "", "news for all\n")
		}
		if line, err := in.ReadString('\n'); err != nil || line != "data: news for all\n" {
			t.Errorf("%s: the stream got %q, %v", model, line, err)
		}
	}
}
