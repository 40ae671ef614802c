package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

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
	if status, text := httpGet(t, "http://"+s.addr+"/"); status != http.StatusOK || !strings.Contains(text, "<html") {
		t.Errorf("the page: %d, %.100q", status, text)
	}
	s.waitForPage(t, "/hub", `"Published": 2`)
	s.waitForPage(t, "/hub", `"Clients": 1`)
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

// With --tls-addr there is a second address, with TLS, and the first is in clear. Who shows a certificate is the
// user of its name, if the file of users has that.
func TestHubTLS(t *testing.T) {
	cert, key := testkit.WriteCertificate(t)
	users := writeUsersFile(t, "user localhost on cert +publish &a\nuser alice on >a +@all &*\n")
	s := serveLine(t, fmt.Sprintf("hub --users %s --tls-addr 127.0.0.1:0 --tls-client-ca %s --tls-cert %[2]s --tls-key %s", users, cert, key))
	testkit.WaitFor(t, "both addresses", func() bool { return len(servingLine.FindAllString(s.stdout.String(), -1)) == 2 })
	lines := servingLine.FindAllStringSubmatch(s.stdout.String(), -1)
	clear := testkit.Dial(t, s.addr)
	exchangeRESP(clear, "AUTH alice a\r\nSUBSCRIBE a\r\n", "+OK|*3|$9|subscribe|$1|a|:1")
	pair, err := tls.LoadX509KeyPair(cert, key)
	testkit.RequireNoError(t, err)
	secured := testkit.DialTLS(t, lines[1][1], &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}})
	exchangeRESP(secured, "PUBLISH a 1\r\n", ":1")
	exchangeRESP(clear, "", "*3|$7|message|$1|a|$1|1")
	sendAndExpect(secured, "PUBLISH b 1\r\n", "-NOPERM")
	if text := s.stdout.String(); strings.Count(text, ", TLS") != 1 {
		t.Errorf("one of the addresses has TLS, and it says %s", text)
	}
}

var joinedLine = regexp.MustCompile(`(?m)^myriad: listening for other hubs on ([^;\s]+); alone until one joins$`)

// TestHubClusterTLS has hubs that speak TLS with each other. Who has no certificate of theirs does not
// come in, though it knows the secret, and it is said why.
func TestHubClusterTLS(t *testing.T) {
	t.Setenv(clusterSecretVariable, "s3cret")
	of := func(name string) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.Subject.CommonName = name }
	}
	cert, key := testkit.WriteCertificate(t, of("ours"))
	otherCert, otherKey := testkit.WriteCertificate(t, of("somebody else's"))
	expiredCert, expiredKey := testkit.WriteCertificate(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	both := filepath.Join(t.TempDir(), "both.pem")
	ours, err := os.ReadFile(cert)
	testkit.RequireNoError(t, err)
	theirs, err := os.ReadFile(otherCert)
	testkit.RequireNoError(t, err)
	overwriteFile(t, both, string(ours)+string(theirs))
	secured := func(cert, key, ca string) string {
		return fmt.Sprintf(" --cluster-cert %s --cluster-key %s --cluster-ca %s", cert, key, ca)
	}
	first := serveLine(t, "hub --cluster 127.0.0.1:0"+secured(cert, key, cert))
	join := " --join " + joinedLine.FindStringSubmatch(first.stdout.String())[1]
	second := serveLine(t, "hub --cluster 127.0.0.1:0"+secured(cert, key, cert)+join)
	exchangeRESP(testkit.Dial(t, second.addr), "SUBSCRIBE a\r\n", "*3|$9|subscribe|$1|a|:1")
	testkit.WaitFor(t, "one knows the subscribers of the other", func() bool {
		_, text := httpGet(t, "http://"+first.addr+"/topics/a")
		return strings.Contains(text, `"subscribers":1`)
	})
	other := serveLine(t, "hub --cluster 127.0.0.1:0"+secured(otherCert, otherKey, both)+join)
	other.waitForError(t, "the other hub would reject --cluster-cert "+otherCert+": chain is not signed by an acceptable CA")
	serveLine(t, "hub --cluster 127.0.0.1:0"+join)
	first.waitForError(t, "first record does not look like a TLS handshake")
	if text := other.stderr.String(); strings.Contains(text, "joined") {
		t.Errorf("a hub with a certificate of somebody else says: %s", text)
	}
	for _, wrong := range []struct{ flags, want string }{
		{secured(otherCert, otherKey, cert), "other hubs would reject --cluster-cert " + otherCert + ": x509: certificate signed by unknown authority"},
		{secured(expiredCert, expiredKey, expiredCert), "x509: certificate has expired"},
		{secured(cert, otherKey, cert), "private key does not match public key"},
	} {
		if o := invokeLine(t, "hub --cluster 127.0.0.1:0"+wrong.flags); o.code != 2 || !strings.Contains(o.stderr, wrong.want) {
			t.Errorf("%s: exit code %d, %s; expected %q", wrong.flags, o.code, o.stderr, wrong.want)
		}
	}
}

