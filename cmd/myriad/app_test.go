package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad"
)

// dial connects to a server of this test.
func dial(t *testing.T, s *server) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c
}

// The answers to a pipeline come in order, each complete; what comes after
// stays open or ends as HTTP says.
func TestHTTP(t *testing.T) {
	const get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	for _, model := range myriad.Models() {
		s := startServer(t, "serve", "--app", "http", "--model", model)
		for _, c := range []struct {
			send     string
			statuses string
			ends     bool
		}{
			{get, "200", false},
			{strings.Repeat(get, 40), strings.TrimSpace(strings.Repeat("200 ", 40)), false},
			{get + "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + get, "200 200 200", false},
			{"GET / HTTP/1.0\r\n\r\n" + get, "200", true},
			{get + "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" + get, "200 200", true},
			{get + "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", "200 405", true},
			{"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", "400", true},
			{"GET / HTTP/3.0\r\n\r\n", "505", true},
			{get + strings.Repeat("x", 2*maxHead), "200 431", true},
		} {
			conn := dial(t, s)
			io.WriteString(conn, c.send)
			in := bufio.NewReader(conn)
			for i, want := range strings.Fields(c.statuses) {
				last := c.ends && i == strings.Count(c.statuses, " ")
				if err := checkAnswer(in, want, last); err != nil {
					t.Fatalf("%s: %.60q: answer %d: %v", model, c.send, i, err)
				}
			}
			if !c.ends {
				io.WriteString(conn, get)
				if err := checkAnswer(in, "200", false); err != nil {
					t.Errorf("%s: %.60q: the connection does not stay open: %v", model, c.send, err)
				}
			} else if _, err := in.ReadByte(); err != io.EOF {
				t.Errorf("%s: %.60q: got %v behind the answers, want the end", model, c.send, err)
			}
		}
	}
}

// checkAnswer reads an answer and says what is wrong with it.
func checkAnswer(in *bufio.Reader, status string, last bool) error {
	r, err := http.ReadResponse(in, nil)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	date, err := http.ParseTime(r.Header.Get("Date"))
	want := ""
	if status == "200" {
		want = "Hello, World!"
	}
	switch off := time.Since(date).Abs(); {
	case r.Status[:3] != status, r.Close != last, string(text) != want:
		return fmt.Errorf("got %s, close %v, %q; want %s, %v, %q", r.Status, r.Close, text, status, last, want)
	case status == "405" && r.Header.Get("Allow") != "GET":
		return fmt.Errorf("a 405 without Allow")
	case err != nil || off > patience:
		return fmt.Errorf("date is off by %v, %w", off, err)
	}
	return nil
}

// The date of answers changes with the second, and only then.
func TestHTTPDate(t *testing.T) {
	h := &httpHello{}
	at := time.Unix(1767323045, 999e6)
	first := h.current(at)
	if !bytes.Contains(first.text[served], []byte("\r\nDate: Fri, 02 Jan 2026 03:04:05 GMT\r\n")) {
		t.Errorf("got %q", first.text[served])
	}
	if h.current(at.Add(time.Microsecond)) != first {
		t.Error("the same second has answers made anew")
	}
	if got := h.current(at.Add(time.Millisecond)); !bytes.Contains(got.text[badRequest], []byte("03:04:06 GMT")) {
		t.Errorf("a second later: got %q", got.text[badRequest])
	}
}

func TestHTTPLoad(t *testing.T) {
	s := startServer(t, "serve", "--app", "http")
	got := invoke(t, "load", "--http", "-c", "20", "--pipeline", "16", "--messages", "200", s.addr)
	if got.code != 0 || !strings.Contains(got.stdout, "4,000") {
		t.Errorf("load --http: exit code %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
}

func TestWait(t *testing.T) {
	const wait = 30 * time.Millisecond
	s := startServer(t, "serve", "--app", "wait", "--wait", wait.String())
	c := dial(t, s)
	begin := time.Now()
	io.WriteString(c, "a\nb\n")
	got := make([]byte, 4)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "a\nb\n" || time.Since(begin) < 2*wait {
		t.Errorf("got %q, %v after %v; want both lines after %v", got, err, time.Since(begin), 2*wait)
	}
}

// Lines are hashed; the answer is as long as the line, and 64 digits at the most.
func TestSha(t *testing.T) {
	for _, command := range []string{"serve", "plain"} {
		s := startServer(t, command, "--app", "sha")
		c := bufio.NewReader(dialAndSend(t, s, "ping\n\n"+strings.Repeat("x", 100)+"\n"))
		for _, line := range []string{"ping", "", strings.Repeat("x", 100)} {
			all := fmt.Sprintf("%x", sha256.Sum256([]byte(line)))
			want := all[:min(len(line), len(all))] + "\n"
			if got, err := c.ReadString('\n'); err != nil || got != want {
				t.Errorf("%s: got %q, %v, want %q", command, got, err, want)
			}
		}
	}
}

// The proof holds, is the smallest, and is what load --answer can expect.
func TestPow(t *testing.T) {
	s := startServer(t, "serve", "--app", "pow", "--bits", "9")
	c := bufio.NewReader(dialAndSend(t, s, "ping\nother\n"))
	for _, line := range []string{"ping", "other"} {
		got, err := c.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		text, ok := strings.CutPrefix(strings.TrimSuffix(got, "\n"), line+" ")
		nonce, err := hex.DecodeString(text)
		if !ok || err != nil || len(nonce) != 8 {
			t.Fatalf("got %q, want the line and a nonce", got)
		}
		n := binary.BigEndian.Uint64(nonce)
		for try := range n + 1 {
			sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(line), try))
			// Nine bits: the first byte and half of the second.
			if proves := sum[0] == 0 && sum[1] < 0x80; proves != (try == n) {
				t.Fatalf("%s: nonce %d is %v a proof; the answer was %d", line, try, proves, n)
			}
		}
		if load := invoke(t, "load", "-c", "2", "--messages", "2", "-m", line+"\n", "--answer", got, s.addr); load.code != 0 {
			t.Errorf("load: %s", load.stderr)
		}
	}
}

func dialAndSend(t *testing.T, s *server, text string) net.Conn {
	t.Helper()
	c := dial(t, s)
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestWrongUseOfApps(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"serve", "--app", "ftp"}, "expected one of echo, lines, sha256, sha, sink, http, wait, pow"},
		{[]string{"serve", "--app", "wait", "--wait", "-1s"}, "--wait is -1s; expected 0s to"},
		{[]string{"serve", "--app", "wait", "--wait", "2m"}, "--wait is 2m0s; expected 0s to"},
		{[]string{"serve", "--app", "pow", "--bits", "33"}, "--bits is 33; expected 0 to 32"},
		{[]string{"serve", "--app", "pow", "--bits", "-1"}, "--bits is -1"},
		{[]string{"serve", "--bits", "3"}, `for the application "echo"; expected it with --app pow`},
		{[]string{"serve", "--app", "pow", "--wait", "1s"}, "expected it with --app wait"},
		{[]string{"plain", "--app", "ftp"}, "expected echo, lines, sink, http, wait, pow or sha"},
		{[]string{"plain", "--buffer", "511"}, "--buffer is 511; expected 512 to 1048576"},
		{[]string{"bench", "peers", "--subject", "x:ftp=y {port}"}, `app "ftp"; expected echo, lines, sink, http, wait, pow or sha`},
		{[]string{"load", "--answer", "x", "127.0.0.1:1"}, "and no message"},
		{[]string{"load", "--http", "--answer", "x", "127.0.0.1:1"}, "learned"},
	} {
		if got := invoke(t, c.args...); got.code != 2 || !strings.Contains(got.stderr, c.says) {
			t.Errorf("%q: exit code %d, stderr %q; want 2 and %q", c.args, got.code, got.stderr, c.says)
		}
	}
}
