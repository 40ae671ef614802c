package main

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// talk says what a client of the Redis protocol does, and wants the answers, with a | for each
// end of a line.
func talk(t *testing.T, c net.Conn, say, want string) {
	t.Helper()
	exchange(t, c, say, strings.ReplaceAll(want, "|", "\r\n")+"\r\n")
}

// usersFile writes a file of users.
func usersFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "users.acl")
	rewrite(t, path, text)
	return path
}

func rewrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A hub serves both protocols on one port, and tells the operator of itself.
func TestHub(t *testing.T) {
	s := serveHere(t, "hub --admin 127.0.0.1:0 --last-values 10 --publish-rate 3")
	c := dial(t, s.addr)
	talk(t, c, "PUBLISH a 1\r\n", ":0")
	talk(t, c, "HELLO 4\r\n", "-NOPROTO unsupported protocol version")
	talk(t, c, "SUBSCRIBE a\r\n", "*3|$9|subscribe|$1|a|:1|*3|$7|message|$1|a|$1|1")
	answer, err := http.Post("http://"+s.addr+"/publish?topic=a", "text/plain", strings.NewReader("22"))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	talk(t, c, "", "*3|$7|message|$1|a|$2|22")
	if status, text := get(t, "http://"+s.addr+"/"); status != http.StatusOK || !strings.Contains(text, "<html") {
		t.Errorf("the page: %d, %.100q", status, text)
	}
	if status, text := get(t, s.admin+"/hub"); status != http.StatusOK || !strings.Contains(text, `"Published": 2`) || !strings.Contains(text, `"Clients": 1`) {
		t.Errorf("/hub: %d, %s", status, text)
	}
	if status, text := get(t, s.admin+"/metrics"); status != http.StatusOK || !strings.Contains(text, "\nmyriad_hub_published_total 2\n") {
		t.Errorf("/metrics: %d, %.300s", status, text)
	}
	if _, text := get(t, s.admin+"/"); !strings.Contains(text, `href="/hub"`) {
		t.Error("the operator's page has no link to /hub")
	}
	other := dial(t, s.addr)
	talk(t, other, strings.Repeat("PUBLISH b x\r\n", 3), ":0|:0|:0")
	io.WriteString(other, "PUBLISH b x\r\n")
	if line := readLine(t, other); !strings.HasPrefix(line, "-") || !strings.Contains(line, "at most 3 messages a second") {
		t.Errorf("the fourth message in a second: %q", line)
	}
	if code := s.stop(); code != 0 {
		t.Errorf("exit code %d; stderr: %s", code, s.stderr)
	}
}

// readLine reads up to the end of a line.
func readLine(t *testing.T, c net.Conn) string {
	t.Helper()
	var line []byte
	for b := make([]byte, 1); !strings.HasSuffix(string(line), "\n"); {
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatalf("%q, %v", line, err)
		}
		line = append(line, b[0])
	}
	return string(line)
}

// A hang-up has the users read again: who has lost its rights is closed, and others stay.
func TestHubReloadsUsers(t *testing.T) {
	users := usersFile(t, "user alice on >a +@all &*\nuser bob on >b +@all &*\n")
	s := startServer(t, "hub", "--users", users)
	alice, bob := dial(t, s.addr), dial(t, s.addr)
	talk(t, alice, "PUBLISH x 1\r\nAUTH alice a\r\nSUBSCRIBE x\r\n", "-NOAUTH Authentication required.|+OK|*3|$9|subscribe|$1|x|:1")
	talk(t, bob, "AUTH bob b\r\nSUBSCRIBE x\r\n", "+OK|*3|$9|subscribe|$1|x|:1")
	said := func(what string) {
		t.Helper()
		testkit.WaitFor(t, "word of "+what, func() bool { return strings.Contains(s.stderr.String(), what) })
	}
	rewrite(t, users, "user alice on >a +@all &*\nuser bob on >b +@all &y\n")
	s.Process.Signal(syscall.SIGHUP)
	said("hangup: users " + users + " reloaded, 1 clients closed")
	if rest, err := io.ReadAll(bob); len(rest) > 0 || err != nil {
		t.Errorf("bob, who may not have his topic any more: %q, %v; want the end", rest, err)
	}
	rewrite(t, users, "user alice on >a +frob")
	s.Process.Signal(syscall.SIGHUP)
	said("the users can't be reloaded, the old ones stay: ")
	if c := dial(t, s.addr); true {
		talk(t, c, "AUTH alice a\r\nPUBLISH x 1\r\n", "+OK|:1")
	}
	talk(t, alice, "", "*3|$7|message|$1|x|$1|1")
	if code := s.end(t, syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d; stderr: %s", code, s.stderr)
	}
}

// With --tls-addr there is a second address, with TLS, and the first is in clear.
func TestHubTLS(t *testing.T) {
	cert, key := certificate(t)
	s := serveHere(t, "hub --tls-addr 127.0.0.1:0 --tls-cert "+cert+" --tls-key "+key)
	testkit.WaitFor(t, "both addresses", func() bool { return len(servingLine.FindAllString(s.stdout.String(), -1)) == 2 })
	lines := servingLine.FindAllStringSubmatch(s.stdout.String(), -1)
	clear := dial(t, s.addr)
	talk(t, clear, "SUBSCRIBE a\r\n", "*3|$9|subscribe|$1|a|:1")
	secured, err := tls.Dial("tcp", lines[1][1], &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer secured.Close()
	talk(t, secured, "PUBLISH a 1\r\n", ":1")
	talk(t, clear, "", "*3|$7|message|$1|a|$1|1")
	if text := s.stdout.String(); strings.Count(text, ", TLS") != 1 {
		t.Errorf("one of the addresses has TLS, and it says %s", text)
	}
}

// Who shows a certificate is the user of its name, if the file of users has that.
func TestHubCertificates(t *testing.T) {
	cert, key := certificate(t)
	users := usersFile(t, "user localhost on cert +publish &a\n")
	s := serveHere(t, "hub --users "+users+" --tls-client-ca "+cert+" --tls-cert "+cert+" --tls-key "+key)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := tls.Dial("tcp", s.addr, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	talk(t, c, "PUBLISH a 1\r\n", ":0")
	io.WriteString(c, "PUBLISH b 1\r\n")
	if line := readLine(t, c); !strings.HasPrefix(line, "-NOPERM") {
		t.Errorf("a topic that the user may not publish to: %q", line)
	}
}
