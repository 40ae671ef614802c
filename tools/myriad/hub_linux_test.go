package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// exchangeRESP sends a command of the Redis protocol and checks the answer, in which | stands for a
// line end.
func exchangeRESP(c *testkit.Conn, send, want string) {
	sendAndExpect(c, send, strings.ReplaceAll(want, "|", "\r\n")+"\r\n")
}

func writeUsersFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "users.acl")
	overwriteFile(t, path, text)
	return path
}

func overwriteFile(t *testing.T, path, text string) {
	t.Helper()
	testkit.RequireNoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// A hub serves both protocols on one port, and tells the operator of itself.
func TestHub(t *testing.T) {
	s := serveLine(t, "hub --admin 127.0.0.1:0 --last-values 10 --publish-rate 3")
	c := testkit.Dial(t, s.addr)
	exchangeRESP(c, "PUBLISH a 1\r\n", ":0")
	exchangeRESP(c, "SUBSCRIBE a\r\n", "*3|$9|subscribe|$1|a|:1|*3|$7|message|$1|a|$1|1")
	answer, err := http.Post("http://"+s.addr+"/publish?topic=a", "text/plain", strings.NewReader("22"))
	testkit.RequireNoError(t, err)
	answer.Body.Close()
	exchangeRESP(c, "", "*3|$7|message|$1|a|$2|22")
	s.waitForPage(t, "/hub", `"Published": 2`)
	s.waitForPage(t, "/metrics", "\nmyriad_hub_published_total 2\n")
	s.waitForPage(t, "/", `href="/hub"`)
	other := testkit.Dial(t, s.addr)
	exchangeRESP(other, strings.Repeat("PUBLISH b x\r\n", 3), ":0|:0|:0")
	other.Send("PUBLISH b x\r\n")
	if line := other.ReadLine(); line[0] != '-' || !strings.Contains(line, "at most 3 messages per second") {
		t.Errorf("the fourth message in a second: %q", line)
	}
	s.checkStop(t)
}

// A hang-up has the users read again: who has lost its rights is closed, and others stay.
func TestHubReloadsUsers(t *testing.T) {
	users := writeUsersFile(t, "user alice on >a +@all &*\nuser bob on >b +@all &*\n")
	s := startServer(t, "hub", "--users", users)
	alice, bob := testkit.Dial(t, s.addr), testkit.Dial(t, s.addr)
	const subscribed = "+OK|*3|$9|subscribe|$1|x|:1"
	exchangeRESP(alice, "PUBLISH x 1\r\nAUTH alice a\r\nSUBSCRIBE x\r\n", "-NOAUTH Authentication required.|"+subscribed)
	exchangeRESP(bob, "AUTH bob b\r\nSUBSCRIBE x\r\n", subscribed)
	overwriteFile(t, users, "user alice on >a +@all &*\nuser bob on >b +@all &y\n")
	s.Signal(syscall.SIGHUP)
	s.waitForError(t, "hangup: users "+users+" reloaded; closed 1 client that")
	bob.ExpectEOF("")
	overwriteFile(t, users, "user alice on >a +frob")
	s.Signal(syscall.SIGHUP)
	s.waitForError(t, "cannot reload the users; the old ones remain in use: ")
	exchangeRESP(testkit.Dial(t, s.addr), "AUTH alice a\r\nPUBLISH x 1\r\n", "+OK|:1")
	exchangeRESP(alice, "", "*3|$7|message|$1|x|$1|1")
	s.Signal(syscall.SIGTERM)
	s.checkStop(t)
}

// waitForSecondAddr returns the address that a server with two has said last.
func (s *server) waitForSecondAddr(t *testing.T) string {
	t.Helper()
	var lines [][]string
	testkit.WaitFor(t, "a second address", func() bool {
		lines = servingLine.FindAllStringSubmatch(s.stdout.String(), -1)
		return len(lines) == 2
	})
	return lines[1][1]
}

// With --tls-addr there is a second address, with TLS, and the first is in clear. Who shows a certificate is the
// user of its name, if the file of users has that.
func TestHubTLS(t *testing.T) {
	cert, key := testkit.WriteCertificate(t)
	users := writeUsersFile(t, "user localhost on cert +publish &a\nuser alice on >a +@all &*\n")
	s := serveLine(t, fmt.Sprintf("hub --users %s --tls-addr 127.0.0.1:0 --tls-client-ca %s --tls-cert %[2]s --tls-key %s", users, cert, key))
	secureAddr := s.waitForSecondAddr(t)
	clear := testkit.Dial(t, s.addr)
	exchangeRESP(clear, "AUTH alice a\r\nSUBSCRIBE a\r\n", "+OK|*3|$9|subscribe|$1|a|:1")
	pair, err := tls.LoadX509KeyPair(cert, key)
	testkit.RequireNoError(t, err)
	secured := testkit.DialTLS(t, secureAddr, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}})
	exchangeRESP(secured, "PUBLISH a 1\r\n", ":1")
	exchangeRESP(clear, "", "*3|$7|message|$1|a|$1|1")
	sendAndExpect(secured, "PUBLISH b 1\r\n", "-NOPERM")
	if text := s.stdout.String(); strings.Count(text, ", TLS") != 1 {
		t.Errorf("one of the addresses has TLS, and it says %s", text)
	}
}

