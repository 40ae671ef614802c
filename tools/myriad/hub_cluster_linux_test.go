package main

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

var joinedLine = regexp.MustCompile(`(?m)^myriad: listening for other hubs on ([^;\s]+); alone until one joins$`)

// TestHubClusterTLS has three hubs that speak TLS with each other. Who has no certificate of theirs does not
// come in, though it knows the secret, and it is said why.
func TestHubClusterTLS(t *testing.T) {
	t.Setenv(secretVariable, "s3cret")
	of := func(name string) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.Subject.CommonName = name }
	}
	cert, key := certificate(t, of("ours"))
	otherCert, otherKey := certificate(t, of("somebody else's"))
	expiredCert, expiredKey := certificate(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	both := filepath.Join(t.TempDir(), "both.pem")
	var pems []byte
	for _, path := range []string{cert, otherCert} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		pems = append(pems, text...)
	}
	if err := os.WriteFile(both, pems, 0o600); err != nil {
		t.Fatal(err)
	}
	secured := func(cert, key, ca string) string {
		return fmt.Sprintf(" --cluster-cert %s --cluster-key %s --cluster-ca %s", cert, key, ca)
	}
	hubs := make([]*server, 0, 3)
	hub := func(flags string) *server {
		t.Helper()
		line := "hub --cluster 127.0.0.1:0" + flags
		if len(hubs) > 0 {
			line += " --join " + joinedLine.FindStringSubmatch(hubs[0].stdout.String())[1]
		}
		s := serveHere(t, line)
		c := dial(t, s.addr)
		talk(t, c, "SUBSCRIBE a\r\n", "*3|$9|subscribe|$1|a|:1")
		return s
	}
	subscribers := func(s *server) int {
		t.Helper()
		var of struct{ Subscribers int }
		_, text := get(t, "http://"+s.addr+"/topics/a")
		if err := json.Unmarshal([]byte(text), &of); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return of.Subscribers
	}
	for range cap(hubs) {
		hubs = append(hubs, hub(secured(cert, key, cert)))
	}
	for _, s := range hubs {
		testkit.WaitFor(t, "all know the subscribers of all", func() bool { return subscribers(s) == 3 })
	}
	refused := func(what, flags string, says func(stranger *server) *server, why string) {
		t.Helper()
		s := hub(flags)
		testkit.WaitFor(t, what+": "+why, func() bool { return strings.Contains(says(s).stderr.String(), why) })
		if n := subscribers(s); n != 1 {
			t.Errorf("%s: it knows %d subscribers; expected its own", what, n)
		}
	}
	refused("a certificate of somebody else", secured(otherCert, otherKey, both), func(stranger *server) *server { return stranger },
		"the other hub would refuse --cluster-cert "+otherCert+": chain is not signed by an acceptable CA")
	refused("no TLS", "", func(*server) *server { return hubs[0] }, "first record does not look like a TLS handshake")
	for _, wrong := range []struct{ flags, want string }{
		{secured(otherCert, otherKey, cert), "the other hubs would refuse --cluster-cert " + otherCert + ": x509: certificate signed by unknown authority"},
		{secured(expiredCert, expiredKey, expiredCert), "x509: certificate has expired"},
		{secured(cert, otherKey, cert), "private key does not match public key"},
	} {
		if o := runLine(t, "hub --cluster 127.0.0.1:0"+wrong.flags); o.code != 2 || !strings.Contains(o.stderr, wrong.want) {
			t.Errorf("%s: exit code %d, %s; expected %q", wrong.flags, o.code, o.stderr, wrong.want)
		}
	}
	for _, s := range hubs {
		if n := subscribers(s); n != 3 {
			t.Errorf("in the end a hub knows %d subscribers; expected 3", n)
		}
	}
}

// TestHubClusterSecret: a hub says when it is alone, and when others have joined. One with another secret stays alone, and
// both sides say why, not each time that they try.
func TestHubClusterSecret(t *testing.T) {
	hub := func(secret, join string) *server {
		t.Helper()
		t.Setenv(secretVariable, secret)
		return serveHere(t, "hub --cluster 127.0.0.1:0"+join)
	}
	addrOf := func(s *server) string { return joinedLine.FindStringSubmatch(s.stdout.String())[1] }
	first := hub("s3cret", "")
	join := " --join " + addrOf(first)
	stranger := hub("other", join)
	const differ = "their cluster secrets differ; expected the same secret on all"
	why := "the server at " + addrOf(first) + " refuses this one: " + differ
	testkit.WaitFor(t, "the stranger says why", func() bool { return strings.Contains(stranger.stderr.String(), why) })
	testkit.WaitFor(t, "the first says why", func() bool {
		return strings.Contains(first.stderr.String(), "a server from 127.0.0.1 is refused: its cluster secret differs")
	})
	if text := first.stderr.String() + stranger.stderr.String(); strings.Contains(text, "joined") {
		t.Errorf("who is alone says %s", text)
	}
	second := hub("s3cret", join)
	for _, s := range []*server{first, second} {
		testkit.WaitFor(t, "both have joined", func() bool { return strings.Contains(s.stderr.String(), "the cluster is joined, other hubs: 1\n") })
	}
	second.stop()
	testkit.WaitFor(t, "the first is alone again", func() bool {
		return strings.Contains(first.stderr.String(), "alone: no other hub of the cluster is heard of")
	})
	if text := stranger.stderr.String(); strings.Contains(text, "joined") || strings.Count(text, differ) != 1 {
		t.Errorf("the stranger says %s", text)
	}
}