// TestHubClusterSecret: a hub says when it is alone, and when others have joined. One with another secret stays alone,
// and both sides say why, not each time that they try.
func TestHubClusterSecret(t *testing.T) {
	hub := func(secret, join string) *server {
		t.Helper()
		t.Setenv(clusterSecretVariable, secret)
		return serveLine(t, "hub --cluster 127.0.0.1:0"+join)
	}
	addrOf := func(s *server) string { return joinedLine.FindStringSubmatch(s.stdout.String())[1] }
	first := hub("s3cret", "")
	join := " --join " + addrOf(first)
	stranger := hub("other", join)
	const differ = "their cluster secrets differ; expected the same secret on all servers"
	why := "the server at " + addrOf(first) + " rejected this server: " + differ
	stranger.waitForError(t, why)
	first.waitForError(t, "rejected a server from 127.0.0.1: its cluster secret differs")
	if text := first.stderr.String() + stranger.stderr.String(); strings.Contains(text, "joined") {
		t.Errorf("who is alone says %s", text)
	}
	second := hub("s3cret", join)
	for _, s := range []*server{first, second} {
		s.waitForError(t, "joined the cluster; other hubs: 1\n")
	}
	second.stop()
	first.waitForError(t, "no other hub of the cluster responds")
	if text := stranger.stderr.String(); strings.Contains(text, "joined") || strings.Count(text, differ) != 1 {
		t.Errorf("the stranger says %s", text)
	}
}

// startResuming receives a topic t as events and reconnects with the last id, each time after at most maxEvents. The
// second result stops it.
func startResuming(t *testing.T, name string, dial func() (net.Conn, error), maxEvents int) (y *tally, stop func()) {
	y = newTally(name)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	last := ""
	visit := func() {
		nc, err := dial()
		if err != nil {
			return
		}
		defer context.AfterFunc(ctx, func() { nc.Close() })()
		defer nc.Close()
		fmt.Fprintf(nc, "GET /events?topic=t HTTP/1.1\r\nHost: localhost\r\n%s\r\n", last)
		in := bufio.NewReader(nc)
		for events := 0; events < maxEvents; {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			if id, ok := strings.CutPrefix(line, "id: "); ok {
				last = "Last-Event-ID: " + strings.TrimSpace(id) + "\r\n"
			} else if strings.HasPrefix(line, "data: ") {
				events++
				if strings.Contains(line, `"op":"gap"`) {
					t.Errorf("%s: %s", name, line)
				}
				y.addLine(line)
			}
		}
	}
	all.Go(func() {
		for ctx.Err() == nil {
			visit()
		}
	})
	stop = func() {
		cancel()
		all.Wait()
	}
	t.Cleanup(stop)
	return y, stop
}

// TestUpgradeHubReplay upgrades a single hub that keeps messages, twice, while messages are published over connections
// that move and ones that stay. Clients that stay connected, and those that reconnect with an id, of which some are
// left in the old process, get each message once and in order.
func TestUpgradeHubReplay(t *testing.T) {
	cert, key := testkit.WriteCertificate(t)
	s := startUpgradable(t, "hub", "--replay", "t", "--replay-topic-messages", "100000", "--tls-addr", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key)
	testkit.WaitFor(t, "both addresses", func() bool { return len(servingLine.FindAllString(s.stdout.String(), -1)) == 2 })
	secureAddr := servingLine.FindAllStringSubmatch(s.stdout.String(), -1)[1][1]
	stays := &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12} // can't move
	dialSecure := func() (net.Conn, error) { return tls.Dial("tcp", secureAddr, stays) }
	for range 300 { // clients whose move takes its time
		exchangeRESP(testkit.Dial(t, s.addr), "SUBSCRIBE u\r\n", "*3|$9|subscribe|$1|u|:1")
	}
	all := startSubscribers(t, "the hub", s.addr)
	restless, _ := startResuming(t, "a restless client", func() (net.Conn, error) { return net.Dial("tcp", s.addr) }, 20)
	drained, _ := startResuming(t, "a drained client", dialSecure, math.MaxInt)
	all = append(all, restless, drained)
	publishers := []*publisher{startPublisher(t, s.addr, "p0", 500*time.Microsecond, 10), startPublisher(t, s.addr, "p1", 500*time.Microsecond, 10)}
	waitForDeliveryOfEach(t, "before", publishers, all)
	next := s.Process.Process
	for nth := 1; nth <= 2; nth++ {
		staying := testkit.DialTLS(t, secureAddr, stays)
		var stayed sync.WaitGroup
		stayed.Go(func() { // until it is drained
			for n, from := 1, fmt.Sprint("stays", nth); ; n++ {
				fmt.Fprint(staying, testkit.RESPCommand("PUBLISH", "t", fmt.Sprint(from, " ", n, " x")))
				if line, err := staying.R.ReadString('\n'); err != nil || line[0] != ':' {
					return
				}
			}
		})
		testkit.WaitFor(t, "it publishes", func() bool { return drained.newestFrom(fmt.Sprint("stays", nth)) > 0 })
		next = s.signalUpgrade(t, next, nth, -1)
		stayed.Wait()
		waitForDeliveryOfEach(t, fmt.Sprint("after upgrade ", nth), publishers, all)
	}
	stopPublishersAndDrain(t, publishers, all)
	for _, y := range all {
		if n := y.checkOrder(t); n > 0 {
			t.Errorf("%s misses %d messages", y.name, n)
		}
		t.Logf("%s: %v", y.name, y.newest)
	}
	s.stopSuccessor(t, next)
}