// TestHubCluster has hubs that speak TLS with each other: they say when they are alone, and when others have joined.
// One without their certificate, and one with another secret, stay alone, and both sides say why.
func TestHubCluster(t *testing.T) {
	cert, key := testkit.WriteCertificate(t)
	otherCert, otherKey := testkit.WriteCertificate(t, func(c *x509.Certificate) { c.Subject.CommonName = "somebody else's" })
	line := func(cert, key, ca string) string {
		return fmt.Sprintf("hub --cluster 127.0.0.1:0 --cluster-cert %s --cluster-key %s --cluster-ca %s", cert, key, ca)
	}
	t.Setenv(clusterSecretVariable, "s3cret")
	first := serveLine(t, line(cert, key, cert))
	listening := regexp.MustCompile(`(?m)^myriad: listening for other hubs on ([^;\s]+); alone until one joins$`)
	alone := listening.FindStringSubmatch(first.stdout.String())
	if alone == nil {
		t.Fatalf("the first says %s", first.stdout)
	}
	join := " --join " + alone[1]
	second := serveLine(t, line(cert, key, cert)+join)
	for _, s := range []*server{first, second} {
		s.waitForError(t, "joined the cluster; other hubs: 1\n")
	}
	exchangeRESP(testkit.Dial(t, second.addr), "SUBSCRIBE a\r\n", "*3|$9|subscribe|$1|a|:1")
	testkit.WaitFor(t, "one knows the subscribers of the other", func() bool {
		_, text := httpGet(t, "http://"+first.addr+"/topics/a")
		return strings.Contains(text, `"subscribers":1`)
	})
	second.stop()
	first.waitForError(t, "no other hub of the cluster responds")

	both := filepath.Join(t.TempDir(), "both.pem")
	testkit.RequireNoError(t, exec.Command("sh", "-c", `cat "$1" "$2" > "$0"`, both, cert, otherCert).Run())
	other := serveLine(t, line(otherCert, otherKey, both)+join)
	other.waitForError(t, "the other hub would reject --cluster-cert "+otherCert+": chain is not signed by an acceptable CA")
	clear := serveLine(t, "hub --cluster 127.0.0.1:0"+join)
	first.waitForError(t, "first record does not look like a TLS handshake")
	t.Setenv(clusterSecretVariable, "other")
	stranger := serveLine(t, line(cert, key, cert)+join)
	stranger.waitForError(t, "their cluster secrets differ; expected the same secret on all servers")
	first.waitForError(t, "rejected a server from 127.0.0.1: its cluster secret differs")
	for _, s := range []*server{other, clear, stranger} {
		if text := s.stderr.String(); strings.Contains(text, "joined") {
			t.Errorf("who is alone says %s", text)
		}
	}
	for wrong, want := range map[string]string{
		line(otherCert, otherKey, cert): "other hubs would reject --cluster-cert " + otherCert + ": x509: certificate signed by unknown authority",
		line(cert, otherKey, cert):      "private key does not match public key",
	} {
		invokeLine(t, wrong).checkOutcome(t, wrong, 2, want)
	}
}
